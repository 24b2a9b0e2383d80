"""docs/sglang.md says what is so: its script runs, and the names it gives are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramet as sgl

PAGE = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")


def test_its_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    try:
        exec(script, {})
    finally:
        sgl.set_default_backend(None)
    answer, num_cached_tokens = capsys.readouterr().out.split()
    assert answer == "London."
    assert int(num_cached_tokens) > 50


def test_the_names_it_calls_the_same_are_there() -> None:
    table = PAGE.split("## The same")[1].split("## Stricter")[0]
    of_module = re.findall(
        r"`(gen|select|gen_int|gen_string|system|user|assistant|flush_cache|get_server_info)`", table
    )
    of_module += [f"{role}_{end}" for role in ("system", "user", "assistant") for end in ("begin", "end")]
    of_module += ["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
    of_module += ["separate_reasoning", "set_default_backend", "global_config", "image", "video", "function"]
    assert set(of_module) <= set(sgl.__all__)
    of_state = ["get_var", "set_var", "text", "messages", "sync", "error", "text_iter", "text_async_iter", "ret_value"]
    of_state += ["fork", "copy", "var_scope", "get_meta_info", "system", "user", "assistant"]
    assert [name for name in of_state if not hasattr(sgl.ProgramState, name)] == []
    assert [name for name in of_state if name in table] == of_state
    assert [name for name in ("run", "bind", "run_batch", "cache") if not hasattr(sgl.Program, name)] == []
