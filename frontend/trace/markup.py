"""Text in HTML. Everything that a page shows of a run passes through here."""

from __future__ import annotations

import re
from html import escape

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def html_text(text: str) -> str:
    """For an element or a quoted attribute. What no page can hold, or nobody could see, is spelt out: a lone surrogate
    or a character that turns the direction of text becomes its escape, a control character its picture."""
    return escape(_INVISIBLE.sub(_spelt_out, text), quote=True)


def _spelt_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def tag(name: str, inner: str, css_class: str = "", **attributes: str | None) -> str:
    """An element around `inner`, which is HTML already. Attribute values are text; None leaves one out."""
    shown = [f' class="{css_class}"'] if css_class else []
    shown += [f' {key}="{html_text(value)}"' for key, value in attributes.items() if value is not None]
    return f"<{name}{''.join(shown)}>{inner}</{name}>"


def share_bar(num_cached: int, num_computed: int, num_generated: int) -> str:
    """A bar of three lengths; nothing where there is nothing to show."""
    total = num_cached + num_computed + num_generated
    if not total:
        return ""
    parts = (("cached", num_cached), ("computed", num_computed), ("generated", num_generated))
    inner = "".join(
        f'<i class="{name}" style="width:{100 * count / total:.2f}%"></i>' for name, count in parts if count
    )
    return f'<span class="share" aria-hidden="true">{inner}</span>'
