"""The journal: what was finished is not run again, reads the same, and survives a kill at any instant."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.batch_results import BatchError
from ramet.frontend.errors import (
    GenerationError,
    InvalidProgramError,
    ProgramError,
    UnknownVariableError,
    UnparsedTextError,
)
from ramet.frontend.journal.identity import HEADER_START
from ramet.frontend.journal.restore import JournaledError
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

Record = dict[str, Any]


def echo(call: GenerateCall, prompt: str) -> str:
    if "poison" in prompt:
        raise RuntimeError("no power")
    return f"<{prompt[-6:]}>"


def records_of(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


NUM_BODIES: dict[str, int] = {}


def counted(name: str) -> None:
    NUM_BODIES[name] = NUM_BODIES.get(name, 0) + 1


@function
def rich(s: ProgramState, question: str, fail: str = "") -> dict[str, object]:
    """Everything a program may leave behind."""
    counted("rich")
    s += system("Be brief.") + user(question)
    s += assistant("A" + gen("x", max_tokens=5) + select("y", ["b", "cc"]))
    forks = s.fork(2)
    for idx, branch in enumerate(forks):
        branch += user(f"{idx} poison" if fail == "branch" and idx else f"{idx}")
        branch += assistant(gen("z"))
    forks.join()
    s += user("number") + assistant(gen("number", regex="[0-9]{2}") + gen("n", n=2))
    if fail == "call":
        s += user("poison") + assistant(gen("w"))
    if fail == "body":
        raise LookupError("mine")
    return {"question": question, "pair": (1, 2)}


def script(call: GenerateCall, prompt: str) -> str:
    return "42" if call.sampling_params.regex else echo(call, prompt)


def reads_of(state: ProgramState) -> dict[str, object]:
    """Everything that can be read, errors as what they say."""

    def attempt(read: Callable[[], object]) -> object:
        try:
            return read()
        except (ProgramError, UnknownVariableError) as error:
            return type(error).__name__, str(error)

    names = ("x", "y", "z", "number", "n", "w")
    return {
        **{name: attempt(lambda name=name: state[name]) for name in names},  # type: ignore[misc]
        **{f"meta {name}": attempt(lambda name=name: state.metas(name)) for name in names},  # type: ignore[misc]
        "text": attempt(state.text),
        "pieces": attempt(lambda: "".join(state.text_iter())),
        "x pieces": attempt(lambda: "".join(state.text_iter("x"))),
        "messages": attempt(state.messages),
        "token_ids": attempt(state.token_ids),
        "error": attempt(lambda: str(state.error())),
        "kind of error": type(state.error()).__name__,
        "calls": [
            (call.describe(), call.call_id, call.parent_ids, call.branch, call.text, call.choices, call.num_branches)
            for call in state.calls()
        ],
        "outcomes": [
            (call.prompt_token_ids, call.meta, call.sampling_params, call.choices_method) for call in state.calls()
        ],
        "variables": {name: name in state for name in names},
        "trace": replace(state.trace(), model={}).to_json(),
        "return_value": attempt(lambda: json.loads(json.dumps(state.return_value))),
    }


def test_restored_states_read_like_those_that_ran(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    items: list[Any] = [
        ("plain",),
        ("in a call", "call"),
        ("in the body", "body"),
        {"question": "in a branch", "fail": "branch"},
    ]
    NUM_BODIES.clear()
    options: dict[str, Any] = {"journal": path, "max_concurrency": 1, "retry_failed": False}
    ran = rich.run_batch(items, backend=MockBackend(script), **options)
    backend = MockBackend(script)
    restored = rich.run_batch(items, backend=backend, **options)
    assert NUM_BODIES == {"rich": 4}
    assert backend.requests == []
    for own, other in zip(ran, restored, strict=True):
        assert reads_of(other) == reads_of(own)
    assert restored.summary.num_resumed == 4
    assert ran.summary.num_failed == restored.summary.num_failed == 3
    assert ran.summary.num_prompt_tokens == restored.summary.num_prompt_tokens
    cause = restored[2].error().__cause__  # type: ignore[union-attr]
    assert isinstance(cause, JournaledError)
    assert str(cause) == "LookupError: mine"


def test_a_restored_state_goes_on_where_it_was(tmp_path: Path) -> None:
    @function
    def open_ended(s: ProgramState) -> None:
        s += "a" + gen("x") + "tail"

    for _ in range(2):
        (state,) = open_ended.run_batch([()], backend=(backend := MockBackend("ok")), journal=tmp_path / "j.jsonl")
        state += gen("more")
        assert state["more"] == "ok"
        assert state.text() == "aoktailok"
        assert backend.requests[-1].prompt == "aoktail"
        assert len(state.trace().calls) == 4


def test_unparsed_values_and_data_beyond_json(tmp_path: Path) -> None:
    @function
    def cut_off(s: ProgramState, max_tokens: int) -> set[str]:
        s += "q" + gen("x", json_schema={"type": "object"}, parse=True, max_tokens=max_tokens)
        return {"b", "a"}

    for _ in range(2):
        short, whole = cut_off.run_batch(
            [(3,), (30,)], backend=MockBackend('{"a": 1}'), journal=tmp_path / "j.jsonl", retry_failed=False
        )
        assert whole["x"] == {"a": 1}
        with pytest.raises(UnparsedTextError) as failure:
            short["x"]
        assert failure.value.text == '{"a'
        assert short.text() == 'q{"a'
        assert isinstance(short.error(), UnparsedTextError)
    assert whole.return_value == ["a", "b"]


def test_only_missing_items_run_and_equal_items_are_several(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def program(s: ProgramState, question: str, suffix: str = "?") -> None:
        s += question + suffix + gen("x")

    first = MockBackend(echo)
    program.run_batch([("a",), ("a",), ("b",)], backend=first, journal=path)
    assert len(first.requests) == 3
    second = MockBackend(echo)
    items: list[Any] = [("c",), {"question": "b"}, ("a", "?"), ("a",), ("a",), ("d", "!")]
    states = program.run_batch(items, backend=second, journal=path)
    assert sorted(request.prompt for request in second.requests) == ["a?", "c?", "d!"]
    assert [state["x"] for state in states] == ["<c?>", "<b?>", "<a?>", "<a?>", "<a?>", "<d!>"]
    assert states.summary.num_resumed == 3
    bound = MockBackend(echo)
    program.bind(suffix="!").run_batch([("d",)], backend=bound, journal=path)
    assert bound.requests == []


def test_failed_items_run_again_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    def program(s: ProgramState, idx: int) -> None:
        s += f"q{idx}" + gen("x")

    items = [(0,), (1,)]
    failing = MockBackend([RuntimeError("no power"), "ok"])
    program.run_batch(items, backend=failing, journal=path, max_concurrency=1)
    kept = program.run_batch(items, backend=MockBackend("never"), journal=path, retry_failed=False)
    assert isinstance(kept[0].error(), GenerationError)
    again = program.run_batch(items, backend=MockBackend("now"), journal=path)
    assert [state["x"] for state in again] == ["now", "ok"]
    last = program.run_batch(items, backend=MockBackend("never"), journal=path)
    assert [state["x"] for state in last] == ["now", "ok"]
    assert [record["failed"] for record in records_of(path)] == [True, False, False]
    with pytest.raises(BatchError, match="1 items failed, more than max_failures=0"):
        program.run_batch([(0,)], backend=failing, journal=tmp_path / "j", max_failures=0)  # no reply is left


def test_what_is_done_when_a_batch_ends_early_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    @function
    async def program(s: AsyncProgramState, question: str) -> None:
        s += question + gen("x")

    items = [("a",), ("poison",), ("b",)]
    with pytest.raises(BatchError):
        program.run_batch(items, backend=MockBackend(echo), journal=path, max_concurrency=1, on_error="raise")
    assert [record["item"] for record in records_of(path)] == [0, 1]
    backend = MockBackend("fine")
    states = program.run_batch(items, backend=backend, journal=path, on_error="raise")
    assert [state["x"] for state in states] == ["<a>", "fine", "fine"]


@function
def one_gen(s: ProgramState, question: str) -> None:
    s += question + gen("x")


def write_journal(path: Path, **options: Any) -> None:
    one_gen.run_batch([("a",), ("b",)], backend=MockBackend(echo), journal=path, max_concurrency=1, **options)


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_journal(path)
    before = path.read_bytes()

    @function
    def other(s: ProgramState, question: str) -> None:
        s += question + gen("x")

    class OtherModel(MockBackend):
        def info(self) -> dict[str, object]:
            return {"backend": "mock", "model": "other"}

    def changed(s: ProgramState, question: str) -> None:
        s += question + gen("x") + "!"

    changed.__name__ = "one_gen"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (other, {}, "is of another program: 'one_gen' there, 'other' here"),
        (function(changed), {}, "is of an earlier text of the program 'one_gen', whose body has changed"),
        (one_gen, {"temperature": 0.5}, "was written with other sampling defaults: .*'temperature': 0.5.* here"),
        (one_gen, {"backend": OtherModel()}, "was written with another model"),
    ]
    for program, options, message in cases:
        with pytest.raises(InvalidProgramError, match=message):
            program.run_batch([("a",)], **{"backend": MockBackend(), **options}, journal=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["my notes\nare here\n", "my notes", '{"a": 1}\n', "[]\n", '{"ramet_journal": 2}\n', "{", '{"ramet_journal":1,"x'],
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(InvalidProgramError, match=r"is no journal of a batch|has version 2"):
        write_journal(path)
    assert path.read_text() == content


def test_a_file_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_journal(tmp_path / "nowhere" / "run.jsonl")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, Path("/dev/full")):
        with pytest.raises(InvalidProgramError, match="is no regular file"):
            write_journal(path)
    with pytest.raises(InvalidProgramError, match=r"journal='a\\x00b' is not allowed"):
        write_journal("a\0b")  # type: ignore[arg-type]


def test_arguments_and_results_that_are_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @function
    def program(s: ProgramState, tool: object) -> object:
        s += "q" + gen("x")
        return tool

    with pytest.raises(InvalidProgramError, match=r"item 0\['tool'\] is a object, for which JSON has no form"):
        program.run_batch([(object(),)], backend=MockBackend(), journal=tmp_path / "j.jsonl")

    @function
    def returns(s: ProgramState, idx: int) -> object:
        s += "q" + gen("x")
        return object() if idx else idx

    path = tmp_path / "k.jsonl"
    with caplog.at_level("WARNING"):
        states = returns.run_batch([(0,), (1,), (2,)], backend=MockBackend(), journal=path, max_concurrency=1)
    assert [state.error() for state in states] == [None, None, None]
    assert (states[1]["x"], states.summary.num_unkept) == ("ok", 2)
    assert "Item 1 of the batch of 'returns' cannot be written to the journal" in caplog.text
    assert [record["item"] for record in records_of(path)] == [0]
    assert "2 not in the journal" in str(states.summary)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unshowable:
    def model_dump(self, *, mode: str) -> Any:
        raise ValueError("no fields")

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def test_one_odd_item_does_not_end_the_others(tmp_path: Path) -> None:
    odd: list[Callable[[ProgramState], object]] = [
        lambda s: 10**5000,
        lambda s: Unshowable(),
        lambda s: s.set_var("y", Unshowable()),
        lambda s: s.set_var("y", 10**5000),
        lambda s: [MuteError()],
    ]

    @function
    def program(s: ProgramState, idx: int) -> object:
        s += "q" + gen("x")
        if idx == len(odd):
            raise MuteError
        return odd[idx](s) if idx < len(odd) else idx

    path = tmp_path / "j.jsonl"
    states = program.run_batch([(idx,) for idx in range(8)], backend=MockBackend(), journal=path)
    assert [state["x"] for state in states if state.error() is None] == ["ok"] * 7
    assert "raised MuteError: <a MuteError whose message cannot be shown>" in str(states[5].error())
    assert sorted(record["item"] for record in records_of(path)) == [4, 5, 6, 7]
    assert states.summary.num_unkept == 4
    for argument in (10**5000, Unshowable()):
        with pytest.raises(InvalidProgramError, match="must be data: item 0: ValueError"):
            program.run_batch([(argument,)], backend=MockBackend(), journal=tmp_path / "k.jsonl")


@settings(max_examples=30, deadline=None)
@given(num_kept=st.integers(0, 4000))
def test_a_journal_that_was_cut_anywhere_is_gone_on_with(
    num_kept: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    write_journal(path)
    whole = path.read_bytes()
    kept = whole[: num_kept % (len(whole) + 1)]
    path.write_bytes(kept)
    if 0 < len(kept) < len(HEADER_START):  # too little to know whose it is
        with pytest.raises(InvalidProgramError, match="is no journal"):
            write_journal(path)
        return
    backend = MockBackend(echo)
    states = one_gen.run_batch([("a",), ("b",)], backend=backend, journal=path, max_concurrency=1)
    assert [state["x"] for state in states] == ["<a>", "<b>"]
    num_whole_records = max(0, kept.count(b"\n") - 1)
    assert len(backend.requests) == 2 - num_whole_records
    assert [comparable(record) for record in records_of(path)] == [
        comparable(json.loads(line)) for line in whole.splitlines()[1:]
    ]


DAMAGES: list[tuple[tuple[str, ...], object]] = [
    (("key",), []),
    (("occurrence",), "0"),
    (("failed",), "no"),
    (("state",), []),
    (("trace",), None),
    (("state", "values"), []),
    (("state", "variables"), []),
    (("state", "text"), 5),
    (("state", "token_ids"), "abc"),
    (("state", "messages"), [{}]),
    (("state", "pending"), [["a"]]),
    (("state", "body_error"), {"type": "ProgramError"}),
    (("state", "variables", "x"), True),
    (("state", "variables", "x"), 99),
    (("state", "variables", "x"), {"joined": [1], "on_error": "ignore"}),
]


def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_journal(path)
    header, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first[:20] + b"\n" + second)
    with pytest.raises(InvalidProgramError, match=r"line 2 of the journal .* is damaged"):
        write_journal(path)
    path.write_bytes(header + b'{"key": "k"}\n' + second)
    with pytest.raises(InvalidProgramError, match=r"a record of the journal .* is damaged .*occurrence"):
        write_journal(path)
    record = json.loads(first)
    del record["state"]["text"]
    path.write_bytes(header + json.dumps(record).encode() + b"\n" + second)
    with pytest.raises(InvalidProgramError, match=r"a record of the journal .* is damaged .*text"):
        write_journal(path)
    for place, value in DAMAGES:
        record = json.loads(first)
        *parents, name = place
        inner = record
        for parent in parents:
            inner = inner[parent]
        inner[name] = value
        path.write_bytes(header + json.dumps(record).encode() + b"\n" + second)
        with pytest.raises(InvalidProgramError, match=r"a record of the journal .* is damaged"):
            write_journal(path)
    path.write_bytes(header + b"[" * 200_000 + b"\n" + second)
    with pytest.raises(InvalidProgramError, match=r"line 2 of the journal .* is damaged"):
        write_journal(path)
    path.write_bytes(header + first + second)
    write_journal(path)  # whatever was refused has let go of the file


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    backend = MockBackend(mode="manual")

    async def main() -> None:
        task = asyncio.create_task(one_gen.arun_batch([("a",)], backend=backend, journal=path))
        while not backend.waiting:
            await asyncio.sleep(0.001)
        with pytest.raises(InvalidProgramError, match=r"run\.jsonl' is in use by a batch that is running"):
            await one_gen.arun_batch([("a",)], backend=MockBackend(), journal=path)
        backend.answer_all()
        (state,) = await task
        assert state["x"] == "ok"

    asyncio.run(main())


def test_a_disk_that_is_full_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if b'"failed"' in bytes(data):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_journal(tmp_path / "run.jsonl")


def test_a_disk_that_cannot_even_be_cut_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "run.jsonl"
    write_journal(path)
    monkeypatch.setattr(os, "ftruncate", broken)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        one_gen.run_batch([("c",), ("d",)], backend=MockBackend(echo), journal=path)


def test_an_item_that_cancels_itself_is_written_as_failed(tmp_path: Path) -> None:
    class Deaf(MockBackend):
        """Whose calls go on when they are cancelled."""

        def _cancel(self, request: Any, handle: Any) -> None: ...

    @function
    async def gives_up(s: AsyncProgramState) -> None:
        s += "q" + gen("x")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await s["x"]

    path = tmp_path / "run.jsonl"
    backend = Deaf(mode="manual")
    (state,) = gives_up.run_batch([()], backend=backend, journal=path)
    assert "was cancelled with its task" in str(state._scope.run.body_error())
    (record,) = records_of(path)
    assert record["failed"]
    (restored,) = gives_up.run_batch([()], backend=backend, journal=path, retry_failed=False)
    with pytest.raises(GenerationError, match="has no outcome in the journal"):
        restored["x"]
    backend.answer_all()


def test_progress_counts_resumed_items_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    write_journal(path)
    one_gen.run_batch([("a",), ("c",), ("b",)], backend=MockBackend(echo), journal=path, progress_bar=True)
    assert capsys.readouterr().err.startswith("one_gen: 3/3 (2 from the journal), ")


# A kill

WORKER = """
import sys
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.primitives import gen
from ramet.frontend.program import function

def reply(call, prompt):
    if "poison" in prompt:
        raise RuntimeError("cannot read " + prompt)
    return "<" + prompt + ">"

@function
def items(s, idx, bad):
    s += f"{idx} {'poison' if bad else 'item'}" + gen("x") + "," + gen("y")
    if not bad:
        s["y"]
    return idx

if __name__ == "__main__":
    backend = MockBackend(reply)
    batch = [(idx, idx % 27 == 3) for idx in range(1000)]
    results = items.run_batch(batch, backend=backend, journal=sys.argv[1], retry_failed=False)
    traced = sum(state.error() is not None and bool(state.trace().calls) for state in results)
    print(len(results), traced, results.summary.num_resumed, flush=True)
"""


def comparable(record: Record) -> Record:
    """A record without what differs between two runs of the same: times, the run's id, and what was cached when."""
    text = json.dumps(record, sort_keys=True)

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in VARYING}
        return [strip(item) for item in value] if isinstance(value, list) else value

    stripped: Record = strip(json.loads(text))
    return stripped


VARYING = {
    *("run_id", "start_time", "duration_s", "asked_s", "submitted_s", "started_s", "first_token_s", "ended_s"),
    *("queued_s", "num_cached_tokens", "model"),
}


def sorted_file(path: Path) -> list[str]:
    return sorted(json.dumps(comparable(record), sort_keys=True) for record in records_of(path))


def test_a_thousand_items_killed_at_half_and_resumed_give_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)

    def start(journal: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path / journal)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with start("whole.jsonl") as process:
        assert process.communicate(timeout=200)[0].split() == ["1000", "37", "0"]
    killed = tmp_path / "killed.jsonl"
    with start("killed.jsonl") as process:
        while process.poll() is None and (not killed.exists() or killed.read_bytes().count(b"\n") < 501):
            time.sleep(0.005)
        process.kill()
    num_kept = len(killed.read_bytes().splitlines(keepends=True)) - 1
    assert 500 <= num_kept < 1000
    with start("killed.jsonl") as process:
        num_items, num_failed, num_resumed = map(int, process.communicate(timeout=200)[0].split())
    assert (num_items, num_failed) == (1000, 37)
    assert num_kept - 1 <= num_resumed <= num_kept
    assert sorted_file(killed) == sorted_file(tmp_path / "whole.jsonl")
    assert len(records_of(killed)) == 1000
