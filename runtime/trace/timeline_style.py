"""Colours of a timeline, for light and for dark surroundings, and its legend."""

from __future__ import annotations

LEGEND = (
    ("prompt", "prompt chunk (tokens)"),
    ("cached", "cached prefix (tokens)"),
    ("decode", "decode"),
    ("recompute", "recompute after preemption"),
    ("wait", "waiting"),
    ("prefix", "waiting for a prefix"),
    ("source", "who computes it"),
    ("paused", "holds blocks, not computed"),
    ("preempted", "preempted"),
    ("wasted", "wasted"),
    ("finish", "finished"),
    ("failed", "failed or aborted"),
)

_LIGHT = {
    "background": "#ffffff",
    "plot": "#f7f8fa",
    "ink": "#1f2430",
    "muted": "#667085",
    "grid": "#e3e6eb",
    "prompt": "#3f74cf",
    "prompt-ink": "#ffffff",
    "decode": "#f2a93b",
    "decode-ink": "#3d2800",
    "recompute": "#b8478c",
    "recompute-ink": "#ffffff",
    "cached": "#2a9668",
    "wait": "#e4e7ec",
    "prefix": "#8a63d2",
    "prefix-back": "#efe8fb",
    "paused": "#98a2b3",
    "alarm": "#d0342c",
    "wasted-back": "#fbe4e2",
    "evictable": "#bfe3e0",
    "locked": "#2f9c95",
    "private": "#6a8fd8",
}
_DARK = _LIGHT | {
    "background": "#14171d",
    "plot": "#1b1f27",
    "ink": "#e6e9ef",
    "muted": "#98a2b3",
    "grid": "#2c323d",
    "prompt": "#4c82df",
    "wait": "#2f3541",
    "prefix": "#a586e6",
    "prefix-back": "#2c2440",
    "paused": "#667085",
    "alarm": "#ff6b61",
    "wasted-back": "#3d2224",
    "evictable": "#2a4a4d",
}
_PHASE_COLOURS = ("#98a2b3", "#c77dba", "#8b93e6", "#dd8a6b", "#5fae9b")


def _rules(colour: dict[str, str]) -> str:
    fills = {
        "background": "background",
        "plot": "plot",
        "ink": "ink",
        "muted": "muted",
        "prompt": "prompt",
        "prompt-ink": "prompt-ink",
        "decode": "decode",
        "decode-ink": "decode-ink",
        "recompute": "recompute",
        "recompute-ink": "recompute-ink",
        "cached": "cached",
        "wait": "wait",
        "prefix-back": "prefix-back",
        "wasted-back": "wasted-back",
        "finish": "ink",
        "failed": "alarm",
        "private": "private",
        "locked": "locked",
        "evictable": "evictable",
        "padding": "paused",
        "prefix-thin": "prefix",
        "source": "prefix",
        "wasted-thin": "alarm",
    }
    strokes = {"preempted": "alarm", "paused": "paused", "grid": "grid", "unshared": "ink", "limit": "alarm"}
    strokes |= {"prefix-line": "prefix", "source-line": "prefix", "wasted-line": "alarm"}
    rules = [f".{name}{{fill:{colour[key]}}}" for name, key in fills.items()]
    rules += [f".{name}{{fill:none;stroke:{colour[key]}}}" for name, key in strokes.items()]
    return "".join(rules)


STYLE = (
    "text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".title{font-size:15px;font-weight:600}.label{font-size:11px}.small{font-size:10px}.tiny{font-size:8px}"
    ".paused{stroke-width:2}.preempted{stroke-width:2}.grid{stroke-width:1}"
    ".unshared{stroke-width:1;stroke-dasharray:3 2}.limit{stroke-width:1;stroke-dasharray:6 3}"
    ".mark{pointer-events:none}.prefix-line,.source-line,.wasted-line{stroke-width:1.5}.hover{fill:none;pointer-events:all}"
    ".prefix{fill:url(#prefix-hatch)}.wasted{fill:url(#wasted-hatch)}"
    + "".join(f".phase{idx}{{fill:{colour}}}" for idx, colour in enumerate(_PHASE_COLOURS))
    + f"{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)

DEFINITIONS = "".join(
    f'<pattern id="{name}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate({angle})">'
    f'<rect class="{name}-back" width="6" height="6"/><path class="{name}-line" d="M1 0V6"/></pattern>'
    for name, angle in (("prefix", 45), ("wasted", -45))
)

PAGE_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font-family:system-ui,'Segoe UI',Roboto,sans-serif;margin:24px;"
    f"color:{_LIGHT['ink']};background:{_LIGHT['background']}}}"
    "h1{font-size:20px}table{border-collapse:collapse;margin-bottom:20px}"
    f"th,td{{text-align:left;padding:3px 18px 3px 0;font-size:14px;border-bottom:1px solid {_LIGHT['grid']}}}"
    f"th{{font-weight:500;color:{_LIGHT['muted']}}}"
    ".picture{overflow-x:auto}"
    "@media (prefers-color-scheme:dark){"
    f"body{{color:{_DARK['ink']};background:{_DARK['background']}}}"
    f"th,td{{border-color:{_DARK['grid']}}}th{{color:{_DARK['muted']}}}}}"
)
