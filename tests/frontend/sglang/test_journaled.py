"""Values that no call of their own stands behind come back from a journal, failed ones as their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramet as sgl


def test_set_variables_spans_and_reasoning_come_back(tmp_path: Path) -> None:
    @sgl.function
    def program(s: Any, is_bad: bool) -> None:
        s.set_var("plan", {"is_bad": is_bad})
        s += "q: " + sgl.separate_reasoning(sgl.gen("x"), "qwen3")
        with s.var_scope("span"):
            s += " then " + sgl.gen("bad" if is_bad else "y")
        forks = s.fork(2)
        forks += " more"
        forks.join("concate_and_append")

    def answer(call: Any, prompt: str) -> Any:
        return {"x": "<think>hm</think>yes", "y": "ok"}.get(call.name, RuntimeError("gone"))

    journal = tmp_path / "run.jsonl"
    items = [{"is_bad": False}, {"is_bad": True}]
    first = program.run_batch(items, journal=journal, backend=sgl.MockBackend(answer))
    backend = sgl.MockBackend(answer)
    again = program.run_batch(items, journal=journal, backend=backend, retry_failed=False)
    assert backend.requests == []
    for states in (first, again):
        good, bad = states
        assert (good["plan"], good["x"], good["x_reasoning_content"]) == ({"is_bad": False}, "yes", "hm")
        assert (good["span"], good.text()) == (" then ok", "q: yes then ok more more")
        assert bad["x"] == "yes"
        with pytest.raises(sgl.GenerationError, match=r"var_scope 'span' .* was not run: .* failed: gone"):
            bad["span"]
        with pytest.raises(sgl.GenerationError, match="gone"):
            list(bad.text_iter("span"))
