"""The tables of the published models."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import ArtifactError, BindingTable, TensorRecord, published_table
from ninfer_format.container.checks import parse_directory
from ninfer_format.legacy.directory import LegacyDirectory, parse_legacy_directory

OFFICIAL = "official_qwen3_6_27b_groupwise_int"
PAYLOAD_BYTES = 2**60

Root = Callable[..., dict[str, Any]]
Item = tuple[str, tuple[int, ...], str]
Tensors = Callable[[str], list[Item]]


def parsed(root: Any) -> LegacyDirectory:
    return parse_legacy_directory(root, 2, PAYLOAD_BYTES)


def mapped(root: Any) -> BindingTable:
    return published_table(parsed(root))


def v3_json(table: BindingTable, directory: LegacyDirectory) -> dict[str, Any]:
    return {
        "components": {key: value.to_json() for key, value in table.components.items()},
        "objects": [record.to_json() for record in directory.objects],
        "bindings": {key: value.to_json() for key, value in table.bindings.items()},
        "uses": [use.to_json() for use in table.uses],
    }


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- the official directory ------------------------------------------------------------------


@pytest.fixture(scope="module")
def official(legacy: Path) -> dict[str, Any]:
    """Our mapping of the official version 2 directory."""
    directory = parsed(
        json.loads(gzip.decompress((legacy / f"{OFFICIAL}.v2_directory.json.gz").read_bytes()))
    )
    return v3_json(published_table(directory), directory)


@pytest.fixture(scope="module")
def expected(legacy: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (legacy / f"{OFFICIAL}.v3.expected.json").read_text("utf-8")
    )
    return document


def test_the_official_directory_is_mapped_exactly(official: dict[str, Any], legacy: Path):
    text = gzip.decompress((legacy / f"{OFFICIAL}.v3_directory.json.gz").read_bytes()).decode()
    reference = json.loads(text)
    for section in ("components", "bindings", "uses"):
        assert official[section] == reference[section], section
        assert canonical(official[section]) == canonical(reference[section]), section


def test_counts_and_hashes_of_the_official_directory(
    official: dict[str, Any], expected: dict[str, Any]
):
    for section in ("objects", "bindings", "uses"):
        assert len(official[section]) == expected[section]
    for section in ("components", "bindings", "uses"):
        wanted = expected["section_canonical_sha256"][section]
        assert sha256(canonical(official[section])) == wanted, section
    assert official["components"] == expected["components"]
    for name, binding in expected["binding_samples"].items():
        assert official["bindings"][name] == binding


# --- all identities --------------------------------------------------------------------------

TOTALS = {
    "qwen3.6-27b groupwise-int": (1124, 1422, 785),
    "qwen3.6-27b nvfp4": (1307, 1422, 785),
    "qwen3.8-27b groupwise-int": (1124, 1422, 785),
    "qwen3.8-27b groupwise-int dflash2": (1190, 1513, 844),
    "qwen3.8-27b nvfp4": (1124, 1422, 785),
    "qwen3.8-27b nvfp4 dflash2": (1190, 1513, 844),
    "qwen3.6-35b-a3b groupwise-int": (940, 32713, 32184),
}
"""Objects, bindings and uses; 844 is 785 and what DFlash2 adds: 2 heads, 2 roots, 5 times 11."""


@pytest.mark.parametrize("model", TOTALS)
def test_totals_of_every_published_model(model: str, published_root: Root):
    root = published_root(model)
    table = mapped(root)
    assert (len(root["objects"]), len(table.bindings), len(table.uses)) == TOTALS[model]


def test_scalars_do_not_stand_in_for_the_objects_of_a_drafter(published_root: Root):
    root = published_root("qwen3.6-27b nvfp4")
    root["identity"]["model_id"] = "qwen3.8-27b"
    scalars = [item for item in root["objects"] if item["name"].endswith("input_scale_divisor")]
    superfluous = scalars[: len(root["objects"]) - 1190]
    root["objects"] = [item for item in root["objects"] if item not in superfluous]
    assert len(root["objects"]) == 1190, "as with DFlash2"
    with pytest.raises(ArtifactError, match=r"expected 1513, found 1422") as caught:
        mapped(root)
    assert caught.value.category == "objects"


@pytest.mark.parametrize("model", TOTALS)
def test_every_element_of_every_object_is_bound_as_the_tables_say(model: str, published_root: Root):
    directory = parsed(published_root(model))
    table = published_table(directory)
    covered: dict[str, list[tuple[int, int]]] = {}
    sizes = {item.id: item.elements for item in directory.objects if isinstance(item, TensorRecord)}
    for binding in table.bindings.values():
        if binding.object is not None:
            covered.setdefault(binding.object, []).append((0, sizes[binding.object]))
        for part in binding.parts:
            covered.setdefault(part.object, []).append((part.begin, part.end))
    scalars = {name for name in sizes if name.endswith("input_scale_divisor")}
    assert covered.keys() == sizes.keys() - scalars
    for name, ranges in covered.items():
        spans = sorted(set(ranges))
        assert [begin for begin, _ in spans] == [0, *(end for _, end in spans[:-1])], name
        assert spans[-1][1] == sizes[name], name
        # Keys and values of a drafter have a second role; nothing else is bound twice.
        repeated = [span for span, count in Counter(ranges).items() if count > 1]
        shared = re.fullmatch(r"dflash2?/layers/\d+/attention/query_key_value", name)
        assert len(repeated) == (2 if shared else 0), name


@pytest.mark.parametrize("model", TOTALS)
def test_the_version_3_reader_accepts_the_result(model: str, published_root: Root):
    directory = parsed(published_root(model))
    root = v3_json(published_table(directory), directory)
    files = [{"path": None, "payload_bytes": PAYLOAD_BYTES}]
    assert len(parse_directory({**root, "files": files}, "m.ninfer").uses) == TOTALS[model][2]


def test_both_packings_of_the_27b_model_bind_the_same_parameters(published_root: Root):
    """Objects differ, logical parameters and their shapes do not."""
    tables = [
        mapped(published_root(model))
        for model in ("qwen3.6-27b groupwise-int", "qwen3.6-27b nvfp4", "qwen3.8-27b nvfp4")
    ]
    sizes = [
        {
            name: sum(part.end - part.begin for part in binding.parts)
            for name, binding in table.bindings.items()
            if binding.parts
        }
        for table in tables
    ]
    inputs = [sorted((use.parameter, use.input) for use in table.uses) for table in tables]
    for table, size, places in zip(tables, sizes, inputs, strict=True):
        assert table.bindings.keys() == tables[0].bindings.keys()
        assert places == inputs[0]
        for name in size.keys() & sizes[0].keys():
            assert size[name] == sizes[0][name]


# --- single rows -----------------------------------------------------------------------------


def ranges(table: BindingTable, parameter: str) -> list[tuple[str, int, int]]:
    return [(part.object, part.begin, part.end) for part in table.bindings[parameter].parts]


def inputs(table: BindingTable, parameter: str) -> list[str]:
    return [use.input for use in table.uses if use.parameter == parameter]


def test_experts_are_interleaved_rows_of_their_banks(published_root: Root):
    table = mapped(published_root("qwen3.6-35b-a3b groupwise-int"))
    block = "text/layers/39/moe/"
    one = 512 * 2048
    bank = f"{block}routed_gate_up"
    assert ranges(table, f"{block}experts/0/up") == [(bank, one, 2 * one)]
    assert ranges(table, f"{block}experts/255/gate") == [(bank, 510 * one, 511 * one)]
    assert ranges(table, f"{block}experts/255/down") == [
        (f"{block}routed_down", 255 * one, 256 * one)
    ]
    assert ranges(table, f"{block}shared_score") == [
        (f"{block}router_shared_gate", 256 * 2048, 257 * 2048)
    ]
    assert table.bindings[f"{block}shared/down"].object == f"{block}shared_down"
    assert inputs(table, f"{block}experts/7/down") == [f"{block}experts/7/product"]
    assert inputs(table, f"{block}shared/down") == [f"{block}shared/product"]
    assert inputs(table, f"{block}router") == ["text/layers/39/ffn_input"]
    assert inputs(table, "mtp/layers/0/moe/experts/3/gate") == ["mtp/layers/0/ffn_input"]
    assert inputs(table, "text/output_head") == [
        "text/final_hidden",
        "mtp/final_hidden",
        "dflash/final_hidden",
    ]


def test_dflash2_has_a_second_name_for_keys_and_values(published_root: Root):
    table = mapped(published_root("qwen3.8-27b nvfp4 dflash2"))
    block = "dflash2/layers/4/"
    parent = f"{block}attention/query_key_value"
    key = [(parent, 4096 * 5120, 5120 * 5120)]
    value = [(parent, 5120 * 5120, 6144 * 5120)]
    assert ranges(table, f"{block}attention/key") == key
    assert ranges(table, f"{block}attention/context_key") == key
    assert ranges(table, f"{block}attention/value") == value
    assert ranges(table, f"{block}attention/context_value") == value
    places = {use.parameter: use.input for use in table.uses}
    assert places[f"{block}attention/context_key"] == "dflash2/context_input"
    assert places[f"{block}attention/query"] == f"{block}query_projection_input"
    assert places[f"{block}attention/output"] == f"{block}attention_output"
    assert places[f"{block}mlp/up"] == f"{block}mlp_input"
    assert places[f"{block}mlp/down"] == f"{block}mlp_product"
    assert places[f"{block}mlp_conv/kernel_projection"] == f"{block}mlp_conv_input"
    assert places["dflash2/feature_projection"] == "dflash2/target_features"
    assert places["dflash2/candidate_selector/hidden_projection"] == "dflash2/final_hidden"
    assert "dflash2/candidate_selector/successor_codebook" not in places
    assert inputs(table, "proposal/head") == ["mtp/final_hidden", "dflash2/final_hidden"]


PLACES = {
    "attention/query attention/key attention/gate attention/value": "mixer_input",
    "gdn/query gdn/key gdn/value gdn/z gdn/a_projection gdn/b_projection": "mixer_input",
    "attention/output": "attention/gated_output",
    "gdn/output": "gdn/gated_output",
    "mlp/gate mlp/up moe/router moe/shared_score": "ffn_input",
    "moe/experts/E/gate moe/experts/E/up moe/shared/gate moe/shared/up": "ffn_input",
    "mlp/down": "mlp/product",
    "moe/experts/E/down": "moe/experts/E/product",
    "moe/shared/down": "moe/shared/product",
}
DRAFT_PLACES = {
    "attention/query attention/key attention/value": "layers/L/query_projection_input",
    "attention/context_key attention/context_value": "context_input",
    "attention/output": "layers/L/attention_output",
    "mlp/gate mlp/up": "layers/L/mlp_input",
    "mlp/down": "layers/L/mlp_product",
    "attention_conv/kernel_projection": "layers/L/attention_conv_input",
    "mlp_conv/kernel_projection": "layers/L/mlp_conv_input",
}


def expected_place(parameter: str) -> str | None:
    """The input of a parameter of a decoder's or a drafter's layer; None if it has none."""
    component, _, layer, rest = parameter.split("/", 3)
    expert = re.search(r"experts/(\d+)", rest)
    role = re.sub(r"experts/\d+", "experts/E", rest)
    is_draft = component.startswith("dflash")
    for roles, place in (DRAFT_PLACES if is_draft else PLACES).items():
        if role in roles.split():
            place = place.replace("/E/", f"/{expert[1]}/" if expert else "")
            if is_draft:
                return f"{component}/{place.replace('/L/', f'/{layer}/')}"
            return f"{component}/layers/{layer}/{place}"
    return None


@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b groupwise-int", "qwen3.8-27b nvfp4 dflash2"])
def test_every_layer_parameter_is_used_where_the_tables_say(model: str, published_root: Root):
    table = mapped(published_root(model))
    found: dict[str, list[str]] = {name: [] for name in table.bindings}
    for use in table.uses:
        found[use.parameter].append(use.input)
    layers = [name for name in table.bindings if re.match(r"(?!vision)\w+/layers/", name)]
    assert len(layers) > 1000
    for name in layers:
        place = expected_place(name)
        assert found[name] == ([] if place is None else [place])


def test_components_of_the_mixture_of_experts(published_root: Root):
    table = mapped(published_root("qwen3.6-35b-a3b groupwise-int"))
    configs = {name: component.config for name, component in table.components.items()}
    assert list(configs) == ["text", "vision", "mtp", "dflash"]
    assert configs["mtp"] == {"architectures": ["Qwen3_5MoeMTP"]}
    assert configs["vision"]["model_type"] == "qwen3_5_moe_vision"
    text = configs["text"]
    assert text["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert text["model_type"] == "qwen3_5_moe_text"
    assert (text["num_experts"], text["num_experts_per_tok"]) == (256, 8)
    assert (text["moe_intermediate_size"], text["shared_expert_intermediate_size"]) == (512, 512)
    assert "intermediate_size" not in text
    assert text["layer_types"].count("full_attention") == 10
    assert configs["dflash"] == {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "intermediate_size": 6144,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 4096,
        "rms_norm_eps": 9.999999974752427e-07,
        "rope_parameters": {"rope_theta": 10000000.0},
        "max_position_embeddings": 262144,
        "dflash_config": {
            "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37],
            "mask_token_id": 248077,
        },
    }


def test_component_of_dflash2(published_root: Root):
    table = mapped(published_root("qwen3.8-27b groupwise-int dflash2"))
    config = table.components["dflash2"].config
    assert table.components["dflash2"].target == "text"
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert (config["intermediate_size"], config["sliding_window"]) == (17408, 2048)
    assert config["layer_types"] == ["sliding_attention"] * 5
    assert config["dflash_config"] == {
        "target_layer_ids": [5, 19, 33, 47, 61],
        "mask_token_id": 248070,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    }


def test_policies_and_scalars_follow_the_formats(published_root: Root):
    table = mapped(published_root("qwen3.6-27b nvfp4"))
    uses = {use.parameter: use for use in table.uses}
    scalar = "text/layers/27/attention/input_projection/input_scale_divisor"
    for role in ("query", "key", "gate", "value"):
        use = uses[f"text/layers/27/attention/{role}"]
        assert use.activation_policy == "AllowA4"
        assert use.to_json()["auxiliaries"] == {"activation_input_divisor": {"object": scalar}}
    assert uses["text/layers/3/attention/query"].activation_policy == "A16Only"
    assert uses["text/layers/3/attention/query"].auxiliaries == {}
    of_scalar = Counter(
        binding.object for use in table.uses for binding in use.auxiliaries.values()
    )
    assert len(of_scalar) == 247
    roles = {
        "attention/input_projection": 4,
        "gdn/input_projection": 4,
        "attention/output_projection": 1,
        "gdn/output_projection": 1,
        "mlp/gate_up_projection": 2,
        "mlp/down_projection": 1,
    }
    for name, count in of_scalar.items():
        assert count == roles["/".join(str(name).split("/")[3:5])], name


def test_eight_bit_weights_permit_eight_bit_activations(published_root: Root):
    table = mapped(published_root("qwen3.8-27b nvfp4"))
    counts = Counter(use.activation_policy for use in table.uses)
    # 56 feed-forward networks of three parameters are NVFP4.
    assert counts["AllowA4"] == 168
    # Eight networks, 16 attentions of 5, 48 delta nets of 5, and two uses of the output head.
    assert counts["AllowA8"] == 8 * 3 + 16 * 5 + 48 * 5 + 2
    assert sum(counts.values()) == 785


# --- refusals --------------------------------------------------------------------------------

BASE = "qwen3.8-27b nvfp4"


def refused(published_root: Root, tensors: list[Item], model: str = BASE) -> ArtifactError:
    root = published_root(model, tensors)
    with pytest.raises(ArtifactError) as caught:
        mapped(root)
    return caught.value


def replaced(tensors: list[Item], name: str, *items: Item) -> list[Item]:
    index = [item[0] for item in tensors].index(name)
    return [*tensors[:index], *items, *tensors[index + 1 :]]


@pytest.mark.parametrize(
    ("old", "new", "category", "message"),
    [
        (
            "text/layers/5/input_norm",
            ("text/layers/5/input_nrm", (5120,), "BF16"),
            "objects",
            "no object of the model",
        ),
        (
            "text/layers/5/input_norm",
            ("text/layers/64/input_norm", (5120,), "BF16"),
            "objects",
            "no object of the model",
        ),
        (
            "text/layers/4/gdn/norm",
            ("text/layers/4/attention/query_norm", (256,), "BF16"),
            "objects",
            "no object of the model",
        ),
        (
            "text/layers/5/input_norm",
            ("dflash2/context_norm", (5120,), "BF16"),
            "objects",
            "wrong number of parameters",
        ),
        (
            "text/layers/5/input_norm",
            ("text/layers/5/input_norm", (5121,), "BF16"),
            "schema",
            r"'text/layers/5/input_norm': wrong shape \(expected \[5120\], found \[5121\]\)",
        ),
        (
            "text/layers/4/gdn/output",
            ("text/layers/4/gdn/output", (6144, 5120), "FP8_E4M3FN_ROW_BF16S"),
            "schema",
            "wrong shape",
        ),
        (
            "text/layers/4/input_norm",
            ("text/layers/4/gdn/a_projection", (48, 5120), "BF16"),
            "objects",
            "'text/layers/4/gdn/[ab]_projection' a second time",
        ),
        (
            "text/layers/4/input_norm",
            ("text/layers/4/attention/input_projection/input_scale_divisor", (), "FP32"),
            "objects",
            "wrong number of parameters in all objects, for example 'text/layers/4/input_norm'",
        ),
    ],
)
def test_an_object_that_the_model_does_not_have_is_refused(
    published_root: Root,
    published_tensors: Tensors,
    old: str,
    new: Item,
    category: str,
    message: str,
):
    error = refused(published_root, replaced(published_tensors(BASE), old, new))
    assert error.category == category
    assert re.search(message, str(error)), str(error)


def test_an_activation_scalar_needs_its_projection(
    published_root: Root, published_tensors: Tensors
):
    # One network of a delta net layer gets the scalar of an attention that is not there.
    old = "text/layers/4/mlp/down_projection/input_scale_divisor"
    new = ("text/layers/4/attention/output_projection/input_scale_divisor", (), "FP32")
    error = refused(published_root, replaced(published_tensors(BASE), old, new))
    assert error.category == "reference"
    assert error.object_id == new[0]
    assert "text/layers/4/attention/output" in str(error)


def test_a_scalar_of_an_unknown_operation_is_an_unknown_object(
    published_root: Root, published_tensors: Tensors
):
    old = "text/layers/4/mlp/down_projection/input_scale_divisor"
    new = ("text/layers/4/mlp/up_projection/input_scale_divisor", (), "FP32")
    error = refused(published_root, replaced(published_tensors(BASE), old, new))
    assert (error.category, error.object_id) == ("objects", new[0])


@pytest.mark.parametrize("count", [-1, 1, 66])
def test_another_number_of_objects_is_refused(
    published_root: Root, published_tensors: Tensors, count: int
):
    tensors = published_tensors(BASE)
    more = [(f"text/more/{index}", (1,), "BF16") for index in range(count)]
    error = refused(published_root, [*tensors, *more] if count > 0 else tensors[:count])
    assert error.category == "objects"


def test_dflash2_belongs_to_the_second_model_only(published_root: Root, published_tensors: Tensors):
    tensors = published_tensors("qwen3.8-27b groupwise-int dflash2")
    error = refused(published_root, tensors, "qwen3.6-27b groupwise-int")
    assert "wrong number of objects" in str(error)
    assert "expected 1124, found 1190" in str(error)


@pytest.mark.parametrize("identity", [("qwen3.8-27b", "exl3"), ("qwen9", "nvfp4")])
def test_an_unknown_identity_is_refused_with_the_way_out(
    published_root: Root, identity: tuple[str, str]
):
    root = published_root(BASE)
    root["identity"] = dict(zip(("model_id", "weights_id"), identity, strict=True))
    with pytest.raises(ArtifactError, match=f"found {'/'.join(identity)}") as caught:
        mapped(root)
    assert caught.value.category == "schema"
    assert "--table" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["frontend/merges.txt", "text/tokenizer.json"])
def test_the_resources_are_exactly_six(published_root: Root, name: str):
    root = published_root(BASE)
    root["objects"][0]["name"] = name
    with pytest.raises(ArtifactError, match="wrong resources") as caught:
        mapped(root)
    assert caught.value.category == "objects"


def test_version_1_is_known_by_its_model(published_root: Root):
    root = published_root("qwen3.6-27b groupwise-int")
    version_1 = {"model_id": "qwen3.6-27b", "objects": root["objects"]}
    directory = parse_legacy_directory(version_1, 1, PAYLOAD_BYTES)
    assert directory.weights_id is None
    assert published_table(directory) == mapped(root)
    version_1["model_id"] = "qwen3.8-27b"
    with pytest.raises(ArtifactError, match=r"no published model .*found qwen3\.8-27b\)"):
        published_table(parse_legacy_directory(version_1, 1, PAYLOAD_BYTES))


def test_sizes_in_the_inventories_are_the_published_ones(published_root: Root):
    """The inventories of this test add up to what was measured on the published weights."""
    objects = published_root("qwen3.6-35b-a3b groupwise-int")["objects"]
    drafter = [item for item in objects if item["name"].startswith("dflash/")]
    assert sum(prod(item["shape"]) for item in drafter) == 385_906_176
    objects = published_root("qwen3.8-27b nvfp4 dflash2")["objects"]
    drafter = [item for item in objects if item["name"].startswith("dflash2/")]
    assert len(drafter) == 66
    assert sum(prod(item["shape"]) for item in drafter) == 1_924_404_480
