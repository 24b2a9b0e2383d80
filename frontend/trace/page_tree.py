"""The call tree of a page: one row a call, the branches of a fork side by side."""

from __future__ import annotations

from . import wording
from .markup import html_text, share_bar, tag
from .outline import Branch, Item, outline
from .page_call import call_anchor, run_anchor, status_mark
from .program_trace import CallTrace, ProgramTrace

_SNIPPET_CHARS = 160
_MAX_OPEN_RUNS = 3


def run_tree(run_idx: int, trace: ProgramTrace, num_runs: int) -> str:
    """One run, folded if there are many and nothing went wrong in it."""
    arguments = html_text(wording.arguments(trace, max_len=48))
    is_bad = trace.status in ("failed", "raised")
    num_cached, num_prompt = trace.num_cached_tokens, trace.num_prompt_tokens
    bar = share_bar(num_cached, num_prompt - num_cached, trace.num_generated_tokens)
    number = f'<span class="muted">{run_idx + 1}</span> ' if num_runs > 1 else ""
    summary = (
        f'<summary><span class="runname">{number}<b>{html_text(trace.name)}</b>'
        f'<span class="args">({arguments})</span> {status_mark(trace.status)}</span>'
        f'{bar}<span class="figure">{wording.percent(wording.cached_share(num_cached, num_prompt))} cached</span>'
        f'<span class="figure">{wording.seconds(trace.duration_s)}</span>'
        f'<a class="more" href="#{run_anchor(run_idx)}">details</a></summary>'
    )
    error = ""
    if trace.error is not None:
        error = f'<p class="raised">{html_text(str(trace.error))}</p>'
    is_open = num_runs <= _MAX_OPEN_RUNS or is_bad
    css = "run bad" if is_bad else "run"
    inner = f"{summary}{error}{_branch(run_idx, outline(trace))}"
    return f'<details class="{css}"{" open" if is_open else ""}>{inner}</details>'


def _branch(run_idx: int, branch: Branch) -> str:
    return "".join(_item(run_idx, item) for item in branch.items)


def _item(run_idx: int, item: Item) -> str:
    row = _row(run_idx, item.call)
    if not item.branches:
        return row
    inner = "".join(
        tag("div", f'<div class="branchname">{html_text(branch.label)}</div>{_branch(run_idx, branch)}', "branch")
        for branch in item.branches
    )
    return f'{row}<div class="branches">{inner}</div>'


def _row(run_idx: int, call: CallTrace) -> str:
    name = "" if call.name is None else f"<b>{html_text(call.name)}</b>"
    head = f'<span class="kind {call.kind}">{call.kind}</span>{name}{status_mark(call.status)}'
    body = (
        f'<span class="snippet">{html_text(wording.shortened(call.text, _SNIPPET_CHARS))}</span>' if call.text else ""
    )
    if call.kind in ("fork", "join"):
        body = f'<span class="snippet">{"into" if call.kind == "fork" else "of"} {call.num_branches:,}</span>'
    if call.error is not None:
        body += f'<span class="snippet bad">{html_text(wording.shortened(call.error.message, _SNIPPET_CHARS))}</span>'
    tail = ""
    if call.meta is not None:
        meta = call.meta
        bar = share_bar(meta.num_cached_tokens, meta.num_computed_tokens, meta.num_generated_tokens)
        tail = f'{bar}<span class="figure">{wording.seconds(meta.duration_s)}</span>'
    css = f"row {call.kind} {call.status}"
    return f'<a class="{css}" href="#{call_anchor(run_idx, call)}">{head}{body}<span class="tail">{tail}</span></a>'
