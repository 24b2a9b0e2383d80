"""The live view in a browser, over a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.server.listener import BackgroundServer

from .browser import Browser, Page

pytestmark = pytest.mark.model


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens pages, which let go of their server at the end."""
    pages: list[Page] = []

    def open_one(url: str) -> Page:
        pages.append(browser.page(url))
        return pages[-1]

    yield open_one
    for page in pages:
        page.leave()


def test_the_engine_is_drawn_as_it_works(
    serve: Callable[..., BackgroundServer], smollm2: LLM, open_page: Callable[[str], Page]
) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"> "
    handles = [
        smollm2.submit(hostile * 8 + str(idx), SamplingParams(max_tokens=200, ignore_eos=True)) for idx in range(3)
    ]
    page = open_page(f"{serve().url}/#live")
    page.wait("document.querySelectorAll('.sequences .tag').length === 3")
    page.wait("document.querySelector('.nodes').textContent.includes('onerror')")
    page.wait("/Step \\d+: .* decoded/.test(document.body.textContent)")
    page.wait("document.querySelector('.node i.locked')")
    pixels = "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
    drawn = f"{pixels}.some((value, idx) => idx % 4 === 3 && value)"
    assert page.evaluate(f"[...document.querySelectorAll('canvas')].map((canvas) => {drawn})") == [True] * 5
    page.evaluate("document.querySelectorAll('.as-table').forEach((table) => { table.open = true; })")
    page.wait("document.querySelectorAll('.as-table tbody tr').length > 3")
    for handle in handles:
        handle.abort()
    page.wait("document.body.textContent.includes('Nothing runs and nothing waits')")
    page.wait("document.querySelectorAll('.nodes .node').length > 2")
    page.evaluate("document.querySelector('.nodes .node').focus()")
    page.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.idx") == "1"
    for width in (320, 1600):
        page.resize(width, 900)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "ramet"
    assert page.complaints == []


def test_without_an_admin_key_it_says_what_is_needed(
    serve: Callable[..., BackgroundServer], open_page: Callable[[str], Page]
) -> None:
    url = serve(api_keys=("alice=alice-key",), admin_api_keys=("root=roots-key",)).url
    page = open_page(f"{url}/#live")
    page.wait("document.querySelector('.needs-key')")
    page.evaluate("import('/assets/api.js').then((m) => m.apiKey.set('alice-key'))")
    page.wait("document.querySelector('.needs-key')?.innerText.includes('admin keys only')")
    page.click(".needs-key .primary")
    page.evaluate("document.getElementById('key').value = ''")
    page.type("roots-key", "#key")
    page.press("Enter")
    page.wait("document.querySelector('.figures-row b')?.textContent === 'idle'")
