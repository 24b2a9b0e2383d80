"""Documents lead where they say: links, headings of other documents, and files of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("ramet", "frontend", "kernels", "radix", "runtime", "tests", "benchmarks", "examples", "requirements")
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md") for path in ROOT.glob(pattern))
FILES = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()} | {
    path.relative_to(ROOT).as_posix() for path in DOCUMENTS
}


def prose(document: Path) -> str:
    """Without what stands in fences."""
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sources_that_are_named_are_there(document: Path) -> None:
    """Sources, also by the end of their path."""
    named = re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|pyi|sh|h|cpp|js|css|proto))`", prose(document))
    known = {f"/{path}" for path in FILES}
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


def test_nothing_is_installed_from_an_index_that_has_no_ramet() -> None:
    """Extras are the checkout's: `pip install '.[server]'`."""
    wrong = re.compile(r"pip install [^#;\n`]*[ '\"]ramet(?!'s)\b")
    texts = DOCUMENTS + sorted(path for room in ROOMS[:5] for path in (ROOT / room).rglob("*.py"))
    assert [path for path in texts if wrong.search(path.read_text("utf-8"))] == []
