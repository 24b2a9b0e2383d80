"""evaluate on a scripted model: scores, failures, files and resuming."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramet import MockBackend
from ramet.eval import (
    EvalResult,
    Filter,
    InvalidTaskError,
    Outcome,
    ResultsFileError,
    Task,
    evaluate,
    format_report,
)
from ramet.eval.results_file import ResultsFile
from ramet.frontend.backend import GenerateCall

SUMS = [{"q": f"{n}+{n}", "a": str(2 * n)} for n in range(12)]


def sums(**options: Any) -> Task:
    return Task(
        **{"name": "sums", "kind": "generate", "items": SUMS, "prompt": "Q: {q}\nA:", "target": "{a}", **options}
    )


def solve(call: GenerateCall, prompt: str) -> str:
    """Adds right, but for 3 + 3, which is too much for it."""
    left = int(prompt.rsplit("Q: ", 1)[1].split("+", maxsplit=1)[0])
    if left == 4:
        raise RuntimeError("no memory")
    return f" {2 * left + (left == 3)}\n"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_generate_and_match() -> None:
    backend = MockBackend(solve)
    result = evaluate(sums(num_shots=2, stop="\n"), backend, limit=4)
    assert [item.scores["exact_match"] for item in result.items] == [1.0, 1.0, 1.0, 0.0]
    assert result.items[3].answers == {"exact_match": "7"}
    assert (result.metrics["exact_match"].value, result.metrics["exact_match"].interval) == (0.75, "wilson")
    prompts = [request.prompt for request in backend.requests]
    assert all(prompt.count("Q: ") == 3 and prompt.endswith("\nA:") for prompt in prompts)
    params = [request.call.sampling_params for request in backend.requests if isinstance(request.call, GenerateCall)]
    assert {(each.temperature, each.max_tokens, tuple(each.stop)) for each in params} == {(0.0, 256, ("\n",))}
    assert {item.outcome.prompt for item in result.items if item.outcome} == set(prompts)
    assert result.tokens.num_prompt_tokens == sum(len(prompt) for prompt in prompts)
    assert result.tokens.num_cached_tokens > 0


def test_several_filters_are_a_metric_each() -> None:
    filters = [Filter(name="first", pattern=r"\d"), Filter(name="last", pattern=r"\d", take="last"), Filter(name="all")]
    result = evaluate(sums(filters=filters), MockBackend("0 or 2"), limit=2)
    assert {name: metric.value for name, metric in result.metrics.items()} == {"first": 0.5, "last": 0.5, "all": 0.0}
    assert result.items[0].answers == {"first": "0", "last": "2", "all": "0 or 2"}


def test_no_match_is_wrong_and_no_failure() -> None:
    result = evaluate(sums(filters=[Filter(pattern=r"#(\d)")]), MockBackend("none"), limit=2)
    assert result.items[0].answers == {"exact_match": None}
    assert result.metrics["exact_match"].value == 0.0
    assert not result.failed


def capitals(**options: Any) -> Task:
    items = [
        {"q": "France", "options": ["Paris", "Rome", "Paris"], "a": 0},
        {"q": "Italy", "options": ["Paris", "Rome"], "a": "Rome"},
    ]
    fields = {"name": "capitals", "items": items, "prompt": "{q}:", "target": "{a}", "choices": "{options}"}
    return Task(**{"kind": "multiple_choice", **fields, **options})


def test_multiple_choice_by_likelihood() -> None:
    per_token = {" Paris": -1.0, " Rome": -1.5, "Paris": -1.0, "Rome": -1.5}
    backend = MockBackend(scores=lambda prompt, choice: per_token[choice])
    result = evaluate(capitals(), backend)
    first = result.items[0].outcome
    assert first is not None
    assert first.logprobs == (-6.0, -7.5, -6.0)  # a token a character, the delimiter is one
    assert first.num_scored_tokens == (6, 5, 6)
    assert first.output == "Paris"
    assert len(backend.requests) == 2  # one request per item
    assert [item.scores for item in result.items] == [{"acc": 1.0, "acc_norm": 1.0}, {"acc": 0.0, "acc_norm": 0.0}]


def test_normalised_likelihood_prefers_long_choices() -> None:
    items = [{"q": "?", "options": ["no", "of course"], "a": 1}]
    backend = MockBackend(scores=lambda prompt, choice: -1.0 if choice == " no" else -0.5)
    result = evaluate(capitals(items=items), backend)
    assert result.items[0].answers == {"acc": "no", "acc_norm": "of course"}
    assert result.items[0].scores == {"acc": 0.0, "acc_norm": 1.0}


def test_select_takes_any_method_and_keeps_the_choice() -> None:
    items = [{"q": "?", "options": ["no", "of course"], "a": 1}]
    after_prompt, alone = {" no": -1.0, " of course": -0.5}, {" no": -2.0, " of course": -0.2}
    backend = MockBackend(scores=lambda prompt, choice: (after_prompt if prompt else alone)[choice])
    by_method = {
        method: evaluate(capitals(items=items, kind="select", choices_method=method), backend).metrics["acc"].value
        for method in ("sum", "token_length_normalized", "unconditional_likelihood_normalized")
    }
    assert by_method == {"sum": 0.0, "token_length_normalized": 1.0, "unconditional_likelihood_normalized": 0.0}


def test_a_choice_in_a_chat_begins_the_message() -> None:
    backend = MockBackend(scores=lambda prompt, choice: -1.0)
    result = evaluate(capitals(chat="turns", num_shots=1, system="Be brief."), backend)
    (first, _) = backend.requests
    assert first.prompt.endswith("assistant\n")
    assert "Be brief." in first.prompt
    assert result.items[0].outcome is not None
    assert result.items[0].outcome.num_scored_tokens == (5, 4, 5)


def test_one_failed_item_disturbs_no_other() -> None:
    result = evaluate(sums(), MockBackend(solve))
    (failed,) = result.failed
    assert (failed.question.idx, failed.error) == (4, "RuntimeError: no memory")
    assert result.metrics["exact_match"].num_items == 11
    assert "1 item failed" in format_report(result)


def test_own_scorers_see_item_and_outcome() -> None:
    def length(item: Mapping[str, Any], outcome: Outcome) -> float:
        return len(outcome.output) / len(item["q"])

    result = evaluate(sums(), MockBackend("four"), limit=2, scorers={"length": length})
    assert result.metrics["length"].value == pytest.approx(4 / 3)
    assert result.metrics["length"].interval == "bootstrap"


@pytest.mark.parametrize(("value", "message"), [("x", "could not convert"), (math.nan, "finite")])
def test_a_scorer_that_fails_keeps_the_outcome(value: Any, message: str, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = evaluate(sums(), MockBackend("4"), limit=1, output=output, scorers={"bad": lambda item, outcome: value})
    assert result.failed[0].error is not None
    assert message in result.failed[0].error
    backend = MockBackend([])
    again = evaluate(sums(), backend, limit=1, output=output, resume=True)
    assert not again.failed
    assert not backend.requests


def test_the_file_has_a_line_per_item_in_order(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = evaluate(sums(num_shots=1), MockBackend(solve, mode="background"), output=output, max_concurrency=3)
    lines = lines_of(output)
    assert [line["idx"] for line in lines] == list(range(12))
    assert lines[3]["answers"] == {"exact_match": "7"}
    assert lines[3]["output"] == " 7\n"
    assert lines[3]["targets"] == ["6"]
    assert lines[3]["item"] == SUMS[3]
    assert lines[3]["prompt"].endswith("Q: 3+3\nA:")
    assert lines[4]["error"] == "RuntimeError: no memory"
    settings = {"model": "mock", **result.task.settings()}
    assert lines == [json.loads(json.dumps({**item.to_json(), "settings": settings})) for item in result.items]
    assert list(tmp_path.iterdir()) == [output]


def test_texts_that_no_utf8_can_spell_are_written_and_read(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    task = sums(items=[{"q": "\ud800\u2028é", "a": "x"}])
    evaluate(task, MockBackend("x"), output=output)
    again = evaluate(task, MockBackend("y"), output=output, resume=True)
    assert again.num_resumed == 1
    assert again.items[0].question.item["q"] == "\ud800\u2028é"


def test_items_need_not_be_json(tmp_path: Path) -> None:
    output, items = tmp_path / "out.jsonl", [{"q": "x", "a": "y", "day": datetime.date(2024, 2, 29)}]
    for resume in (False, True):
        result = evaluate(sums(items=items), MockBackend("y"), output=output, resume=resume)
        assert (result.num_resumed, result.metrics["exact_match"].value) == (int(resume), 1.0)
    assert lines_of(output)[0]["item"]["day"] == "2024-02-29"
    with pytest.raises(InvalidTaskError, match="the field 'day' is a date, and a text or number was expected"):
        evaluate(sums(items=items, prompt="{day}"), MockBackend("y"))


def same(left: EvalResult, right: EvalResult) -> bool:
    """Apart from times and what was cached."""

    def plain(result: EvalResult) -> list[dict[str, Any]]:
        dropped = ("duration_s", "num_cached_tokens")
        return [{key: value for key, value in item.to_json().items() if key not in dropped} for item in result.items]

    return plain(left) == plain(right) and left.metrics == right.metrics


def test_resuming_asks_only_what_is_missing(tmp_path: Path) -> None:
    output, task = tmp_path / "out.jsonl", sums(num_shots=1)
    evaluate(task, MockBackend(solve), output=output, limit=6)
    backend = MockBackend(solve)
    result = evaluate(task, backend, output=output, resume=True)
    asked = sorted(request.prompt.rsplit("Q: ", 1)[1] for request in backend.requests)
    assert asked == sorted(f"{n}+{n}\nA:" for n in (4, *range(6, 12)))  # 4 has failed before
    assert result.num_resumed == 5
    assert same(result, evaluate(task, MockBackend(solve)))
    assert [line["idx"] for line in lines_of(output)] == list(range(12))


def test_a_torn_last_line_is_asked_again(tmp_path: Path) -> None:
    output, task = tmp_path / "out.jsonl", sums()
    evaluate(task, MockBackend("1"), output=output, limit=3)
    content = output.read_bytes()
    for cut in (1, 40, len(content.splitlines()[-1])):
        output.write_bytes(content[:-cut])
        result = evaluate(task, MockBackend("1"), output=output, resume=True, limit=3)
        assert result.num_resumed == (3 if cut == 1 else 2)  # a line that lacks its end only is whole
        assert [line["idx"] for line in lines_of(output)] == [0, 1, 2]


def test_judging_again_needs_no_model(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    evaluate(sums(), MockBackend("it is 4 or 6"), output=output, limit=4)
    backend = MockBackend("other")
    task = sums(filters=[Filter(name="last", pattern=r"\d", take="last")])
    result = evaluate(task, backend, output=output, limit=4, resume=True)
    assert not backend.requests
    assert result.metrics["last"].value == 0.25
    assert set(lines_of(output)[0]["scores"]) == {"last"}


def test_items_that_are_equal_are_all_answered(tmp_path: Path) -> None:
    output, task = tmp_path / "out.jsonl", sums(items=[SUMS[1], SUMS[2], SUMS[1]])
    evaluate(task, MockBackend(solve), output=output)
    result = evaluate(task, MockBackend("x"), output=output, resume=True)
    assert (result.num_resumed, result.metrics["exact_match"].value) == (3, 1.0)
    assert [line["idx"] for line in lines_of(output)] == [0, 1, 2]


def test_a_smaller_limit_loses_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    evaluate(sums(), MockBackend("1"), output=output, limit=6)
    result = evaluate(sums(), MockBackend("1"), output=output, limit=2, resume=True)
    assert len(result.items) == 2
    assert [line["idx"] for line in lines_of(output)] == list(range(6))


def test_files_that_cannot_be_gone_on_with(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    evaluate(sums(), MockBackend("1"), output=output, limit=2)
    before = output.read_bytes()
    with pytest.raises(ResultsFileError, match="exists: resume it"):
        evaluate(sums(), MockBackend("1"), output=output)
    for changes, what in (
        ({"prompt": "{q}"}, "the items, the templates or the shots differ"),
        ({"max_tokens": 5, "stop": ";"}, r"max_tokens was 256 and is 5, stop was \[\] and is \[';'\];"),
    ):
        with pytest.raises(ResultsFileError, match=f"of other questions: {what}"):
            evaluate(sums(**changes), MockBackend("1"), output=output, resume=True)
    assert output.read_bytes() == before
    output.write_text('{"idx": 0}\n', encoding="utf-8")
    with pytest.raises(ResultsFileError, match="line 1: this is no line of results"):
        evaluate(sums(), MockBackend("1"), output=output, resume=True)
    with pytest.raises(ResultsFileError, match="cannot be written"):
        evaluate(sums(), MockBackend("1"), output=tmp_path / "none" / "out.jsonl")
    with pytest.raises(InvalidTaskError, match="needs an output"):
        evaluate(sums(), MockBackend("1"), resume=True)


def test_the_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = evaluate(sums(), MockBackend("1"), output=output, limit=3)
    before = output.read_bytes()
    broken = dataclasses.replace(result.items[0], scores={("x",): 1.0})  # type: ignore[dict-item]
    with ResultsFile(output, {}, resume=True) as file, pytest.raises(TypeError):
        file.finish([*result.items, broken])
    assert output.read_bytes() == before


def test_perplexity_needs_a_model() -> None:
    with pytest.raises(InvalidTaskError, match="needs a model in this process"):
        evaluate(Task(name="t", kind="perplexity", items=[{"text": "x"}], prompt="{text}"), MockBackend())


KILLED = """
    import sys, time
    from ramet import MockBackend
    from ramet.eval import Task, evaluate

    def slow(call, prompt):
        time.sleep(0.02)
        return "1"

    items = [{"q": str(n), "a": "1"} for n in range(400)]
    task = Task(name="t", kind="generate", items=items, prompt="{q}", target="{a}")
    if __name__ == "__main__":
        evaluate(task, MockBackend(slow), output=sys.argv[1], max_concurrency=2)
"""


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    script, output = tmp_path / "killed.py", tmp_path / "out.jsonl"
    script.write_text(textwrap.dedent(KILLED), encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(script), str(output)], env={**os.environ})
    deadline = time.monotonic() + 60
    while not (output.exists() and output.read_bytes().count(b"\n") >= 10):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    num_written = output.read_bytes().count(b"\n")
    items = [{"q": str(n), "a": "1"} for n in range(400)]
    task = Task(name="t", kind="generate", items=items, prompt="{q}", target="{a}")
    backend = MockBackend("1")
    result = evaluate(task, backend, output=output, resume=True)
    assert len(backend.requests) == 400 - num_written == 400 - result.num_resumed
    assert [line["idx"] for line in lines_of(output)] == list(range(400))
    assert result.metrics["exact_match"].value == 1.0


@pytest.mark.parametrize(
    "content", [b"notes without an end", b"\x00\xff\x80", b"# a\n{", b"\n", b'{"key": "k", "idx": 0}\n', b'{"a": 1}']
)
def test_a_file_that_is_none_of_ours_is_never_touched(tmp_path: Path, content: bytes) -> None:
    output = tmp_path / "out.jsonl"
    output.write_bytes(content)
    with pytest.raises(ResultsFileError, match="no file of results"):
        evaluate(sums(), MockBackend("1"), output=output, resume=True)
    assert output.read_bytes() == content


def test_results_that_something_was_written_behind_are_not_touched(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    evaluate(sums(), MockBackend("1"), output=output, limit=2)
    content = output.read_bytes() + b"my notes"
    output.write_bytes(content)
    with pytest.raises(ResultsFileError, match="last line is no line of results"):
        evaluate(sums(), MockBackend("1"), output=output, limit=2, resume=True)
    assert output.read_bytes() == content
    with pytest.raises(ResultsFileError, match="is no file"):
        evaluate(sums(), MockBackend("1"), output=tmp_path, resume=True)


def test_a_shorter_task_keeps_the_lines_of_the_longer_one(tmp_path: Path) -> None:
    output, same = tmp_path / "out.jsonl", [{"q": "1+1", "a": "2"}, *SUMS[:2], {"q": "1+1", "a": "2"}]
    evaluate(sums(items=same), MockBackend("2"), output=output)
    before = lines_of(output)
    evaluate(sums(items=same), MockBackend("2"), output=output, limit=1, resume=True)
    assert [line["idx"] for line in lines_of(output)] == [line["idx"] for line in before]
    result = evaluate(sums(items=same[1:]), MockBackend("2"), output=output, resume=True)
    assert (result.num_resumed, len(lines_of(output))) == (3, 4)
