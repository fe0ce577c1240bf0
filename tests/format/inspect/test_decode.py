"""``ninfer-inspect decode``: the file equals what the codecs give, and appears whole or not."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    Binding,
    GgufCheckpoint,
    Part,
    SafetensorsCheckpoint,
    TensorSpec,
    grouped_absmax,
    open_artifact,
)

SCRIPT = Path(sys.executable).with_name("ninfer-inspect")


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """The same type, shape and bits, NaN payloads and the sign of zero included."""
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )


def test_values_of_every_object(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    with open_artifact(all_formats) as artifact:
        for index, record in enumerate(artifact.directory.tensors):
            out = tmp_path / f"{index}.npy"
            assert inspect("decode", all_formats, record.id, "--out", out)[:2] == (0, "")
            assert same(np.load(out), artifact.decode_object(record.id))


def test_values_of_every_parameter(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    with open_artifact(all_formats) as artifact:
        for index, name in enumerate(artifact.directory.bindings):
            out = tmp_path / f"{index}.npy"
            assert inspect("decode", all_formats, name, "--out", out)[:2] == (0, "")
            found = np.load(out)
            assert same(found, artifact.decode_parameter(name, found.shape))


def test_words_of_every_object(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    with open_artifact(all_formats) as artifact:
        for index, record in enumerate(artifact.directory.tensors):
            words = artifact.words(record.id)
            out = tmp_path / (f"{index}.npz" if is_dataclass(words) else f"{index}.npy")
            assert inspect("decode", all_formats, record.id, "--words", "--out", out)[:2] == (
                0,
                "",
            )
            if not is_dataclass(words):
                assert same(np.load(out), words)
                continue
            with np.load(out) as found:
                assert list(found) == [field.name for field in fields(words)]
                for field in fields(words):
                    assert same(found[field.name], getattr(words, field.name)), record.id


@pytest.mark.parametrize(
    ("name", "rows"),
    [("w.q5.5x256", (1, 4)), ("w.nvfp4.256x128.d2", (128, 256)), ("w.exl3.hb5.s2", (128, 256))],
)
def test_words_of_some_rows(
    name: str, rows: tuple[int, int], inspect: Any, all_formats: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x.npz"
    arguments = ["decode", all_formats, name, "--words", "--out", out, "--rows"]
    assert inspect(*arguments, f"{rows[0]}:{rows[1]}")[0] == 0
    with open_artifact(all_formats) as artifact:
        codec, payload = artifact.row_slice_payload(name, *rows)
    words = codec.decode_words(payload)
    with np.load(out) as found:
        for field in fields(words):
            assert same(found[field.name], getattr(words, field.name))


def test_words_of_a_parameter_that_is_rows_of_an_object(
    inspect: Any, all_formats: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x.npz"
    arguments = ["decode", all_formats, "text/nvfp4_second", "--words", "--out", out]
    assert inspect(*arguments)[0] == 0
    with open_artifact(all_formats) as artifact, np.load(out) as found:
        words = artifact.words("w.nvfp4.256x128.d2")
        assert same(found["codes"], words.codes[128:])
        assert same(found["divisors"], words.divisors[1:])


def test_rows_of_values(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    with open_artifact(all_formats) as artifact:
        values = artifact.decode_object("w.nvfp4.256x128.d2")
    assert inspect("decode", all_formats, "w.nvfp4.256x128.d2", "--rows", "100:130", "--out", out)[
        0
    ] == (0)
    assert same(np.load(out), values[100:130])


def test_a_tensor_of_many_pieces(inspect: Any, write_artifact: Any, tmp_path: Path) -> None:
    specs = [
        TensorSpec("q", (1000, 1500), "q6_g64_fp16", "row_split_k128_v1"),
        TensorSpec("b", (3, 300_000), "bf16", "contiguous_le_v1"),
    ]
    rng = np.random.default_rng(3)
    words: dict[str, Any] = {
        "q": grouped_absmax(rng.standard_normal((1000, 1500)), "q6_g64_fp16"),
        "b": rng.integers(0, 2**16, (3, 300_000), dtype=np.uint16),
    }
    path = write_artifact(specs, words)
    for name, suffix in [("q", "npz"), ("b", "npy")]:
        inspect("decode", path, name, "--out", tmp_path / f"{name}.npy")
        with open_artifact(path) as artifact:
            assert same(np.load(tmp_path / f"{name}.npy"), artifact.decode_object(name))
        out = tmp_path / f"{name}.words.{suffix}"
        inspect("decode", path, name, "--words", "--out", out)
    with np.load(tmp_path / "q.words.npz") as found:
        assert same(found["codes"], words["q"].codes)
        assert same(found["scales"], words["q"].scales)
    assert same(np.load(tmp_path / "b.words.npy"), words["b"])
    out = tmp_path / "rows.npy"
    inspect("decode", path, "b", "--words", "--rows", "1:3", "--out", out)
    assert same(np.load(out), words["b"][1:3])


def test_files_with_several_arrays_have_the_same_bytes_each_time(
    inspect: Any, all_formats: Path, tmp_path: Path
) -> None:
    outs = [tmp_path / "1.npz", tmp_path / "2.npz"]
    for out in outs:
        inspect("decode", all_formats, "w.q5.5x256", "--words", "--out", out)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_checkpoints(inspect: Any, gguf_file: Path, safetensors: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    inspect("decode", gguf_file, "blk.0.attn_q.weight", "--rows", "1:", "--out", out)
    values = GgufCheckpoint(gguf_file).read("blk.0.attn_q.weight", 64).reshape(2, 64)
    assert same(np.load(out), values)
    inspect("decode", safetensors, "lm_head.weight", "--out", out, "--force")
    values = SafetensorsCheckpoint(safetensors).read("lm_head.weight")
    assert same(np.load(out), values.astype(np.float32).reshape(4096, 256))


def test_the_document_has_these_members(document: Any, all_formats: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npz"
    found = document("decode", all_formats, "w.q5.5x256", "--words", "--out", out)
    assert {name: found[name] for name in list(found)[2:]} == {
        "path": str(all_formats),
        "tensor": {"name": "w.q5.5x256", "kind": "object"},
        "out": str(out),
        "out_bytes": out.stat().st_size,
        "arrays": [
            {"name": "codes", "dtype": "int8", "shape": [5, 256]},
            {"name": "scales", "dtype": "uint16", "shape": [5, 4]},
        ],
    }


def test_a_person_is_told_on_stderr(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    code, stdout, err = inspect("decode", all_formats, "w.q5.5x256", "--out", out)
    assert (code, stdout) == (0, "")
    assert err == f"{out}: values float32 [5, 256]\n"


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["nothing", "--out", "x.npy"], 3, "no parameter and no tensor object"),
        (["w.q5.5x25", "--out", "x.npy"], 3, "did you mean w.q5.5x256?"),
        (["r.odd", "--out", "x.npy"], 3, "no parameter and no tensor object"),
        (["w.q5.5x256"], 2, "missing option '--out'"),
        (["w.q5.5x256", "--out", "x.npz"], 2, "must end in .npy"),
        (["w.q5.5x256", "--out", "x"], 2, "must end in .npy"),
        (["w.q5.5x256", "--words", "--out", "x.npy"], 2, "must end in .npz"),
        (["w.q5.5x256", "--rows", "3:9", "--out", "x.npy"], 2, "outside 0:5"),
        (["text/query", "--words", "--out", "x.npy"], 2, "no words of its own"),
        (["w.nvfp4.256x128.d2", "--words", "--rows", "1:129", "--out", "x.npz"], 2, "128 rows"),
        (["w.q5.5x256", "--out", "no/folder/x.npy"], 1, "no such file or directory"),
    ],
)
def test_failures_leave_nothing(
    arguments: list[str],
    exit_code: int,
    message: str,
    inspect: Any,
    all_formats: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = inspect("decode", all_formats, *arguments)
    assert (code, out) == (exit_code, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_words_of_a_checkpoint(inspect: Any, gguf_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    code, _, err = inspect("decode", gguf_file, "output_norm.weight", "--words", "--out", out)
    assert code == 2
    assert "only artifacts have words" in err


def test_words_of_a_reshaped_or_partial_row(
    inspect: Any, write_artifact: Any, tmp_path: Path
) -> None:
    spec = TensorSpec("w", (4, 4), "bf16", "contiguous_le_v1")
    words = np.arange(16, dtype=np.uint16).reshape(4, 4)
    bindings = {"text/part": Binding(parts=(Part("w", 1, 6),))}
    path = write_artifact([spec], {"w": words}, bindings=bindings)
    out = tmp_path / "x.npy"
    code, _, err = inspect("decode", path, "text/part", "--words", "--out", out)
    assert code == 2
    assert "no words of its own" in err
    assert inspect("decode", path, "text/part", "--out", out)[0] == 0
    assert np.load(out).view(np.uint32).tolist() == (np.arange(1, 6) << 16).tolist()


def test_an_existing_output_is_kept(inspect: Any, all_formats: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    out.write_bytes(b"mine")
    code, _, err = inspect("decode", all_formats, "w.q5.5x256", "--out", out)
    assert code == 2
    assert "exists already" in err
    assert out.read_bytes() == b"mine"
    assert inspect("decode", all_formats, "w.q5.5x256", "--out", out, "--force")[0] == 0
    assert np.load(out).shape == (5, 256)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("way", ["itself", "symlink", "hard link"])
def test_the_input_is_never_written(
    way: str, inspect: Any, all_formats: Path, tmp_path: Path
) -> None:
    source = tmp_path / "m.npy"
    content = all_formats.read_bytes()
    source.write_bytes(content)
    out = source if way == "itself" else tmp_path / "other.npy"
    if way == "symlink":
        out.symlink_to(source)
    elif way == "hard link":
        os.link(source, out)
    code, _, err = inspect("decode", source, "w.q5.5x256", "--out", out, "--force")
    assert code == 2
    assert "same file as input" in err
    assert source.read_bytes() == content


def test_illegal_words_leave_nothing(inspect: Any, conformance: Path, tmp_path: Path) -> None:
    path = conformance / "malformed/fp8_code_nan.ninfer"
    code, _, err = inspect("decode", path, "w", "--out", tmp_path / "x.npy")
    assert code == 3
    assert "object 'w'" in err
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder(all_formats: Path, tmp_path: Path) -> None:
    """As a user without rights, since root may write anywhere."""
    folder = tmp_path / "folder"
    folder.mkdir()
    out = folder / "x.npy"
    if os.geteuid() == 0:
        out = Path("/proc/x.npy")
    else:
        folder.chmod(0o555)
    result = subprocess.run(
        [SCRIPT, "decode", all_formats, "w.q5.5x256", "--out", out, "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def test_a_disk_that_fills_leaves_nothing(builtin: Path, tmp_path: Path) -> None:
    """A limit for the length of a file stands for the end of the disk."""
    result = subprocess.run(
        [SCRIPT, "decode", builtin, "text/token_embedding", "--out", "x.npy", "--no-progress"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_file_size,
    )
    assert result.returncode == 1
    assert "file too large" in result.stderr
    assert list(tmp_path.iterdir()) == []
