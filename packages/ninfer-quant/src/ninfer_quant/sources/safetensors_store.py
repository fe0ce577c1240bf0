"""Safetensors checkpoints under Hugging Face names, with the quantizations that they may have."""

from __future__ import annotations

from pathlib import Path

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.checkpoint.safetensors import INDEX_NAME
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources import compressed_tensors, modelopt
from ninfer_quant.sources.logical import LogicalSource, TensorSource
from ninfer_quant.sources.store import TensorStore

CONFIG_NAME = "config.json"
WEIGHT = ".weight"
TRELLIS = ".trellis"
FP8 = "F8_E4M3"


class SafetensorsStore(TensorStore):
    """The tensors of a checkpoint, quantized or not.

    How a matrix is quantized is told from the tensors that it has, in this order: ``trellis``,
    which is refused; ``weight_packed`` (compressed-tensors nvfp4); ``weight_scale_2`` (ModelOpt
    nvfp4); a ``weight`` of float8 with ``weight_scale_inv`` (tiles), with a ``weight_scale`` of one
    F32 element (ModelOpt), or with one per row (compressed-tensors).

    Args:
        checkpoint: The tensors.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint) -> None:
        super().__init__(
            checkpoint.path,
            config=checkpoint.config,
            stored_names=checkpoint.names,
            files=safetensors_files(checkpoint),
        )
        self.checkpoint = checkpoint
        packed = compressed_tensors.PACKED
        self.names = frozenset(checkpoint.names) | {
            name.removesuffix(packed) + WEIGHT for name in checkpoint.names if name.endswith(packed)
        }

    def raw(self, name: str) -> LogicalSource:
        """One stored tensor as it is, whatever its name means."""
        return TensorSource(self.checkpoint, name)

    def tensor(self, name: str) -> LogicalSource:
        """A tensor with its quantization applied; see `TensorStore`."""
        missing = self.missing_parts(name)
        if missing:
            raise CheckpointError(
                f"tensors are missing ({len(missing)}): {', '.join(missing)}",
                path=self.path,
                tensors=missing,
            )
        prefix = self._prefix(name)
        if prefix is None:
            return self.raw(name)
        if compressed_tensors.is_nvfp4(self.checkpoint, prefix):
            return compressed_tensors.nvfp4_source(self.checkpoint, prefix)
        if modelopt.is_nvfp4(self.checkpoint, prefix):
            return modelopt.nvfp4_source(self.checkpoint, prefix)
        if self.checkpoint.info(name).dtype != FP8:
            return self.raw(name)
        if modelopt.is_tiled_fp8(self.checkpoint, prefix):
            return modelopt.tiled_fp8_source(self.checkpoint, prefix)
        if modelopt.is_fp8(self.checkpoint, prefix):
            return modelopt.fp8_source(self.checkpoint, prefix)
        return compressed_tensors.fp8_source(self.checkpoint, prefix)

    def missing_parts(self, name: str) -> tuple[str, ...]:
        """Tensors without which `tensor` could not apply the quantization; see `TensorStore`."""
        prefix = self._prefix(name)
        if prefix is not None:
            if compressed_tensors.is_nvfp4(self.checkpoint, prefix):
                return self._absent(prefix, ("weight_scale", "weight_global_scale"))
            if modelopt.is_nvfp4(self.checkpoint, prefix):
                return self._absent(prefix, ("weight", "weight_scale", "weight_scale_2"))
            if name in self.checkpoint and self.checkpoint.info(name).dtype == FP8:
                if modelopt.is_tiled_fp8(self.checkpoint, prefix):
                    return ()
                return self._absent(prefix, ("weight_scale",))
        return super().missing_parts(name)

    def _absent(self, prefix: str, parts: tuple[str, ...]) -> tuple[str, ...]:
        names = (f"{prefix}.{part}" for part in parts)
        return tuple(name for name in names if name not in self.checkpoint)

    def _prefix(self, name: str) -> str | None:
        """What the tensors of a matrix begin with; None for what cannot be quantized."""
        if not name.endswith(WEIGHT):
            return None
        prefix = name.removesuffix(WEIGHT)
        if prefix + TRELLIS in self.checkpoint:
            raise CheckpointError(
                f"tensor {prefix + TRELLIS!r} is of an exllamav3 checkpoint, which cannot be "
                "imported: its state has the oldest bit on top, ours the lowest, and its values "
                "are rounded in float16, so the same bits mean other numbers",
                path=self.path,
                tensors=(prefix + TRELLIS,),
                hint="quantize the original checkpoint with ninfer-quant exl3",
            )
        return prefix


def safetensors_files(checkpoint: SafetensorsCheckpoint) -> tuple[Path, ...]:
    """The files of a checkpoint: configuration, index, shards."""
    path = checkpoint.path
    folder = path if path.is_dir() else path.parent
    index = path if path.suffix == ".json" else folder / INDEX_NAME
    shards = sorted({checkpoint.info(name).file for name in checkpoint.names})
    beside = [folder / CONFIG_NAME]
    if path.is_dir() or path == index:
        beside.append(index)
    return (*(file for file in beside if file.exists()), *shards)
