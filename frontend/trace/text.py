"""A ProgramTrace as text for a terminal: one line a call, indented by branch."""

from __future__ import annotations

from collections.abc import Iterator

from . import wording
from .outline import Branch, outline
from .program_trace import CallTrace, ErrorTrace, ProgramTrace

_MAX_TEXT_CHARS = 72
_MAX_CHOICES = 6


def trace_text(trace: ProgramTrace, *, has_prompts: bool) -> str:
    """See `ProgramTrace.text`."""
    return "\n".join(_lines(trace, has_prompts=has_prompts))


def _lines(trace: ProgramTrace, *, has_prompts: bool) -> Iterator[str]:
    arguments = wording.arguments(trace)
    yield f"{trace.name}({arguments})  {trace.status} after {wording.seconds(trace.duration_s)}"
    yield f"  {wording.summary(trace)}"
    if trace.error is not None:
        yield from _error_lines(trace.error, "  ")
    yield from _branch_lines(outline(trace), "  ")
    if has_prompts:
        for call in trace.model_calls:
            yield from _prompt_lines(call)


def _branch_lines(branch: Branch, indent: str) -> Iterator[str]:
    for item in branch.items:
        yield from _call_lines(item.call, indent)
        for inner in item.branches:
            yield f"{indent}  {inner.label}"
            yield from _branch_lines(inner, f"{indent}    ")


def _call_lines(call: CallTrace, indent: str) -> Iterator[str]:
    text = repr(wording.shortened(call.text, _MAX_TEXT_CHARS)) if call.text else ""
    head = f"{indent}#{call.call_id} {call.describe()}"
    if call.kind == "text":
        yield f"{head} {text}"
    elif not call.is_model_call:
        yield f"{head} of {wording.counted(call.num_branches, 'branch').replace('branchs', 'branches')}"
    else:
        yield f"{head} {text}".rstrip()
        yield f"{indent}    {_figures(call)}  [{call.source}]"
        if call.meta is not None and call.meta.choices:
            yield f"{indent}    {_choices(call)}"
        if call.error is not None:
            yield from _error_lines(call.error, f"{indent}    ")


def _figures(call: CallTrace) -> str:
    if call.meta is None:
        tokens = f", prompt of {len(call.prompt_token_ids):,} tokens" if call.prompt_token_ids else ""
        return f"{call.status}{tokens}"
    meta = call.meta
    return (
        f"{meta.num_prompt_tokens:,} prompt = {meta.num_cached_tokens:,} cached + "
        f"{meta.num_computed_tokens:,} computed, {meta.num_generated_tokens:,} generated, "
        f"{wording.ending(call)}, {wording.seconds(meta.duration_s)}"
    )


def _choices(call: CallTrace) -> str:
    assert call.meta is not None
    scored = call.meta.choices
    shown = ", ".join(
        f"{wording.shortened(each.choice.text, 24)!r} {wording.percent(each.probability)}"
        for each in scored[:_MAX_CHOICES]
    )
    more = len(scored) - _MAX_CHOICES
    return f"{shown} and {more} more" if more > 0 else shown


def _error_lines(error: ErrorTrace, indent: str) -> Iterator[str]:
    where = "" if error.source is None else f" [{error.source}]"
    yield f"{indent}! {wording.one_line(str(error))}{where}"
    for cause in error.causes:
        yield f"{indent}  because of {wording.one_line(cause)}"


def _prompt_lines(call: CallTrace) -> Iterator[str]:
    if not call.prompt_token_ids:
        return
    yield ""
    yield f"--- prompt of #{call.call_id} {call.describe()}: {_figures(call)} ---"
    yield call.prompt_text if call.prompt_text is not None else " ".join(map(str, call.prompt_token_ids))
