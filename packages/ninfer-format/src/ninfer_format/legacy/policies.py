"""Activation policies and scalars of the published models (specification, sections 11.3 and 11.6)."""

from __future__ import annotations

from collections.abc import Collection

from ninfer_format.container.schema import ActivationPolicy
from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.decoder import MTP_LAYER, text_layer
from ninfer_format.legacy.geometry import TextGeometry

SCALAR_SUFFIX = "/input_scale_divisor"
"""Ends the names of scalars by which an activation is divided before it is quantized."""

_ROLES = {
    "attention/input_projection": ("query", "key", "gate", "value"),
    "attention/output_projection": ("output",),
    "gdn/input_projection": ("query", "key", "value", "z"),
    "gdn/output_projection": ("output",),
    "mlp/gate_up_projection": ("gate", "up"),
    "mlp/down_projection": ("down",),
}
"""Which parameters of its group a scalar belongs to, by the operation in its name."""


def format_policy(format_name: str) -> ActivationPolicy:
    """What the published programs allowed for weights of a format."""
    if format_name == "nvfp4":
        return "AllowA4"
    return "AllowA8" if format_name == "fp8_e4m3fn_row_bf16" else "A16Only"


def scalar_parameters(text: TextGeometry) -> dict[str, tuple[str, ...]]:
    """The parameters that every possible activation scalar belongs to, by the scalar's name."""
    blocks = [*map(text_layer, range(text.num_hidden_layers)), MTP_LAYER]
    return {
        f"{block.objects}{operation}{SCALAR_SUFFIX}": tuple(
            f"{block.parameters}{operation.split('/')[0]}/{role}" for role in roles
        )
        for block in blocks
        for operation, roles in _ROLES.items()
    }


def parameter_scalars(
    scalars: Collection[str], text: TextGeometry, bound: Collection[str]
) -> dict[str, str]:
    """The scalar of each parameter that has one.

    Args:
        scalars: Names of the activation scalars; all of them keys of `scalar_parameters`.
        text: Sizes of the language model.
        bound: Names of all parameters.

    Raises:
        ArtifactError: `reference`: a scalar belongs to a projection that is not there.
    """
    parameters = scalar_parameters(text)
    found: dict[str, str] = {}
    for scalar in scalars:
        for parameter in parameters[scalar]:
            if parameter not in bound:
                raise ArtifactError(
                    "reference",
                    "activation scalar without its projection",
                    object_id=scalar,
                    expected=f"parameter {parameter!r}",
                    found="none",
                )
            found[parameter] = scalar
    return found
