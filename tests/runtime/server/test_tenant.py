"""Who asks, and whose cache it is."""

from __future__ import annotations

import hmac
import secrets

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server.api_keys import MIN_NAMED_KEY_CHARS, named_key
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.tenant import Tenants


def tenants(*keys: str, admins: tuple[str, ...] = ()) -> Tenants:
    return Tenants(ServerConfig(api_keys=keys, admin_api_keys=admins))


def test_without_keys_everybody_is_one_tenant() -> None:
    anybody = tenants().find([])
    assert anybody.is_admin
    assert anybody.namespace() == CacheNamespace()


def test_each_key_has_a_namespace_that_does_not_show_it() -> None:
    found = tenants("alice=secret-one", "secret-two")
    alice, other = found.find(["secret-one"]), found.find(["no", "secret-two"])
    assert (alice.name, other.name) == ("alice", "key-2")
    assert alice.namespace() != other.namespace()
    assert "secret" not in alice.namespace().tenant
    assert tenants("secret-one").find(["secret-one"]).namespace() == alice.namespace()  # the same in every process


def test_a_salt_never_spells_another_tenant() -> None:
    found = tenants("one", "two")
    two = found.find(["two"]).namespace()
    assert found.find(["one"]).namespace(two.tenant) != two
    assert found.find(["one"]).namespace("a").to_bytes() != found.find(["one"]).namespace("b").to_bytes()


def test_the_bytes_of_namespaces_differ_where_their_texts_run_together() -> None:
    assert CacheNamespace("ab", "c").to_bytes() != CacheNamespace("a", "bc").to_bytes()


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return real(given, known)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = tenants("one", "two", "three")
    for key in ("one", "three"):
        compared.clear()
        found.find([key])
        assert compared == [b"one", b"two", b"three"]


@pytest.mark.parametrize("given", [[], [""], ["on"], ["one "], ["ONE"], ["\udcff"]])
def test_unknown_keys_are_401(given: list[str]) -> None:
    with pytest.raises(ApiError) as caught:
        tenants("one").find(given)
    assert caught.value.status == 401
    assert "one" not in caught.value.message


def test_the_only_key_is_an_admin_and_of_several_none() -> None:
    assert tenants("one").find(["one"]).is_admin
    assert not tenants("one", "two").find(["one"]).is_admin
    assert not tenants("one", admins=("boss",)).find(["one"]).is_admin
    assert tenants("one", admins=("boss",)).find(["boss"]).is_admin


def test_a_key_is_given_once() -> None:
    with pytest.raises(InvalidConfigError, match="twice"):
        tenants("a=key-one1", admins=("key-one1",))
    with pytest.raises(InvalidConfigError, match="'a'"):
        tenants("a=key-one1", "a=key-two2")


@pytest.mark.parametrize("salt", ["", "x" * 257, 7])
def test_bad_salts_are_refused(salt: object) -> None:
    with pytest.raises(ApiError, match="cache_salt"):
        tenants().find([]).namespace(salt)  # type: ignore[arg-type]


ALPHABETS = ("0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", "-_~.azAZ09")
MADE_KEYS = st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, min_size=1, max_size=40))
PADDED_KEYS = st.builds(lambda key, padding: key + "=" * padding, MADE_KEYS, st.integers(0, 3))


@given(PADDED_KEYS, st.none() | st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True))
@example("c2VjcmV0IQ==", None)
@example("c2VjcmV0IQ==", "alice")
def test_made_keys_are_taken_whole(key: str, name: str | None) -> None:
    assume(name is None or (len(key) >= MIN_NAMED_KEY_CHARS and key.strip("=")))
    called, whole = named_key(key if name is None else f"{name}={key}", "key-1")
    assert (called, whole) == (name or "key-1", key)


def test_a_padded_key_opens_the_server_and_its_padding_does_not() -> None:
    key = "c2VjcmV0IQ=="
    found = tenants(key)
    assert found.find([key]).name == "key-1"
    for wrong in ("=", "==", "c2VjcmV0IQ", "c2VjcmV0IQ=", secrets.token_hex()):
        with pytest.raises(ApiError):
            found.find([wrong])


def test_what_may_be_a_name_or_the_start_of_a_secret_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidConfigError, match="key-1 has 6 characters after") as caught:
        tenants("hunter=secret")
    assert "hunter" not in str(caught.value)
    assert tenants("key=hunter=secret").find(["hunter=secret"]).name == "key"
