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
    HostCheck(ServerConfig(allowed_origins=("http://here.example:3000",))).check("POST", [(b"host", host.encode())])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost@evil.example", "[", ""])
def test_a_page_of_another_name_is_turned_away_where_no_key_is_asked_for(host: str) -> None:
    with pytest.raises(ApiError) as caught:
        HostCheck(ServerConfig()).check("POST", [(b"host", host.encode())])
    assert caught.value.status == 403
    HostCheck(ServerConfig(api_keys=("one",))).check("POST", [(b"host", host.encode())])
    HostCheck(ServerConfig(host="0.0.0.0")).check("POST", [(b"host", host.encode())])


@pytest.mark.model
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
    ("method", "origin", "is_refused"),
    [
        ("POST", "http://evil.example", True),
        ("DELETE", "null", True),
        ("GET", "http://evil.example", False),
        ("POST", "http://here.example:3000", False),
    ],
)
def test_another_sites_page_may_only_look(method: str, origin: str, is_refused: bool) -> None:
    check = HostCheck(ServerConfig(allowed_origins=("http://here.example:3000",))).check
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site"), (b"origin", origin.encode())]
    if is_refused:
        with pytest.raises(ApiError, match="may not use this server"):
            check(method, headers)
    else:
        check(method, headers)


@pytest.mark.model
@pytest.mark.parametrize("path", ["/flush_cache", "/abort_request"])
def test_looking_changes_nothing(http: httpx2.Client, path: str) -> None:
    assert http.get(path).status_code == 405


@pytest.mark.model
def test_another_sites_page_starts_no_profile(http: httpx2.Client) -> None:
    assert http.get("/start_profile", headers={"sec-fetch-site": "cross-site"}).status_code == 403
