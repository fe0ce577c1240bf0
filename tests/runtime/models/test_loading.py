"""From an artifact to a model, with artifacts written here tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.models.artifacts import Writer
from tests.runtime.models.sequences import Sequence

from ninfer_format import (
    Artifact,
    ArtifactError,
    Binding,
    Part,
    UnsupportedConfigError,
    open_artifact,
)
from ninfer_runtime.device import get_device
from ninfer_runtime.device.base import Memory
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.errors import CapacityError
from ninfer_runtime.models.registry import load_model

CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 16,
    "vocab_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "max_position_embeddings": 64,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {"mrope_section": [2, 0, 0]},
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 4,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
}
IDS = np.array([3, 1, 31, 0, 7])
MLP = "text/layers/0/mlp/"


@pytest.fixture
def load(tmp_path) -> Callable[..., np.ndarray]:
    """Write, open, load and close; returns the logits of `IDS`."""

    def run(writer: Writer) -> np.ndarray:
        with open_artifact(writer.write(tmp_path / "model.ninfer")) as artifact:
            model = load_model(artifact, get_device("cpu"))
        return Sequence(model, 16).logits(IDS)

    return run


def opened(writer: Writer, tmp_path: Path) -> Artifact:
    return open_artifact(writer.write(tmp_path / "model.ninfer"))


def test_weights_outlive_the_artifact_file(tmp_path):
    writer = Writer(CONFIG)
    writer.formats = dict.fromkeys(writer.formats, "fp32")  # decoded without a copy
    path = writer.write(tmp_path / "model.ninfer")
    with open_artifact(path) as artifact:
        model = load_model(artifact, get_device("cpu"))
    before = Sequence(model, 16).logits(IDS)
    with path.open("r+b") as file:  # in place, as a mapping would see it
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\xff" * size)
    after = Sequence(model, 16).logits(IDS)
    np.testing.assert_array_equal(after, before)
    assert np.isfinite(after).all()


def test_all_direct_formats_give_the_same_model(load, tmp_path):
    expected = load(Writer(CONFIG))
    (tmp_path / "model.ninfer").unlink()
    wide = Writer(CONFIG)
    wide.formats = dict.fromkeys(wide.formats, "fp32")
    np.testing.assert_array_equal(load(wide), expected)


def test_parameters_may_share_a_parent(load, tmp_path):
    expected = load(Writer(CONFIG))
    (tmp_path / "model.ninfer").unlink()
    packed = Writer(CONFIG)
    gate, up = packed.values.pop(f"{MLP}gate"), packed.values.pop(f"{MLP}up")
    packed.values["weight/0"] = np.concatenate([gate, up])
    packed.formats["weight/0"] = "bf16"
    packed.bindings[f"{MLP}gate"] = Binding(parts=(Part("weight/0", 0, gate.size),))
    # The second one in two parts, which cut through a row.
    cut = gate.size + 7
    packed.bindings[f"{MLP}up"] = Binding(
        parts=(Part("weight/0", gate.size, cut), Part("weight/0", cut, 2 * gate.size))
    )
    np.testing.assert_array_equal(load(packed), expected)


def test_other_components_are_left_alone(load, tmp_path):
    expected = load(Writer(CONFIG))
    (tmp_path / "model.ninfer").unlink()
    more = Writer(CONFIG, ("text", "mtp"))
    text_only = Writer(CONFIG)
    for name in text_only.values:
        more.values[name] = text_only.values[name]
    np.testing.assert_array_equal(load(more), expected)


@pytest.mark.parametrize("target", [None, "mtp"])
def test_a_component_with_another_target_is_refused(tmp_path, target):
    writer = Writer(CONFIG, ("text", "mtp"))
    writer.components["mtp"] = replace(writer.components["mtp"], target=target)
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(UnsupportedConfigError, match=f"mtp.target = {target!r}"),
    ):
        load_model(artifact, get_device("cpu"))


def test_weight_bytes_are_those_of_float32(tmp_path):
    writer = Writer(CONFIG)
    with opened(writer, tmp_path) as artifact:
        model = load_model(artifact, get_device("cpu"))
    assert model.weight_bytes == 4 * sum(values.size for values in writer.values.values())
    assert (model.vocab_size, model.max_position_embeddings) == (32, 64)


def test_a_shared_table_is_loaded_once(tmp_path):
    writer = Writer(CONFIG)
    head = writer.values.pop("text/output_head")
    writer.bindings["text/output_head"] = writer.bindings["text/token_embedding"]
    with opened(writer, tmp_path) as artifact:
        model = load_model(artifact, get_device("cpu"))
    assert model.weight_bytes == 4 * sum(values.size for values in writer.values.values())
    logits = Sequence(model, 16).logits(IDS)
    writer.values["text/output_head"] = head
    hidden = Sequence(model, 16).forward(IDS).array
    np.testing.assert_allclose(logits, hidden @ writer.values["text/token_embedding"].T, atol=1e-5)


def test_all_unbound_parameters_are_named_in_one_error(tmp_path):
    writer = Writer(CONFIG)
    missing = [f"{MLP}gate", "text/final_norm", "text/layers/1/attention/query_norm"]
    for name in missing:
        del writer.bindings[name]
    writer.uses = [use for use in writer.uses if use.parameter not in missing]
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(ArtifactError, match="3 parameters are not bound") as caught,
    ):
        load_model(artifact, get_device("cpu"))
    assert caught.value.category == "reference"
    assert str(artifact.path) in str(caught.value)
    for name in missing:
        assert name in str(caught.value)


def test_all_missing_uses_are_named_in_one_error(tmp_path):
    writer = Writer(CONFIG)
    writer.uses = [use for use in writer.uses if not use.parameter.startswith(MLP)]
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(ArtifactError, match=r"3 uses are missing: .*mlp/down with .*mlp/product"),
    ):
        load_model(artifact, get_device("cpu"))


def test_parameters_of_another_size_are_named_in_one_error(tmp_path):
    writer = Writer(CONFIG)
    for name in (f"{MLP}gate", "text/final_norm"):
        writer.values[name] = writer.values[name][:-1]
    with opened(writer, tmp_path) as artifact, pytest.raises(ArtifactError) as caught:
        load_model(artifact, get_device("cpu"))
    assert f"{MLP}gate is bound to 368 elements but has the shape [24, 16]" in str(caught.value)
    assert "text/final_norm is bound to 15 elements" in str(caught.value)


def test_integers_are_no_weights(tmp_path):
    writer = Writer(CONFIG)
    writer.formats["text/final_norm"] = "int32"
    writer.values["text/final_norm"] = np.ones(16, np.int32)
    with opened(writer, tmp_path) as artifact, pytest.raises(ArtifactError, match="real numbers"):
        load_model(artifact, get_device("cpu"))


def test_an_unsupported_configuration_is_refused_with_its_file(tmp_path):
    writer = Writer(CONFIG)
    text = writer.components["text"]
    writer.components["text"] = replace(text, config={**text.config, "rms_norm_eps": 0})
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(UnsupportedConfigError, match=r"model\.ninfer: text\.rms_norm_eps = 0"),
    ):
        load_model(artifact, get_device("cpu"))


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], [], "Qwen3_5ForCausalLM", None])
def test_another_architecture_is_refused(tmp_path, architectures):
    writer = Writer(CONFIG)
    text = writer.components["text"]
    config = {**text.config, "architectures": architectures}
    writer.components["text"] = replace(text, config=config)
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(UnsupportedConfigError, match="architectures"),
    ):
        load_model(artifact, get_device("cpu"))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(tmp_path, monkeypatch):
    class SmallDevice(CpuDevice):
        def memory(self) -> Memory:
            return Memory(1000, 2000)

    monkeypatch.setattr(Artifact, "decode_parameter", None)
    writer = Writer(CONFIG)
    sizes = [values.size for values in writer.values.values()]
    # The largest matrix is there twice while its order in memory is changed.
    needed = 4 * (sum(sizes) + max(sizes))
    with (
        opened(writer, tmp_path) as artifact,
        pytest.raises(CapacityError, match=f"needs {needed} bytes, .* only 1000 bytes") as caught,
    ):
        load_model(artifact, SmallDevice())
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, 1000)
