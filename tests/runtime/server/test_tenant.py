"""Who asks, and whose cache it is."""

from __future__ import annotations

import hmac
import secrets

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server.api_keys import MIN_KEY_CHARS, named_key
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
    found = tenants("key-one!", "key-two!")
    two = found.find(["key-two!"]).namespace()
    assert found.find(["key-one!"]).namespace(two.tenant) != two
    assert found.find(["key-one!"]).namespace("a").to_bytes() != found.find(["key-one!"]).namespace("b").to_bytes()


def test_the_bytes_of_namespaces_differ_where_their_texts_run_together() -> None:
    assert CacheNamespace("ab", "c").to_bytes() != CacheNamespace("a", "bc").to_bytes()


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def compare(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return real(given, known)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = tenants("key-one!", "key-two!", "key-three")
    for key in ("key-one!", "key-three"):
        compared.clear()
        found.find([key])
        assert compared == [b"key-one!", b"key-two!", b"key-three"]


@pytest.mark.parametrize("given", [[], [""], ["key-one"], ["key-one! "], ["KEY-ONE!"], ["\udcff"]])
def test_unknown_keys_are_401(given: list[str]) -> None:
    with pytest.raises(ApiError) as caught:
        tenants("key-one!").find(given)
    assert caught.value.status == 401
    assert "key-one!" not in caught.value.message


def test_the_only_key_is_an_admin_and_of_several_none() -> None:
    assert tenants("key-one!").find(["key-one!"]).is_admin
    assert not tenants("key-one!", "key-two!").find(["key-one!"]).is_admin
    assert not tenants("key-one!", admins=("key-boss",)).find(["key-one!"]).is_admin
    assert tenants("key-one!", admins=("key-boss",)).find(["key-boss"]).is_admin


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
MADE_KEYS = st.sampled_from(ALPHABETS).flatmap(lambda letters: st.text(letters, min_size=MIN_KEY_CHARS, max_size=40))
PADDED_KEYS = st.builds(lambda key, padding: key + "=" * padding, MADE_KEYS, st.integers(0, 3))


@given(PADDED_KEYS, st.none() | st.from_regex(r"[A-Za-z0-9_.-]{1,10}", fullmatch=True))
@example("c2VjcmV0IQ==", None)
@example("c2VjcmV0IQ==", "alice")
def test_made_keys_are_taken_whole(key: str, name: str | None) -> None:
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


@pytest.mark.parametrize("name", ["team-a", "team_a", "v1.2", "0", "équipe"])
def test_a_name_is_of_letters_digits_and_what_joins_them(name: str) -> None:
    assert tenants(f"{name}=SECRETKEY123").find(["SECRETKEY123"]).name == name


@pytest.mark.parametrize("name", ["team a", "a+b/c", "", "a:b", " a", "a\n"])
def test_what_is_no_name_is_no_part_of_a_key_either(name: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"^api_keys: what key-2 has before its first '=' is no name"
    ) as caught:
        tenants("a=SECRETKEY123", f"{name}=SECRETKEY456")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "text", [" SECRETKEY123", "SECRETKEY123 ", "a=SECRETKEY123\t", "SECRET\nKEY123", "SECRET\0KEY"]
)
def test_a_key_that_no_header_carries_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^api_keys: .* begins or ends with a space, or has") as caught:
        tenants(text)
    assert "SECRET" not in str(caught.value)
    assert tenants("SECRET KEY").find(["SECRET KEY"]).name == "key-1"


@pytest.mark.parametrize(("option", "usual_name"), [("api_keys", "key-1"), ("admin_api_keys", "admin-1")])
def test_a_short_key_is_refused_by_the_option_that_it_was_given_with(option: str, usual_name: str) -> None:
    for text, num_chars in (("short12", "7 characters"), ("x", "1 character,"), ("name=", "5 characters")):
        with pytest.raises(InvalidConfigError, match=f"^{option}: {usual_name} has {num_chars}"):
            ServerConfig(**{option: (text,)})  # type: ignore[arg-type]
    assert ServerConfig(**{option: ("eight888",)})  # type: ignore[arg-type]
