"""What a page shows of a call or a run once it is selected."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ..generation import TokenLogprob
from . import wording
from .markup import html_text, share_bar, tag
from .program_trace import CallTrace, ErrorTrace, ProgramTrace, TokenText
from .token_spans import TokenSpan, token_spans

_END_CHARS = 2000
_MAX_ALTERNATIVES = 8


class PromptBudget:
    """How many characters of prompts a page may still show in full. A page of a thousand long runs must open."""

    def __init__(self, num_chars: int) -> None:
        self._num_left = num_chars

    def allows(self, text: str) -> bool:
        """Take the text from what is left, if it fits."""
        if len(text) > self._num_left:
            return False
        self._num_left -= len(text)
        return True


def run_anchor(run_idx: int) -> str:
    return f"r{run_idx}"


def call_anchor(run_idx: int, call: CallTrace) -> str:
    return f"r{run_idx}c{call.call_id}"


def run_detail(run_idx: int, trace: ProgramTrace) -> str:
    """The panel of a run: arguments, error, messages, model."""
    facts = {"started": _date(trace.start_time), "took": wording.seconds(trace.duration_s), "run": trace.run_id}
    parts = [
        tag("h3", f"{_badge('run')} {html_text(trace.name)} {status_mark(trace.status)}"),
        tag("p", html_text(wording.summary(trace)), "muted"),
        _error(trace.error),
        _section("Arguments", _facts({name: _json(value) for name, value in trace.arguments.items()})),
        _section("Messages", "".join(_message(message) for message in trace.messages)),
        _section("Run", _facts(facts)),
        _section("Model", _facts({name: _json(value) for name, value in trace.model.items()})),
    ]
    return tag("article", "".join(parts), "detail", id=run_anchor(run_idx))


def _date(seconds: float) -> str:
    """As people write it; as it is, where no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s after 1970"


def call_detail(run_idx: int, trace: ProgramTrace, call: CallTrace, budget: PromptBudget) -> str:
    """The panel of a call."""
    where = [f"#{call.call_id}", call.source]
    if call.branch:
        where.append(f"branch {'.'.join(map(str, call.branch))}")
    name = "" if call.name is None else f" {html_text(call.name)}"
    parts = [
        tag("h3", f"{_badge(call.kind)}{name} {status_mark(call.status)}"),
        tag("p", html_text(" · ".join(where)), "muted"),
        _error(call.error),
        _tokens(call),
        _times(call),
        _output(trace, call),
        _choices(call),
        _prompt(trace, call, budget),
        _section("Parameters", _facts({key: _json(value) for key, value in call.params.items() if key != "choices"})),
    ]
    return tag("article", "".join(parts), "detail", id=call_anchor(run_idx, call))


def status_mark(status: str) -> str:
    """A word in the colour of what it means."""
    return "" if status == "done" else tag("span", html_text(status), f"status {status}")


def _badge(kind: str) -> str:
    return tag("span", kind, f"kind {kind}")


def _section(title: str, inner: str) -> str:
    return f"<h4>{title}</h4>{inner}" if inner else ""


def _facts(values: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>" if rows else ""


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _message(message: Mapping[str, object]) -> str:
    role, content = str(message.get("role", "")), message.get("content", "")
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    more = f"\n{_json(rest)}" if rest else ""
    return tag("div", f"<b>{html_text(role)}</b><pre>{html_text(_json(content) + more)}</pre>", "message")


def _error(error: ErrorTrace | None) -> str:
    if error is None:
        return ""
    where = f' <span class="muted">{html_text(error.source)}</span>' if error.source else ""
    causes = "".join(tag("li", html_text(cause)) for cause in error.causes)
    because = f"<ol>{causes}</ol>" if causes else ""
    return tag("div", f"<b>{html_text(error.type)}</b>{where}<pre>{html_text(error.message)}</pre>{because}", "error")


def _tokens(call: CallTrace) -> str:
    meta = call.meta
    if meta is None:
        return tag("p", f"prompt of {len(call.prompt_token_ids):,} tokens") if call.prompt_token_ids else ""
    figures = [
        ("prompt", f"{meta.num_prompt_tokens:,}", ""),
        ("cached", f"{meta.num_cached_tokens:,}", "cached-ink"),
        ("computed", f"{meta.num_computed_tokens:,}", "computed-ink"),
        ("generated", f"{meta.num_generated_tokens:,}", "generated-ink"),
        ("ended by", wording.ending(call), ""),
    ]
    shown = "".join(
        f'<div><b class="{css}">{html_text(value)}</b><span>{name}</span></div>' for name, value, css in figures
    )
    bar = share_bar(meta.num_cached_tokens, meta.num_computed_tokens, meta.num_generated_tokens)
    return f'{bar}<div class="figures">{shown}</div>'


def _times(call: CallTrace) -> str:
    moments = [
        ("asked", call.asked_s),
        ("submitted", call.submitted_s),
        ("started", call.started_s),
        ("first token", call.first_token_s),
        ("ended", call.ended_s),
    ]
    known = [(name, at) for name, at in moments if at is not None]
    if not call.is_model_call or len(known) < 2:
        return ""
    steps = []
    for idx, (name, at) in enumerate(known):
        since = "" if idx == 0 else f"<em>+{wording.seconds(max(0.0, at - known[idx - 1][1]))}</em>"
        steps.append(f"<li>{since}<b>{name}</b><span>{at:.3f} s</span></li>")
    return f'<ol class="moments">{"".join(steps)}</ol>'


def _output(trace: ProgramTrace, call: CallTrace) -> str:
    if call.kind == "text":
        return _section("Text", f"<pre>{html_text(call.text)}</pre>") if call.text else ""
    if not call.is_model_call:
        return ""
    samples = call.meta.samples if call.meta is not None else ()
    if not samples:
        return (
            _section("Text so far" if call.meta is None else "Chosen", f"<pre>{html_text(call.text)}</pre>")
            if call.text
            else ""
        )
    parts = []
    for idx, sample in enumerate(samples):
        title = "Output" if len(samples) == 1 else f"Output {idx + 1} of {len(samples)}"
        shown = f'<pre class="out">{html_text(sample.text)}</pre>'
        parts.append(_section(title, shown + _logprobs(sample.logprobs or (), trace.token_texts)))
        parts.append(_id_list(sample.token_ids))
    if call.value is not None and not isinstance(call.value, str) and len(samples) == 1:
        parts.append(_section("Value", f"<pre>{html_text(_json(call.value))}</pre>"))
    return "".join(parts)


def _logprobs(logprobs: Sequence[TokenLogprob], texts: Mapping[int, TokenText]) -> str:
    shown = []
    for token in logprobs:
        probability = math.exp(min(0.0, token.logprob))
        others = ", ".join(
            f"{_token(other, texts)!r} {wording.percent(math.exp(min(0.0, value)))}"
            for other, value in token.top[:_MAX_ALTERNATIVES]
        )
        title = f"{wording.percent(probability)}, logprob {token.logprob:.3f}" + (
            f"; likely: {others}" if others else ""
        )
        strength = round(min(1.0, 1.0 - probability), 2)
        label = html_text(_token(token.token_id, texts).replace("\n", "⏎"))
        shown.append(f'<span style="--u:{strength}" title="{html_text(title)}">{label}</span>')
    return f'<div class="logprobs" title="the darker, the less likely">{"".join(shown)}</div>' if shown else ""


def _token(token_id: int, texts: Mapping[int, TokenText]) -> str:
    return texts[token_id].text if token_id in texts else f"[{token_id}]"


def _choices(call: CallTrace) -> str:
    if call.meta is None or not call.meta.choices:
        return ""
    rows = []
    for idx, each in enumerate(call.meta.choices):
        css = "chosen" if idx == call.chosen_idx else ""
        bar = f'<span class="bar"><i style="width:{100 * each.probability:.2f}%"></i></span>'
        rows.append(
            f'<tr class="{css}"><td>{html_text(each.choice.text)}</td><td>{bar}</td>'
            f"<td>{wording.percent(each.probability)}</td><td>{each.score:.3f}</td>"
            f"<td>{each.choice.sum_logprob:.3f}</td><td>{len(each.choice.token_ids)}</td></tr>"
        )
    method = html_text(str(call.params.get("choices_method", "")))
    heading = (
        "<tr><th>choice</th><th></th><th>probability</th><th>score</th>"
        '<th title="sum of log-probabilities">logprob</th><th>tokens</th></tr>'
    )
    return _section(
        "Choices", f'<p class="muted">scored by {method}</p><table class="choices">{heading}{"".join(rows)}</table>'
    )


def _prompt(trace: ProgramTrace, call: CallTrace, budget: PromptBudget) -> str:
    if not call.prompt_token_ids:
        return ""
    ids = _id_list(call.prompt_token_ids)
    if call.prompt_text is None:
        return _section("Prompt", f'<p class="muted">The backend has no text for it.</p>{ids}')
    if not budget.allows(call.prompt_text):
        end = html_text(call.prompt_text[-_END_CHARS:])
        note = f"The page has no room for more prompts: this is the end of {len(call.prompt_text):,} characters."
        return _section(
            "Prompt", f'<p class="muted">{note} A .jsonl file has all of them.</p><pre class="prompt">…{end}</pre>'
        )
    spans = token_spans(call.prompt_token_ids, call.prompt_text, trace.token_texts)
    if spans is None:
        note = '<p class="muted">Its tokens have no texts of their own that add up to this.</p>'
        return _section("Prompt", f'{note}<pre class="prompt">{html_text(call.prompt_text)}</pre>{ids}')
    num_cached = 0 if call.meta is None else call.meta.num_cached_tokens
    return _section(
        "Prompt", f'<pre class="prompt">{_coloured(spans, num_cached, is_known=call.meta is not None)}</pre>{ids}'
    )


def _coloured(spans: Sequence[TokenSpan], num_cached: int, *, is_known: bool) -> str:
    """The tokens of a prompt; what came from the cache apart from what was computed."""
    cached: list[str] = []
    computed: list[str] = []
    num_before = 0
    for span in spans:
        num_before += len(span.token_ids)
        text = html_text(span.text)
        shown = f"<mark>{text}</mark>" if span.is_special else f"<i>{text}</i>"
        (cached if num_before <= num_cached else computed).append(shown)
    parts = []
    if cached:
        parts.append(f'<span class="cached" title="from the cache">{"".join(cached)}</span>')
    if computed:
        css, title = ("computed", "computed") if is_known else ("", "not known yet")
        parts.append(f'<span class="{css}" title="{title}">{"".join(computed)}</span>')
    return "".join(parts)


def _id_list(token_ids: Sequence[int]) -> str:
    if not token_ids:
        return ""
    summary, ids = wording.counted(len(token_ids), "token id"), " ".join(map(str, token_ids))
    return f'<details class="ids"><summary>{summary}</summary><code>{ids}</code></details>'
