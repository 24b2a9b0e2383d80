"""API keys as they are given to a server: which part is a name, and which the secret."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...counted import counted
from ..errors import InvalidConfigError

MIN_KEY_CHARS = 8
"""A shorter key is guessed; and no padding at the end of a secret, after its first "=", is so long."""
_ADVICE = "; write NAME= before a key that has a '=' in it"
_NAME = re.compile(r"[\w.-]+")

NamedKeys = list[tuple[str, str]]


def named_keys(api_keys: Sequence[str], admin_api_keys: Sequence[str]) -> tuple[NamedKeys, NamedKeys]:
    """The names and keys of both kinds; those without a name are called by their place.

    Raises:
        InvalidConfigError: a key is given twice or is too short, two have one name, or it is not clear what is the key.
    """
    plain = checked_keys("api_keys", api_keys, "key")
    admins = checked_keys("admin_api_keys", admin_api_keys, "admin")
    names, keys = zip(*plain, *admins, strict=True) if plain or admins else ((), ())
    if len(set(keys)) < len(keys):
        raise InvalidConfigError("an API key is given twice: each tenant needs a key of its own")
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfigError(f"two API keys are called {name!r}: names tell tenants apart")
    return plain, admins


def checked_keys(option: str, given: Sequence[str], kind: str) -> NamedKeys:
    """The names and keys of one option; those without a name are called by their place, such as "key-1".

    Raises:
        InvalidConfigError: as of `named_key`, after the name of the option.
    """
    named: NamedKeys = []
    for idx, text in enumerate(given):
        try:
            named.append(named_key(text, f"{kind}-{idx + 1}"))
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{option}: {error}") from None
    return named


def named_key(given: str, usual_name: str) -> tuple[str, str]:
    """The name and the key of "NAME=KEY", or the usual name and all of it.

    A name has letters, digits, "_", "-" and ".". Where nothing but "=" follows the first "=", as at the end of base64,
    all of it is the key.

    Raises:
        InvalidConfigError: the key is too short or fits into no header, or what is before a "=" is no name. The message
            has nothing of either.
    """
    name, _, key = given.partition("=")
    is_named = bool(key.strip("="))
    if is_named and not _NAME.fullmatch(name):
        raise InvalidConfigError(
            f"what {usual_name} has before its first '=' is no name: of NAME=KEY the NAME has letters, digits, '-', "
            f"'_' and '.' only{_ADVICE}"
        )
    if not is_named:
        name, key = usual_name, given
    if len(key) < MIN_KEY_CHARS:
        where, advice = (" after its first '='", _ADVICE) if is_named else ("", "")
        raise InvalidConfigError(
            f"{usual_name} has {counted(len(key), 'character')}{where}, and a KEY, alone or in NAME=KEY, must have at "
            f"least {MIN_KEY_CHARS}{advice}"
        )
    if key != key.strip() or not key.isprintable():
        raise InvalidConfigError(
            f"{usual_name} begins or ends with a space, or has a character that cannot be seen, which no header carries"
        )
    return name, key
