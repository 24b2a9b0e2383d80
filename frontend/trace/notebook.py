"""What a notebook shows of a state: one line of figures and the text, what was generated apart from what was written.

Static: no script, no style sheet, colours that suit light and dark surroundings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..calls import CallRecord
from . import wording
from .markup import html_text

HTML_REPR_VARIABLE = "RAMET_HTML_REPR"
"""Set to 0, states are shown in notebooks by their plain repr."""

_MAX_CHARS = 20_000
_GENERATED = "background:rgba(231,154,40,.22);border-radius:3px"
_FAILED = "color:#d0442f"


def is_html_repr_wanted() -> bool:
    """The one place where the environment is asked."""
    return os.environ.get(HTML_REPR_VARIABLE, "1").strip().lower() not in ("0", "off", "false", "no")


def state_html(
    title: str, status: str, records: Sequence[CallRecord], spans: Sequence[tuple[str, bool]], error: str | None
) -> str:
    """A small piece of HTML.

    Args:
        spans: the text in pieces, and whether each was generated.
        error: what went wrong, if anything did.
    """
    head = f"<b>{html_text(title)}</b> · {html_text(status)} · {html_text(_figures(records))}"
    told = "" if error is None else f'<div style="{_FAILED}">{html_text(error)}</div>'
    return (
        '<div style="font:13px/1.5 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);border-radius:6px;'
        f'padding:8px 12px;max-width:960px"><div style="opacity:.8">{head}</div>{told}'
        '<pre style="white-space:pre-wrap;overflow-wrap:anywhere;margin:6px 0 0;max-height:360px;overflow:auto">'
        f"{_text(spans)}</pre></div>"
    )


def _text(spans: Sequence[tuple[str, bool]]) -> str:
    """The end of a text that is too long for a cell of a notebook."""
    shown: list[str] = []
    num_left = _MAX_CHARS
    for text, is_generated in reversed(spans):
        if num_left <= 0:
            break
        escaped = html_text(text[-num_left:])
        shown.append(f'<span style="{_GENERATED}">{escaped}</span>' if is_generated and escaped else escaped)
        num_left -= len(text)
    return ("…" if num_left < 0 else "") + "".join(reversed(shown))


def _figures(records: Sequence[CallRecord]) -> str:
    calls = [record for record in records if record.kind in ("gen", "select")]
    metas = [record.meta for record in calls if record.meta is not None]
    num_prompt = sum(meta.num_prompt_tokens for meta in metas)
    num_cached = sum(meta.num_cached_tokens for meta in metas)
    done = wording.counted(len(calls), "call")
    if len(metas) < len(calls):
        done = f"{len(metas)} of {done}"
    share = wording.percent(wording.cached_share(num_cached, num_prompt))
    return f"{done} · {num_prompt:,} prompt tokens, {share} cached" if metas else done
