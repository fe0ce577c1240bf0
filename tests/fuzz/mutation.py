"""Changes to an artifact that keep enough of it sound to reach what lies behind the first check."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

from tests.fuzz.bundle import Sketch, put_together

from ninfer_format import ArtifactError, codec_for

NUMBERS = (0, 1, 2, 3, 15, 16, 17, 127, 128, 255, 256, 4096, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.0,
    2**64,
    10**30,
    "",
    "text",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    "r",
    "w",
)
TEXTS = (b"1e999", b"NaN", b"-0", b"-Infinity", b'"\\ud800"', b"9" * 1100, b"[" * 3000, b"\xff")
ENCODINGS = (
    ("bf16", "contiguous_le_v1"),
    ("fp32", "contiguous_le_v1"),
    ("int32", "contiguous_le_v1"),
    ("q4_g64_fp16", "row_split_k128_v1"),
    ("q5_g64_fp16", "row_split_k128_v1"),
    ("q6_g64_fp16", "row_split_k128_v1"),
    ("q8_g32_fp16", "row_split_k128_v1"),
    ("fp8_e4m3fn_row_bf16", "row_scale_v1"),
    ("nvfp4", "block_scale_k16_m128x4_v1"),
    ("q4_g32_fp16_rows", "row_group_v1"),
    ("exl3_mul1", "trellis_t16_v1"),
)
MAX_DEPTH = 30
DIMENSIONS = (1, 2, 3, 5, 16, 31, 32, 33, 64, 100, 128, 129, 256)


def mutate(sketch: Sketch, random: Random) -> list[bytes]:
    """The files of a changed artifact; the sketch is changed too."""
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(MUTATIONS)(sketch, random)
    if random.random() < 0.8:
        fit_files(sketch)
    files = put_together(sketch)
    if random.random() < 0.1:
        files[0] = _replace_in_text(files[0], random)
    if random.random() < 0.1:
        _damage_framing(files, random)
    return files


def fit_files(sketch: Sketch) -> None:
    """Let the table of files say what the files are."""
    if isinstance(sketch.directory, dict):
        sketch.directory["files"] = [
            {"path": f"p{index}" if index else None, "payload_bytes": len(segment)}
            for index, segment in enumerate(sketch.segments)
        ]


# --- the directory ------------------------------------------------------------------------------


def _change_a_value(sketch: Sketch, random: Random) -> None:
    parent, key = _place(sketch.directory, random)
    if parent is None:
        return
    old = parent[key]
    if type(old) is int:
        near = (old + 1, old - 1, old * 2, old // 2, old + 256)
        parent[key] = random.choice(near + NUMBERS)
    elif isinstance(old, str) and random.random() < 0.7:
        parent[key] = random.choice(list(_strings(sketch.directory)) or [""])
    else:
        parent[key] = deepcopy(random.choice(VALUES))


def _delete_or_repeat(sketch: Sketch, random: Random) -> None:
    parent, key = _place(sketch.directory, random)
    if isinstance(parent, list) and random.random() < 0.5:
        parent.insert(key, deepcopy(parent[key]))
    elif parent is not None:
        del parent[key]


def _copy_a_value(sketch: Sketch, random: Random) -> None:
    source, from_key = _place(sketch.directory, random)
    target, to_key = _place(sketch.directory, random)
    if source is not None and target is not None:
        target[to_key] = deepcopy(source[from_key])


def _retype_an_object(sketch: Sketch, random: Random) -> None:
    """Give an object another format and shape, of the right length if there is room."""
    objects = [record for record in _listed(sketch, "objects") if record.get("kind") == "tensor"]
    if not objects:
        return
    record = random.choice(objects)
    record["format"], record["layout"] = random.choice(ENCODINGS)
    rank = 2 if random.random() < 0.8 else random.randrange(4)
    record["shape"] = [random.choice(DIMENSIONS) for _ in range(rank)]
    record.pop("divisors", None)
    record.pop("bitrate_half_bits", None)
    if record["format"] == "exl3_mul1" or random.random() < 0.05:
        record["bitrate_half_bits"] = random.randrange(1, 18)
    if random.random() < 0.3:
        record["divisors"] = random.choice((1, 2, 3, 4))
    record["bytes"] = _encoded_bytes(record) or record.get("bytes")
    _place_again(sketch, random)


def _encoded_bytes(record: dict[str, Any]) -> int | None:
    try:
        codec = codec_for(
            record["format"],
            record["layout"],
            tuple(record["shape"]),
            divisors=record.get("divisors", 1),
            bitrate_half_bits=record.get("bitrate_half_bits"),
        )
    except ArtifactError:
        return None
    return codec.geometry.num_bytes


def _place_again(sketch: Sketch, random: Random) -> None:
    """Put all objects behind each other, and make the payload as long as they are."""
    end = 0
    for record in _listed(sketch, "objects"):
        if type(record.get("bytes")) is not int or not 0 <= record["bytes"] < 2**20:
            return
        record["offset"] = -(-end // 256) * 256 + random.choice((0,) * 20 + (1, 256))
        end = record["offset"] + record["bytes"]
    payload = b"".join(sketch.segments)
    payload = (payload * (end // (len(payload) or 1) + 1) if payload else b"\1" * end)[:end]
    sketch.segments = [payload or b"\0"]


def _bind_anew(sketch: Sketch, random: Random) -> None:
    """Bind a parameter to parts of objects, some of them in bounds."""
    objects = [record for record in _listed(sketch, "objects") if record.get("kind") == "tensor"]
    bindings = sketch.directory.get("bindings") if isinstance(sketch.directory, dict) else None
    if not objects or not isinstance(bindings, dict):
        return
    parts = []
    for _ in range(random.choice((1, 2, 3, 20))):
        record = random.choice(objects)
        elements = _elements(record.get("shape"))
        begin = random.randrange(elements)
        end = random.randrange(begin, elements) + 1
        parts.append({"object": record.get("id"), "range": [begin, end]})
    bindings[random.choice(("p", "q", *list(bindings)[:3]))] = {"parts": parts}


def _elements(shape: Any) -> int:
    count = 1
    for dimension in shape if isinstance(shape, list) else ():
        count *= dimension if type(dimension) is int and dimension > 0 else 1
    return min(count, 2**40)


# --- payload and files --------------------------------------------------------------------------


def _change_bytes(sketch: Sketch, random: Random) -> None:
    index = random.randrange(len(sketch.segments))
    segment = bytearray(sketch.segments[index])
    if not segment:
        return
    for _ in range(random.choice((1, 4, 64))):
        at = random.randrange(len(segment))
        run = random.choice((1, 2, 4, 128))
        pattern = random.choice((b"\0", b"\xff", b"\x80", b"\x7f", random.randbytes(1)))
        segment[at : at + run] = pattern * len(segment[at : at + run])
    sketch.segments[index] = bytes(segment)


def _cut_anew(sketch: Sketch, random: Random) -> None:
    payload = b"".join(sketch.segments)
    cuts = sorted(random.randrange(len(payload) + 1) for _ in range(random.randrange(5)))
    edges = [0, *cuts, len(payload)]
    sketch.segments = [payload[a:b] for a, b in itertools.pairwise(edges)]


def _drop_a_file(sketch: Sketch, random: Random) -> None:
    if len(sketch.segments) > 1:
        del sketch.segments[random.randrange(1, len(sketch.segments))]


def _change_length(sketch: Sketch, random: Random) -> None:
    index = random.randrange(len(sketch.segments))
    segment = sketch.segments[index]
    if random.random() < 0.5:
        sketch.segments[index] = segment[: random.randrange(len(segment) + 1)]
    else:
        sketch.segments[index] = segment + random.randbytes(random.choice((1, 100, 5000)))


MUTATIONS: tuple[Callable[[Sketch, Random], None], ...] = (
    _change_a_value,
    _change_a_value,
    _delete_or_repeat,
    _copy_a_value,
    _retype_an_object,
    _retype_an_object,
    _bind_anew,
    _change_bytes,
    _cut_anew,
    _drop_a_file,
    _change_length,
)


def _replace_in_text(entry: bytes, random: Random) -> bytes:
    """Put something into the JSON text that a JSON value cannot express."""
    json_bytes = int.from_bytes(entry[8:16], "little")
    text = entry[32 : 32 + json_bytes]
    at = random.randrange(len(text) + 1)
    changed = random.choice(TEXTS)
    changed = text[:at] + changed + text[at + random.choice((0, 1, len(changed))) :]
    start = -(-(32 + json_bytes) // 4096) * 4096
    new_start = -(-(32 + len(changed)) // 4096) * 4096
    header = entry[:8] + len(changed).to_bytes(8, "little") + entry[16:32]
    return (header + changed).ljust(new_start, b" ") + entry[start:]


def _damage_framing(files: list[bytes], random: Random) -> None:
    index = random.randrange(len(files))
    file = bytearray(files[index])
    at = random.randrange(32)
    file[at : at + 1] = random.randbytes(1)
    files[index] = bytes(file[: random.choice((len(file), len(file) - 1, 31, at))])


# --- walking through a directory ----------------------------------------------------------------


def _place(value: Any, random: Random) -> tuple[Any, Any]:
    """A random member or item at any depth, as its container and its key."""
    places = list(_places(value))
    return random.choice(places) if places else (None, None)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > MAX_DEPTH or not isinstance(value, (dict, list)):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        yield from _places(inner, depth + 1)


def _strings(value: Any) -> Iterator[str]:
    for parent, key in _places(value):
        if isinstance(parent[key], str):
            yield parent[key]
        if isinstance(key, str):
            yield key


def _listed(sketch: Sketch, member: str) -> list[dict[str, Any]]:
    found = sketch.directory.get(member) if isinstance(sketch.directory, dict) else None
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
