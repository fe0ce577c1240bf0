"""What cannot be attached, and what is left when something fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    Artifact,
    ArtifactError,
    Binding,
    Component,
    Part,
    ResourceSpec,
    Use,
    attach_component,
    open_artifact,
)
from ninfer_format.edit import attach

WriteModel = Callable[..., Path]
Parts = dict[str, Any]


def has_it_already(base: Parts, donor: Parts) -> None:
    base["components"]["dflash2"] = Component({}, "text")


def has_a_parameter_already(base: Parts, donor: Parts) -> None:
    base["bindings"]["dflash2/final_norm"] = Binding(object="scalar")


def lacks_it(base: Parts, donor: Parts) -> None:
    del donor["components"]["dflash2"]


def serves_another_component(base: Parts, donor: Parts) -> None:
    donor["components"]["mtp"] = Component({}, "text")
    donor["components"]["dflash2"] = replace(donor["components"]["dflash2"], target="mtp")


def serves_nothing(base: Parts, donor: Parts) -> None:
    donor["components"]["dflash2"] = replace(donor["components"]["dflash2"], target=None)


def has_another_config(base: Parts, donor: Parts) -> None:
    text = donor["components"]["text"]
    config = {**text.config, "hidden_size": 65, "extra": 1}
    donor["components"]["text"] = replace(text, config=config)


def has_another_tokenizer(base: Parts, donor: Parts) -> None:
    donor["specs"][0] = ResourceSpec("tok", b'{"tokens":[]}')


def has_no_tokenizer(base: Parts, donor: Parts) -> None:
    donor["components"]["text"] = replace(donor["components"]["text"], resources={})


def base_has_no_tokenizer(base: Parts, donor: Parts) -> None:
    base["components"]["text"] = replace(base["components"]["text"], resources={})


def does_not_meet_the_head(base: Parts, donor: Parts) -> None:
    donor["uses"] = [use for use in donor["uses"] if use.input != "dflash2/final_hidden"]


def meets_another_parameter(base: Parts, donor: Parts) -> None:
    donor["bindings"]["text/other"] = Binding(object="head")
    donor["uses"].append(Use("text/other", "dflash2/final_hidden", "A16Only"))


def meets_the_head_elsewhere(base: Parts, donor: Parts) -> None:
    donor["uses"].append(Use("text/output_head", "dflash2/middle", "A16Only"))


def has_a_smaller_head(base: Parts, donor: Parts) -> None:
    donor["bindings"]["text/output_head"] = Binding(parts=(Part("scalar", 0, 64),))


def has_a_smaller_proposal(base: Parts, donor: Parts) -> None:
    donor["bindings"]["proposal/head"] = Binding(object="head")


def has_two_policies(base: Parts, donor: Parts) -> None:
    base["uses"][1] = replace(base["uses"][1], activation_policy="A16Only")


def has_two_scalars(base: Parts, donor: Parts) -> None:
    base["uses"][1] = replace(base["uses"][1], auxiliaries={})


def does_not_use_its_proposal(base: Parts, donor: Parts) -> None:
    base["uses"].pop()


def has_no_head(base: Parts, donor: Parts) -> None:
    del base["bindings"]["text/output_head"]
    base["uses"] = base["uses"][2:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (has_it_already, "b.ninfer: has component 'dflash2' already"),
        (has_a_parameter_already, "b.ninfer: has 'dflash2/final_norm' already"),
        (lacks_it, "d.ninfer: has no component 'dflash2'"),
        (serves_another_component, "does not serve the text component"),
        (serves_nothing, "does not serve the text component"),
        (has_another_config, "d.ninfer: text component differs .* in config extra, hidden_size"),
        (has_another_tokenizer, "tokenizer.json differs"),
        (has_no_tokenizer, "d.ninfer: component 'text' has no resource 'tokenizer.json'"),
        (base_has_no_tokenizer, "b.ninfer: component 'text' has no resource 'tokenizer.json'"),
        (does_not_meet_the_head, "has no use of the output head"),
        (meets_another_parameter, "uses 'text/other' at 'dflash2/final_hidden'"),
        (meets_the_head_elsewhere, "uses 'text/output_head' at 'dflash2/middle'"),
        (has_a_smaller_head, "'text/output_head' has another size .*8192 elements, found 64"),
        (has_a_smaller_proposal, "'proposal/head' has another size"),
        (has_two_policies, "b.ninfer: does not say how 'text/output_head' is to be used"),
        (has_two_scalars, "b.ninfer: does not say how 'text/output_head' is to be used"),
        (does_not_use_its_proposal, "does not say how 'proposal/head' is to be used"),
        (has_no_head, "'text/output_head' is not bound"),
    ],
)
def test_what_does_not_fit_is_refused(
    write_model: WriteModel,
    base_parts: Parts,
    donor_parts: Parts,
    tmp_path: Path,
    damage: Callable[[Parts, Parts], None],
    message: str,
):
    damage(base_parts, donor_parts)
    with (
        open_artifact(write_model("b.ninfer", **base_parts)) as base,
        open_artifact(write_model("d.ninfer", **donor_parts)) as donor,
    ):
        with pytest.raises(ArtifactError, match=message) as caught:
            attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
        assert caught.value.category == "reference"
    assert {path.name for path in tmp_path.iterdir()} == {"b.ninfer", "d.ninfer"}


def test_text_itself_cannot_be_attached(base: Artifact, donor: Artifact, tmp_path: Path):
    with pytest.raises(ArtifactError, match="has component 'text' already"):
        attach_component(base, donor, tmp_path / "o.ninfer", "text")


def test_a_list_of_imports_that_is_none_is_refused(
    write_model: WriteModel, base_parts: Parts, donor: Artifact, tmp_path: Path
):
    base_parts["provenance"] = {"component_imports": "dflash"}
    with (
        open_artifact(write_model("b.ninfer", **base_parts)) as base,
        pytest.raises(ArtifactError, match="component_imports has the wrong type") as caught,
    ):
        attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
    assert caught.value.category == "schema"


@pytest.mark.parametrize("name", ["o.ninfer", "o.ninfer.attach.json"])
def test_existing_files_are_not_replaced(
    base: Artifact, donor: Artifact, tmp_path: Path, name: str
):
    (tmp_path / name).write_text("precious", encoding="utf-8")
    with pytest.raises(FileExistsError):
        attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
    assert (tmp_path / name).read_text("utf-8") == "precious"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_copy_that_differs_is_removed(
    base: Artifact, donor: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def damaged(path: Path) -> Artifact:
        with path.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"X")
        return open_artifact(path)

    monkeypatch.setattr(attach, "open_artifact", damaged)
    with pytest.raises(ArtifactError, match="differs from its source") as caught:
        attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
    assert caught.value.category == "writer"
    assert caught.value.object_id == "import/dflash2/draft.notes"
    assert {path.name for path in tmp_path.iterdir()} == {"base.ninfer", "donor.ninfer"}


@pytest.mark.parametrize("steps", [1, 4, 12])
def test_an_interrupt_leaves_nothing(base: Artifact, donor: Artifact, tmp_path: Path, steps: int):
    """While copying, and while the finished artifact is hashed."""
    seen = 0

    def interrupt(num_bytes: int) -> None:
        nonlocal seen
        seen += 1
        if seen == steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attach_component(base, donor, tmp_path / "o.ninfer", "dflash2", advance=interrupt)
    assert seen == steps
    assert {path.name for path in tmp_path.iterdir()} == {"base.ninfer", "donor.ninfer"}
