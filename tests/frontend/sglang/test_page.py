"""docs/sglang.md says what is so: its script runs, and the names it gives are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramet as sgl
from ramet.runtime import server_args
from ramet.runtime.server_args import llm_options

PAGE = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text(encoding="utf-8")


def test_its_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    script = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]  # the others need a server
    try:
        exec(script, {})
    finally:
        sgl.set_default_backend(None)
    answer, num_cached_tokens = capsys.readouterr().out.split()
    assert answer == "London."
    assert int(num_cached_tokens) > 50


def option_rows() -> list[tuple[list[str], str]]:
    """The names in each row of the table of options, and what the row says of them."""
    table = PAGE.split("## Options of Runtime and Engine")[1].split("## ")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`(\w+)(?:=True)?`", names), said) for names, said in rows]


def refuses(name: str, value: object) -> bool:
    try:
        llm_options({name: value})
    except sgl.InvalidConfigError:
        return True
    return False


def test_options_are_taken_and_refused_as_it_says() -> None:
    rows = option_rows()
    values = {"any value": object(), "1;": 1, "False": False, '"auto"': "auto"}
    for names, said in rows:
        for name in names:
            if said.startswith("refused unless None"):
                assert refuses(name, 1), name
                assert llm_options({name: None}) == {}
            for start, value in values.items():
                if said.startswith(start):
                    assert llm_options({name: value}) == {}
                    assert refuses(name, 7) == (start != "any value"), name
    listed = {name for names, _ in rows for name in names} | {"node_rank"}
    known = {*server_args.NAMES, *server_args.NEGATIONS, *server_args.NEUTRAL, *server_args.WITHOUT_EFFECT}
    assert known | {*server_args.REASONS, *server_args.GRAPHS} <= listed
    assert len(rows) > 10


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
