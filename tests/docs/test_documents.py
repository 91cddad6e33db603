"""Every Python block of the documents runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[object]:
    found = []
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text()):
            line = page.read_text()[: block.start()].count("\n") + 2
            found.append(pytest.param(block.group(1), id=f"{page.name}:{line}"))
    return found


@pytest.mark.parametrize("code", blocks())
def test_the_code_block_runs(code: str) -> None:
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})


def test_the_first_page_has_code_to_run() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
