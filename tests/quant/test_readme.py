from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from ninfer_format import open_artifact
from ninfer_format.verification.conversion_report import report_path

README = Path(__file__).resolve().parents[2] / "packages" / "ninfer-quant" / "README.md"


def test_the_recipe_of_the_readme_works(convert: Callable[..., Path], tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    recipe = tmp_path / "mine.py"
    recipe.write_text(code, encoding="utf-8")
    output = convert(tmp_path / "mine.ninfer", str(recipe), components=("text",))
    with open_artifact(output) as artifact:
        parts = artifact.directory.bindings["text/layers/0/mlp/down"].parts
        assert len(parts) == 2
    report = json.loads(report_path(output).read_text("utf-8"))
    assert report["warnings"] == []
    statistics = {(item["parameter"], *(item["rows"] or ())): item for item in report["statistics"]}
    exact = statistics["text/layers/0/mlp/down", 0, 128]
    rest = statistics["text/layers/0/mlp/down", 128, 256]
    assert (exact["format"], exact["method"], exact["layout"], exact["max_abs_error"]) == (
        "bf16",
        "cast_direct",
        "contiguous_le_v1",
        0,
    )
    assert (rest["format"], rest["method"], rest["layout"]) == (
        "q6_g64_fp16",
        "grouped_absmax",
        "row_split_k128_v1",
    )
    assert 0.02 < rest["relative_frobenius"] < 0.03
