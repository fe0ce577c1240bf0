from __future__ import annotations

import re
from typing import Any


def test_links_between_the_pages_lead_somewhere(pages: Any) -> None:
    for path in pages.paths:
        prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)]+)\)", prose):
            file, _, anchor = target.partition("#")
            linked = path.parent / file if file else path
            assert linked.exists(), f"{path.name} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
                anchors = {heading.lower().replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{path.name} links to {target}"
    linked_pages = set(re.findall(r"\]\((\w+\.md)", pages.text("README")))
    assert {path.name for path in pages.paths} == linked_pages | {"README.md"}
