"""API keys as they are given to a server: which part is a name, and which the secret."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidConfigError

MIN_NAMED_KEY_CHARS = 8
"""What follows NAME= is at least so long: no padding at the end of a secret is ever taken for a key."""

NamedKeys = list[tuple[str, str]]


def named_keys(api_keys: Sequence[str], admin_api_keys: Sequence[str]) -> tuple[NamedKeys, NamedKeys]:
    """The names and keys of both kinds; those without a name are called by their place.

    Raises:
        InvalidConfigError: a key is given twice, two have one name, or it is not clear what is the key.
    """
    plain = [named_key(given, f"key-{idx + 1}") for idx, given in enumerate(api_keys)]
    admins = [named_key(given, f"admin-{idx + 1}") for idx, given in enumerate(admin_api_keys)]
    names, keys = zip(*plain, *admins, strict=True) if plain or admins else ((), ())
    if len(set(keys)) < len(keys):
        raise InvalidConfigError("an API key is given twice: each tenant needs a key of its own")
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfigError(f"two API keys are called {name!r}: names tell tenants apart")
    return plain, admins


def named_key(given: str, usual_name: str) -> tuple[str, str]:
    """The name and the key of "NAME=KEY", or the usual name and all of it.

    A name is an identifier. Where nothing but "=" follows it, as at the end of base64, all of it is the key.

    Raises:
        InvalidConfigError: something does follow, and is too short to be meant as a key for certain.
    """
    name, _, key = given.partition("=")
    if not name.isidentifier() or not key.strip("="):
        return usual_name, given
    if len(key) < MIN_NAMED_KEY_CHARS:
        raise InvalidConfigError(
            f"{usual_name} has {len(key)} characters after its first '=': of NAME=KEY the KEY must have at least "
            f"{MIN_NAMED_KEY_CHARS}; write NAME= before a key that has a '=' in it"
        )
    return name, key
