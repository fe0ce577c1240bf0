"""A plan as a recipe file that a person can read and edit."""

from __future__ import annotations

import json

from ninfer_quant.quality.bit_plan import BitPlan, PlannedObject

_HEAD = '''"""{title}

Every entry of ASSIGNMENTS is one object: format, method, what the method is told, and its
parameters; above it stand its bits per weight and relative squared error. Change a format and look
at the size with

    ninfer-convert --model DIR --recipe THIS_FILE --plan
"""

PLAIN = {{}}
CALIBRATED = {calibrated}

ASSIGNMENTS = [
'''
_TAIL = ''']


def configure(model, recipe, sources):
    """Assign every matrix; all else keeps its direct format."""
    for format, method, parameters, names in ASSIGNMENTS:
        recipe.assign(names, format=format, method=method, parameters=parameters)
'''


def recipe_text(plan: BitPlan, target_bpw: float) -> str:
    """The recipe of a plan as Python text."""
    title = (
        f"{plan.model} in {plan.bits_per_weight:.4f} bits per weight (target {target_bpw:g}), "
        "planned by ninfer-quant."
    )
    told = next((item.chosen.parameters for item in plan.objects if item.chosen.parameters), {})
    # The name comes out of a file and must not end the text that it stands in.
    head = _HEAD.format(title=_harmless(title), calibrated=json.dumps(told, ensure_ascii=True))
    return head + "".join(map(_lines, plan.objects)) + _TAIL


def _lines(item: PlannedObject) -> str:
    chosen = item.chosen
    N, K = item.sensitivity.shape
    told = "CALIBRATED" if chosen.parameters else "PLAIN"
    names = "".join(
        f"            {json.dumps(name, ensure_ascii=True)},\n"
        for name in item.sensitivity.parameters
    )
    return (
        f"    # {8 * chosen.num_bytes / (N * K):.3f} bits, error {chosen.error:.3g}\n"
        f'    (\n        "{chosen.format}",\n        "{chosen.method}",\n        {told},\n'
        f"        [\n{names}        ],\n    ),\n"
    )


def _harmless(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
