from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "packages" / "ninfer-format" / "README.md"


def test_the_example_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    names = runpy.run_path("example.py")
    assert names["values"].shape == (256, 512)
    assert names["values"].dtype == "float32"
    assert (tmp_path / "model.ninfer").is_file()
