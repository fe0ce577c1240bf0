"""Preprocessor configurations of images and videos: what the runtime's pixel pipeline can do."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from ninfer_quant.resources.json_file import Change, ResourceFile, dump_json

_BICUBIC = 3


def normalise_preprocessor(
    file: ResourceFile, vision_config: Mapping[str, Any]
) -> tuple[bytes, list[Change]]:
    """Check a preprocessor configuration and drop its nulls.

    Args:
        file: ``preprocessor_config.json`` or ``video_preprocessor_config.json``.
        vision_config: Configuration of the vision component.

    Returns:
        The bytes to store, and what was changed.

    Raises:
        ConversionError: A value would need another pipeline or contradicts the vision tower.
    """
    given = file.parse()
    config = {key: value for key, value in given.items() if value is not None}
    _check_geometry(file, config, vision_config)
    _check_pixels(file, config)
    _check_sampling(file, config)
    if config == given:
        return file.data, []
    return dump_json(config), [Change(f"{file.role}: removed nulls")]


def _check_geometry(
    file: ResourceFile, config: Mapping[str, Any], vision_config: Mapping[str, Any]
) -> None:
    file.require(config, "patch_size", vision_config["patch_size"])
    file.require(config, "temporal_patch_size", vision_config["temporal_patch_size"])
    file.require(config, "merge_size", vision_config["spatial_merge_size"])
    size = config.get("size")
    if not isinstance(size, dict):
        file.refuse("size", size, "an object")
    for key in ("shortest_edge", "longest_edge"):
        if not _is_positive_integer(size.get(key)):
            file.refuse(f"size.{key}", size.get(key), "a positive number of pixels")
    if size["shortest_edge"] > size["longest_edge"]:
        file.refuse("size", size, "shortest_edge <= longest_edge")


def _check_pixels(file: ResourceFile, config: Mapping[str, Any]) -> None:
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if key in config:
            file.require(config, key, True)
    if "resample" in config:
        file.require(config, "resample", _BICUBIC)
    for key in ("image_mean", "image_std"):
        if config.get(key) != [0.5, 0.5, 0.5]:
            file.refuse(key, config.get(key), "[0.5, 0.5, 0.5]")
    factor = config.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or not isclose(factor, 1 / 255, rel_tol=1e-6):
        file.refuse("rescale_factor", factor, "1/255")


def _check_sampling(file: ResourceFile, config: Mapping[str, Any]) -> None:
    """How a video is sampled; each value may be absent, which means the family's default."""
    fps = config.get("fps", 2)
    if isinstance(fps, bool) or not isinstance(fps, int | float) or fps <= 0:
        file.refuse("fps", fps, "a positive number")
    frames = [config.get("min_frames", 4), config.get("max_frames", 768)]
    if not all(_is_positive_integer(value) for value in frames) or frames[0] > frames[1]:
        file.refuse("min_frames, max_frames", frames, "positive integers in order")


def _is_positive_integer(value: object) -> bool:
    return type(value) is int and value > 0
