from __future__ import annotations

import subprocess
import sys

import pytest

import ninfer_format


def test_every_public_name_can_be_imported() -> None:
    assert list(ninfer_format.__all__) == sorted(ninfer_format.__all__)
    for name in ninfer_format.__all__:
        assert getattr(ninfer_format, name) is not None


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ninfer_format.nothing


@pytest.mark.parametrize("module", ["ninfer_format", "ninfer_format.errors", "ninfer_format.cli"])
def test_importing_a_command_does_not_wait_for_numpy(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "print([name for name in ('numpy', 'ml_dtypes') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"
