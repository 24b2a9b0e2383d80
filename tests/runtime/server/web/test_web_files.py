"""The files of the page: what they are served with, and that they need nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx2
import pytest

from ramet.runtime.server.web.files import MEDIA_TYPES, web_files

SINKS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "setAttribute('style'",
)
PAGES = {"index.html": "/", "docs.html": "/docs"}


class Links(HTMLParser):
    """What a page loads and leads to, and what it has inline."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.labelled: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._is_script = tag == "script"
        self.inline += [name for name in values if name.startswith("on") or name == "style"]
        self.found += [value for name in ("href", "src") if (value := values.get(name))]
        self.ids += [value for name in ("id",) if (value := values.get(name))]
        self.labelled += [value for name in ("for", "aria-controls", "aria-labelledby") if (value := values.get(name))]

    def handle_data(self, data: str) -> None:
        if self._is_script and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def http(site: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=site) as client:
        yield client


@pytest.mark.parametrize("name", sorted(web_files()))
def test_every_file_is_served_and_kept_by_the_browser(http: httpx2.Client, name: str) -> None:
    path = PAGES.get(name, f"/assets/{name}")
    answer = http.get(path)
    assert answer.status_code == 200
    assert answer.content == web_files()[name].content
    assert answer.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    again = http.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get(path, headers={"if-none-match": '"old"'}).status_code == 200
    head = http.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])


def test_the_package_has_all_kinds_of_files() -> None:
    kinds = {name.rpartition(".")[2] for name in web_files()}
    assert kinds == set(MEDIA_TYPES)


@pytest.mark.parametrize(
    "path", ["/assets/files.py", "/assets/..%2fapp.py", "/assets/nothing.js", "/assets/", "/assets/a/b"]
)
def test_nothing_else_is_served(http: httpx2.Client, path: str) -> None:
    assert http.get(path).status_code == 404


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_nothing_inline_and_loads_from_here(name: str) -> None:
    links = Links(web_files()[name].content.decode())
    assert links.inline == []
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links.found)
    assert all(link.removeprefix("/assets/") in web_files() for link in links.found if link.startswith("/assets/"))
    assert len(links.ids) == len(set(links.ids))
    assert set(links.labelled) <= set(links.ids)


@pytest.mark.parametrize("name", sorted(name for name in web_files() if name.endswith((".js", ".css"))))
def test_scripts_and_styles_make_no_markup_and_know_no_other_place(name: str) -> None:
    text = web_files()[name].content.decode()
    assert [sink for sink in SINKS if sink in text] == []
    assert re.findall(r"https?://|@import|\burl\(", text) == []
    for imported in re.findall(r"from '([^']+)'", text):
        assert imported.startswith("./")
        assert imported.removeprefix("./") in web_files()
