from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ninfer_format import open_artifact

README = Path(__file__).resolve().parents[2] / "packages" / "ninfer-quant" / "README.md"


def test_the_recipe_of_the_readme_works(convert: Callable[..., Path], tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    recipe = tmp_path / "mine.py"
    recipe.write_text(code, encoding="utf-8")
    output = convert(tmp_path / "mine.ninfer", str(recipe), components=("text",))
    with open_artifact(output) as artifact:
        parts = artifact.directory.bindings["text/layers/0/mlp/down"].parts
        assert len(parts) == 2
