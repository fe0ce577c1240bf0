"""Resource files: what is accepted, what is refused, and what is rewritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from ninfer_format.errors import UsageError
from ninfer_quant.errors import ConversionError
from ninfer_quant.resources.collect import Resources, locate_resources, read_resources
from ninfer_quant.resources.tokenizer import PADDING, SPLIT_PATTERN, SPLIT_PATTERN_WITHOUT_MARKS
from ninfer_runtime.models.registry import find_architecture

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def configs(checkpoint: Path) -> dict[str, dict[str, Any]]:
    architecture = find_architecture("Qwen3_5ForConditionalGeneration")
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    return architecture.component_configs(config, ("text", "vision", "mtp"))


def locate(
    folder: Path, components: tuple[str, ...] = ("text", "vision", "mtp"), **overrides: Path
) -> dict[str, dict[str, Path]]:
    architecture = find_architecture("Qwen3_5ForConditionalGeneration")
    named = {role.replace("_json", ".json"): path for role, path in overrides.items()}
    return locate_resources(folder, architecture, components, named)


@pytest.fixture
def read_edited(
    checkpoint_copy: Path, configs: dict[str, dict[str, Any]]
) -> Callable[[str, Edit], Resources]:
    """Change one JSON resource of the checkpoint and read all resources."""

    def read(name: str, edit: Edit) -> Resources:
        path = checkpoint_copy / name
        document = json.loads(path.read_text("utf-8"))
        edit(document)
        path.write_text(json.dumps(document), encoding="utf-8")
        return read_resources(locate(checkpoint_copy), configs)

    return read


# --- finding -------------------------------------------------------------------------------


def test_every_role_is_found_in_the_checkpoint(checkpoint: Path):
    located = locate(checkpoint)
    assert {component: list(roles) for component, roles in located.items()} == {
        "text": [
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            "generation_config.json",
        ],
        "vision": ["preprocessor_config.json", "video_preprocessor_config.json"],
        "mtp": [],
    }


def test_all_missing_files_are_listed(checkpoint_copy: Path):
    for name in ("chat_template.jinja", "video_preprocessor_config.json"):
        (checkpoint_copy / name).unlink()
    with pytest.raises(
        ConversionError, match=r"chat_template\.jinja, video_preprocessor_config\.json"
    ):
        locate(checkpoint_copy)


def test_an_override_replaces_and_completes(checkpoint_copy: Path, tmp_path: Path):
    other = tmp_path / "other.json"
    (checkpoint_copy / "tokenizer.json").rename(other)
    assert locate(checkpoint_copy, tokenizer_json=other)["text"]["tokenizer.json"] == other


def test_an_override_must_name_a_role_of_a_selected_component(checkpoint: Path, tmp_path: Path):
    file = tmp_path / "x.json"
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="preprocessor_config") as caught:
        locate(checkpoint, ("text",), preprocessor_config_json=file)
    assert caught.value.hint is not None
    with pytest.raises(UsageError) as caught:
        locate(checkpoint, tokenizers_json=file)
    assert caught.value.hint == "did you mean tokenizer.json?"
    with pytest.raises(UsageError, match="no such resource file"):
        locate(checkpoint, tokenizer_json=tmp_path / "none.json")


# --- what is kept and what is rewritten ----------------------------------------------------


def test_files_that_need_no_change_are_stored_byte_for_byte(
    checkpoint: Path, configs: dict[str, dict[str, Any]]
):
    resources = read_resources(locate(checkpoint), configs)
    changed = {change.message.split(":")[0] for change in resources.changes}
    assert changed == {"tokenizer.json", "tokenizer_config.json"}
    for component, roles in resources.data.items():
        for role, data in roles.items():
            original = (checkpoint / role).read_bytes()
            assert (data == original) == (role not in changed), (component, role)
    assert resources.public_tokens == 4096


def test_what_was_normalised_once_is_not_changed_again(
    checkpoint_copy: Path, configs: dict[str, dict[str, Any]]
):
    first = read_resources(locate(checkpoint_copy), configs)
    for role, data in first.data["text"].items():
        (checkpoint_copy / role).write_bytes(data)
    second = read_resources(locate(checkpoint_copy), configs)
    assert second.changes == ()
    assert second.data == first.data


def test_the_split_pattern_is_all_that_changes_in_the_tokenizer(
    checkpoint: Path, configs: dict[str, dict[str, Any]]
):
    original = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    stored = json.loads(read_resources(locate(checkpoint), configs).data["text"]["tokenizer.json"])
    pattern = original["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert pattern["Regex"] == SPLIT_PATTERN_WITHOUT_MARKS
    pattern["Regex"] = SPLIT_PATTERN
    assert stored == original


def test_the_rewritten_pattern_keeps_combining_marks_with_their_letter(
    checkpoint: Path, configs: dict[str, dict[str, Any]]
):
    data = read_resources(locate(checkpoint), configs).data["text"]["tokenizer.json"]
    stored = tokenizers.Tokenizer.from_str(data.decode())
    original = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = "a q\u0307uick"  # NFC has no single character for q with a dot
    pieces = [piece for piece, _ in stored.pre_tokenizer.pre_tokenize_str(text)]
    assert len(pieces) == 2
    assert len(original.pre_tokenizer.pre_tokenize_str(text)) > 2
    plain = (checkpoint.parent / "heldout.txt").read_text("utf-8")[:20000]
    assert stored.encode(plain).ids == original.encode(plain).ids


def test_an_unknown_split_pattern_is_replaced_and_said_so(
    read_edited: Callable[[str, Edit], Resources],
):
    def edit(document: dict[str, Any]) -> None:
        document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+"

    resources = read_edited("tokenizer.json", edit)
    assert "tokenizer.json: replaced the unknown split pattern" in [
        change.message for change in resources.changes
    ]


def test_the_decoder_of_added_tokens_is_built_when_it_is_absent(
    read_edited: Callable[[str, Edit], Resources], checkpoint: Path
):
    original = json.loads((checkpoint / "tokenizer_config.json").read_text("utf-8"))
    resources = read_edited(
        "tokenizer_config.json", lambda document: document.pop("added_tokens_decoder")
    )
    stored = json.loads(resources.data["text"]["tokenizer_config.json"])
    assert stored["added_tokens_decoder"] == original["added_tokens_decoder"]
    assert stored["add_bos_token"] is False
    assert stored["add_prefix_space"] is False
    assert stored["pad_token"] == PADDING
    assert stored["chat_template"] == original["chat_template"]


def test_nulls_leave_the_vision_files(read_edited: Callable[[str, Edit], Resources]):
    def edit(document: dict[str, Any]) -> None:
        document |= {"do_resize": True, "resample": 3, "rescale_factor": 1 / 255, "crop": None}

    resources = read_edited("preprocessor_config.json", edit)
    assert "preprocessor_config.json: removed nulls" in [
        change.message for change in resources.changes
    ]
    stored = json.loads(resources.data["vision"]["preprocessor_config.json"])
    assert "crop" not in stored
    assert stored["resample"] == 3


# --- what is refused -----------------------------------------------------------------------


def set_path(path: str, value: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        holder: Any = document
        for key in parents:
            holder = holder[int(key) if key.isdecimal() else key]
        holder[last] = value

    return edit


SPLIT, BYTES = "pre_tokenizer.pretokenizers.0", "pre_tokenizer.pretokenizers.1"

BAD_TOKENIZER = {
    "model.type": "WordPiece",
    "model.ignore_merges": True,
    "model.dropout": 0.1,
    "model.continuing_subword_prefix": "##",
    "model.end_of_word_suffix": "</w>",
    "model.vocab": ["a"],
    "model.merges": {},
    "normalizer": {"type": "Lowercase"},
    "decoder": {"type": "WordPiece"},
    "post_processor": {"type": "TemplateProcessing"},
    "pre_tokenizer": {"type": "ByteLevel"},
    f"{SPLIT}.behavior": "Removed",
    f"{SPLIT}.invert": True,
    f"{SPLIT}.pattern": {"String": " "},
    f"{BYTES}.add_prefix_space": True,
    f"{BYTES}.use_regex": True,
    "added_tokens.0.lstrip": True,
    "added_tokens.0.normalized": True,
    "added_tokens.0.single_word": True,
    "added_tokens.0.id": 4084,
    "added_tokens.0.content": "<|other|>",
    "added_tokens.0.special": False,
}


@pytest.mark.parametrize("path", BAD_TOKENIZER)
def test_a_tokenizer_that_the_runtime_cannot_execute_is_refused(
    read_edited: Callable[[str, Edit], Resources], path: str
):
    with pytest.raises(ConversionError):
        read_edited("tokenizer.json", set_path(path, BAD_TOKENIZER[path]))


def test_token_ids_must_be_contiguous(read_edited: Callable[[str, Edit], Resources]):
    def edit(document: dict[str, Any]) -> None:
        vocabulary = document["model"]["vocab"]
        # An entry that no merge makes or needs.
        del vocabulary[next(token for token, token_id in vocabulary.items() if token_id == 100)]

    with pytest.raises(ConversionError, match="without gaps"):
        read_edited("tokenizer.json", edit)


def test_token_ids_must_fit_the_embedding(checkpoint: Path, configs: dict[str, dict[str, Any]]):
    configs["text"]["vocab_size"] = 4095
    with pytest.raises(ConversionError, match="4096 tokens, the embedding 4095 rows"):
        read_resources(locate(checkpoint), configs)
    configs["text"]["vocab_size"] = 5000
    assert read_resources(locate(checkpoint), configs).public_tokens == 4096


def test_the_padding_token_must_exist(checkpoint_copy: Path, configs: dict[str, dict[str, Any]]):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = checkpoint_copy / name
        text = path.read_text("utf-8").replace("<|endoftext|>", "<|the end|>")
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConversionError, match="padding"):
        read_resources(locate(checkpoint_copy), configs)


@pytest.mark.parametrize("value", [None, [], True, [True], 4096, -1, ["4085"], 1.0, [[4085]]])
def test_an_end_token_that_is_none_is_refused(
    read_edited: Callable[[str, Edit], Resources], value: Any
):
    with pytest.raises(ConversionError, match="eos_token_id"):
        read_edited("generation_config.json", set_path("eos_token_id", value))


@pytest.mark.parametrize("value", [4085, [4083]])
def test_one_end_token_or_a_list_is_accepted(
    read_edited: Callable[[str, Edit], Resources], value: Any
):
    read_edited("generation_config.json", set_path("eos_token_id", value))


BAD_VISION = [
    ("patch_size", 14),
    ("patch_size", None),
    ("patch_size", 16.0),
    ("temporal_patch_size", 1),
    ("merge_size", 4),
    ("size", None),
    ("size.shortest_edge", 0),
    ("size.longest_edge", "big"),
    ("size.shortest_edge", 10**9),
    ("do_resize", False),
    ("do_convert_rgb", 1),
    ("resample", 2),
    ("image_mean", [0.48, 0.46, 0.41]),
    ("image_std", [0.5]),
    ("rescale_factor", 1 / 127.5),
    ("rescale_factor", 1),
    ("fps", 0),
    ("fps", True),
    ("min_frames", 0),
    ("max_frames", 1),
]


@pytest.mark.parametrize(("path", "value"), BAD_VISION)
def test_a_preprocessor_that_needs_another_pipeline_is_refused(
    read_edited: Callable[[str, Edit], Resources], path: str, value: Any
):
    with pytest.raises(ConversionError, match=path.split(".")[0]):
        read_edited("video_preprocessor_config.json", set_path(path, value))


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff{}", b'{"eos_token_id": NaN}', b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(
    checkpoint_copy: Path, configs: dict[str, dict[str, Any]], text: bytes
):
    (checkpoint_copy / "generation_config.json").write_bytes(text)
    with pytest.raises(ConversionError, match="generation_config"):
        read_resources(locate(checkpoint_copy), configs)


@pytest.mark.parametrize("text", [b"{% if %}", b"{{ 'a' ", b"\xff"])
def test_a_chat_template_that_does_not_compile_is_refused(
    checkpoint_copy: Path, configs: dict[str, dict[str, Any]], text: bytes
):
    (checkpoint_copy / "chat_template.jinja").write_bytes(text)
    with pytest.raises(ConversionError, match="chat_template"):
        read_resources(locate(checkpoint_copy), configs)


def test_components_without_resources_have_none(
    checkpoint: Path, configs: dict[str, dict[str, Any]]
):
    assert set(read_resources(locate(checkpoint), configs).data) == {"text", "vision"}


def test_a_member_that_appears_twice_is_refused(
    checkpoint_copy: Path, configs: dict[str, dict[str, Any]]
):
    path = checkpoint_copy / "generation_config.json"
    path.write_text('{"eos_token_id": 0, "eos_token_id": 1}', encoding="utf-8")
    with pytest.raises(ConversionError, match=r"generation_config\.json.*'eos_token_id'.*twice"):
        read_resources(locate(checkpoint_copy), configs)
