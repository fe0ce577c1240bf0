"""Which implementation of an op runs on which kind of device.

An implementation may be registered by its module's name, so that no GPU module is imported on a
host without a GPU. Nothing stands in for a missing implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from ninfer_runtime.device.base import Device
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError

Implementation = Callable[..., None]


class Operand(Protocol):
    """What an op works on: a tensor, or weights in a form of their own."""

    @property
    def device(self) -> Device:
        """Where it lies."""
        ...


_implementations: dict[tuple[str, str], Implementation | str] = {}


def register(op: str, kind: str, implementation: Implementation | str) -> None:
    """Register an implementation of `op` for devices of `kind`.

    Args:
        op: Name of the op.
        kind: Kind of device.
        implementation: A function that writes into its output tensors, or ``module:function``.
    """
    _implementations[op, kind] = implementation


def call(op: str, *tensors: Operand, **options: Any) -> None:
    """Run `op` on the device that its tensors share.

    Args:
        op: Name of the op.
        tensors: Inputs and outputs, in the order of the implementation's parameters.
        options: Keyword arguments of the implementation.

    Raises:
        OpArgumentError: The tensors lie on different devices.
        UnsupportedOpError: Nothing is registered for the device.
    """
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device is not device:
            raise OpArgumentError(
                op, "tensors", expected=f"all on {tensors[0]!r}'s device", found=repr(tensor)
            )
    implementation(op, device.kind, tensors)(*tensors, **options)


def implementation(op: str, kind: str, tensors: tuple[Operand, ...] = ()) -> Implementation:
    """The implementation of `op` for devices of `kind`.

    Args:
        op: Name of the op.
        kind: Kind of device.
        tensors: What the op was called with, for the error.

    Raises:
        UnsupportedOpError: None is registered.
    """
    found = _implementations.get((op, kind))
    if found is None:
        raise UnsupportedOpError(op, kind, detail=", ".join(map(repr, tensors)))
    if isinstance(found, str):
        module, _, function = found.partition(":")
        found = cast(Implementation, getattr(import_module(module), function))
        _implementations[op, kind] = found
    return found
