import pytest

from ninfer_format import open_artifact


@pytest.fixture(scope="module")
def artifacts(convert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    paths = {
        name: convert(folder / f"{name}.ninfer", name, components=("text",))
        for name in ("qwen3_8_27b", "qwen3_x_nvfp4_local")
    }
    groupwise, local = paths.values()
    with open_artifact(groupwise) as first, open_artifact(local) as second:
        yield first, second


def formats(artifact):
    return {
        name: artifact.record(artifact.parts(name)[0].object).format
        for name in artifact.directory.bindings
    }


def test_only_mlps_differ_and_activations_keep_16_bits(artifacts):
    groupwise, local = map(formats, artifacts)
    mlps = {name for name in local if "/mlp/" in name}
    assert len(mlps) == 24
    assert {local[name] for name in mlps} == {"nvfp4"}
    assert {name: local[name] for name in local if name not in mlps} == {
        name: groupwise[name] for name in groupwise if name not in mlps
    }
    uses = [use for use in artifacts[1].directory.uses if use.parameter in mlps]
    assert {use.activation_policy for use in uses} == {"A16Only"}
    assert not any(use.auxiliaries for use in uses)


def test_gate_and_up_are_one_object(artifacts):
    (gate,), (up,) = (artifacts[1].parts(f"text/layers/0/mlp/{name}") for name in ("gate", "up"))
    assert gate.object == up.object
