"""Who asks, and whose cache it is."""

from __future__ import annotations

import hmac

import pytest

from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.errors import InvalidConfigError
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
        tenants("a=one", admins=("one",))
    with pytest.raises(InvalidConfigError, match="'a'"):
        tenants("a=one", "a=two")


@pytest.mark.parametrize("salt", ["", "x" * 257, 7])
def test_bad_salts_are_refused(salt: object) -> None:
    with pytest.raises(ApiError, match="cache_salt"):
        tenants().find([]).namespace(salt)  # type: ignore[arg-type]
