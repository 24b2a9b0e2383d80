"""Looks and behaviour of the page, which lie beside this module and become part of every page."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def page_asset(name: str) -> str:
    """The text of page.css or page.js."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
