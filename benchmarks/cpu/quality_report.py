"""The section on how far an engine's logits are from those of the same weights in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .catalogue import ENGINES, OURS, REFERENCE
from .markdown import table
from .quality import ALL, Agreement, compare

MAX_NLL_DIFFERENCE = 0.01
MIN_TOP_1 = 0.95


def quality_section(scores: Mapping[str, Any]) -> str:
    title = "## Quality against the dequantised weights in fp32"
    reference = scores.get(REFERENCE, {"reason": "not run"})
    if "reason" in reference:
        return f"{title}\n\nnot measured: {ENGINES[REFERENCE].label}: {reference['reason']}"
    rows = []
    for name in sorted(set(scores) - {REFERENCE}, key=lambda name: (name != OURS, name)):
        if "reason" in scores[name]:
            rows.append([ENGINES[name].label, f"not measured: {scores[name]['reason']}", "", "", "", ""])
        else:
            agreements = compare(scores[name], reference)
            kinds = [ALL, *(kind for kind in agreements if kind != ALL)] if name == OURS else [ALL]
            rows += [_row(name, kind, agreements[kind]) for kind in kinds]
    heads = ["engine", "text", "tokens", "NLL (fp32)", "difference", "same likeliest token"]
    note = (
        f"Targets for ramet over all text: NLL within {MAX_NLL_DIFFERENCE} of fp32, the same likeliest token in "
        f"{MIN_TOP_1:.0%} of the places or more. fp32 is {ENGINES[REFERENCE].label}, in windows of 512 tokens."
    )
    return "\n".join([title, "", *table(heads, rows), "", note])


def _row(name: str, kind: str, agreement: Agreement) -> list[str]:
    is_judged = name == OURS and kind == ALL
    nll = f"{agreement.nll_difference:+.4f}"
    top_1 = f"{agreement.top_1:.1%}"
    if is_judged:
        nll += ", met" if abs(agreement.nll_difference) <= MAX_NLL_DIFFERENCE else ", missed"
        top_1 += ", met" if agreement.top_1 >= MIN_TOP_1 else ", missed"
    figures = f"{agreement.nll:.4f} ({agreement.reference_nll:.4f})"
    return [ENGINES[name].label, kind, str(agreement.num_tokens), figures, nll, top_1]
