"""Which web pages may talk to the server."""

from __future__ import annotations

import httpx2
import pytest

from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.origins import HostCheck, is_loopback

from .conftest import Serve

HERE = ["localhost", "LOCALHOST.", "app.localhost", "127.0.0.1", "127.9.9.9", "::1"]
ELSEWHERE = ["", "example.com", "localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "0.0.0.0", "::"]


@pytest.mark.parametrize("host", HERE)
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_names(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:80", "here.example:1"])
def test_hosts_that_are_answered(host: str) -> None:
    config = ServerConfig(allowed_origins=("http://here.example:3000",))
    HostCheck(config).check([(b"host", host.encode())], is_only_looking=False)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost@evil.example", "[", ""])
def test_a_page_of_another_name_is_turned_away_where_no_key_is_asked_for(host: str) -> None:
    headers = [(b"host", host.encode())]
    with pytest.raises(ApiError) as caught:
        HostCheck(ServerConfig()).check(headers, is_only_looking=True)
    assert caught.value.status == 403
    HostCheck(ServerConfig(api_keys=("key-of-one",))).check(headers, is_only_looking=False)
    HostCheck(ServerConfig(host="0.0.0.0")).check(headers, is_only_looking=False)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("*", "*"),
        ("https://Good.Example", "https://good.example"),
        ("http://good.example:80", "http://good.example"),
        ("http://good.example:443", "http://good.example:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abc", "chrome-extension://abc"),
    ],
)
def test_origins_are_kept_as_browsers_send_them(given: str, kept: str) -> None:
    assert ServerConfig(allowed_origins=(given,)).allowed_origins == (kept,)


@pytest.mark.parametrize(
    "given",
    [
        "foo",
        "localhost:3000",
        "http://",
        "http://a/",
        "http://a/b",
        "http://u@a",
        "http://a b",
        "//a",
        "null",
        "http://*.a",
    ],
)
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"allowed_origins='.*' must be scheme://host"):
        ServerConfig(allowed_origins=(given,))


@pytest.mark.model
def test_only_the_origins_that_were_named_may_read_answers(serve: Serve) -> None:
    server = serve(allowed_origins=("http://good.example",))
    with httpx2.Client(base_url=server.url) as client:
        for origin, is_allowed in (("http://good.example", True), ("http://evil.example", False)):
            preflight = client.options("/v1/models", headers={"origin": origin, "access-control-request-method": "GET"})
            answer = client.get("/v1/models", headers={"origin": origin})
            for each in (preflight, answer):
                assert (each.headers.get("access-control-allow-origin") == origin) == is_allowed
            assert answer.status_code == 200


@pytest.mark.model
def test_what_a_page_can_send_without_asking_is_not_taken(http: httpx2.Client) -> None:
    body = '{"model": "smollm2", "prompt": "Hi", "max_tokens": 1}'
    answer = http.post("/v1/completions", content=body, headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert http.post("/v1/models", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("is_only_looking", "origin", "is_refused"),
    [
        (False, "http://evil.example", True),
        (False, "null", True),
        (False, "http://[", True),
        (False, "http://here.example:4000", True),  # another server of that machine
        (True, "http://evil.example", False),
        (False, "http://here.example:3000", False),
    ],
)
def test_another_sites_page_may_only_look(is_only_looking: bool, origin: str, is_refused: bool) -> None:
    check = HostCheck(ServerConfig(allowed_origins=("http://here.example:3000",))).check
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site"), (b"origin", origin.encode())]
    if is_refused:
        with pytest.raises(ApiError, match="may not use this server"):
            check(headers, is_only_looking=is_only_looking)
    else:
        check(headers, is_only_looking=is_only_looking)


def test_all_pages_may_be_allowed() -> None:
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site"), (b"origin", b"http://any.example")]
    HostCheck(ServerConfig(allowed_origins=("*",))).check(headers, is_only_looking=False)


@pytest.mark.model
@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request"])
def test_looking_changes_nothing(http: httpx2.Client, path: str) -> None:
    assert http.get(path).status_code == 405


@pytest.mark.model
def test_another_sites_page_starts_no_profile(http: httpx2.Client) -> None:
    assert http.get("/start_profile", headers={"sec-fetch-site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("site", [None, "cross-site", "same-site", "same-origin", "none"])
@pytest.mark.parametrize(
    ("origin", "is_refused"),
    [
        ("http://evil.example", True),
        ("null", True),
        ("http://localhost:3000", True),  # another server of this machine
        ("http://localhost:8000", False),
        ("http://here.example:3000", False),
    ],
)
def test_where_a_page_is_from_counts_whatever_else_its_browser_says(
    site: str | None, origin: str, is_refused: bool
) -> None:
    check = HostCheck(ServerConfig(allowed_origins=("http://here.example:3000",))).check
    headers = [(b"host", b"localhost:8000"), (b"origin", origin.encode())]
    if site is not None:
        headers.append((b"sec-fetch-site", site.encode()))
    check(headers, is_only_looking=True)
    if is_refused:
        with pytest.raises(ApiError, match="may not use this server"):
            check(headers, is_only_looking=False)
    else:
        check(headers, is_only_looking=False)


@pytest.mark.parametrize(("site", "is_refused"), [("cross-site", True), ("same-site", True), ("same-origin", False)])
def test_what_has_no_origin_is_from_where_its_browser_says(site: str, is_refused: bool) -> None:
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", site.encode())]
    if is_refused:
        with pytest.raises(ApiError, match="a page of another site"):
            HostCheck(ServerConfig()).check(headers, is_only_looking=False)
    else:
        HostCheck(ServerConfig()).check(headers, is_only_looking=False)


@pytest.mark.model
def test_another_sites_page_flushes_no_cache(http: httpx2.Client) -> None:
    refused = http.post("/flush_cache", headers={"origin": "http://evil.example"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
    own = str(http.base_url).rstrip("/")
    assert http.post("/flush_cache", headers={"origin": own}).status_code == 200
