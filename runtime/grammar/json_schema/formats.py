"""The formats that are asserted, as patterns. Each describes valid texts only; rare spellings are left out.

Draft 2020-12 lets a `format` be a mere annotation. A model that is asked for a date should write one: so it is
enforced.
"""

from __future__ import annotations

from ..errors import UnsupportedSchemaError
from .ecma_parser import parse_search_pattern
from .text_pattern import TextPattern

# Year 0000 is left out: most parsers know none.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# A letter first in the last label, which therefore is no number; labels with "--" at 3 are for encoded names only.
_PLAIN_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9]{0,30}(?:-[A-Za-z0-9]{1,15}){0,2})"
_HOST = f"(?:{_PLAIN_LABEL}\\.){{0,3}}[A-Za-z](?:[A-Za-z0-9]{{0,30}}(?:-[A-Za-z0-9]{{1,15}}){{0,2}})"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)),
        f":(?::{_GROUP}){{1,7}}",
        f"(?:{_GROUP}:){{1,7}}:",
        "::",
    ]
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]{1,16}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOST}"
_PATH = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%{_HEX}{{2}})*"
_QUERY = rf"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%{_HEX}{{2}})*"
_NUMBER = "[0-9]{1,9}"
_CLOCK = f"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_CALENDAR = f"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"

_SOURCES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"(?:{_DATE})T{_TIME}",
    "duration": f"P(?:{_NUMBER}W|{_CALENDAR}(?:{_CLOCK})?|{_CLOCK})",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri": rf"[A-Za-z][A-Za-z0-9+\-.]{{0,15}}:(?://(?:{_HOST}|{_IPV4})(?::[0-9]{{1,5}})?(?:/{_PATH})?)"
    rf"(?:\?{_QUERY})?(?:#{_QUERY})?",
}
FORMATS = tuple(sorted(_SOURCES))


def format_pattern(name: object, pointer: str) -> TextPattern:
    """The texts of a format.

    Raises:
        UnsupportedSchemaError: it is not one of FORMATS.
    """
    source = _SOURCES.get(name) if isinstance(name, str) else None
    if source is None:
        raise UnsupportedSchemaError(
            pointer, "format", f"{name!r} is not a format that can be enforced; these can: {', '.join(FORMATS)}"
        )
    return parse_search_pattern(f"^(?:{source})$")
