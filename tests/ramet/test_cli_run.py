"""`ramet run`: the program's own output, errors and exit status, and the report."""

from __future__ import annotations

import io
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import ramet
from ramet import ProgramTrace
from ramet.cli import main as cli
from ramet.cli import run
from ramet.cli.errors import CommandError
from ramet.cli.recording_backend import RecordingBackend
from ramet.cli.terminal import Terminal
from ramet.cli.trace_file import TraceFile
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.local import LLM, LocalBackend
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.generation import Generation
from ramet.runtime.trace.trace import Trace

from .ctrl_c import interrupted

PROGRAM = """
import sys
from ramet import function, gen, select

@function
def ask(s, question):
    s += question + gen("answer", max_tokens=8)
    s += " So: " + select("verdict", ["yes", "no"])

state = ask.run(question="Is it?")
print(state["answer"], state["verdict"], sys.argv[1:], __name__)
"""


def write_program(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def run_source(tmp_path: Path, source: str, *arguments: str) -> tuple[int, RecordingBackend]:
    backend = RecordingBackend(lambda: MockBackend("fine"))
    return run.run_program(write_program(tmp_path, source), arguments, backend), backend


def test_the_program_runs_as_main_with_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv, path, main_module = sys.argv, sys.path[:], sys.modules["__main__"]
    status, backend = run_source(tmp_path, PROGRAM, "--report", "x")
    assert status == 0
    assert capsys.readouterr().out == "fine no ['--report', 'x'] __main__\n"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == (argv, path, main_module)
    rows = backend.rows()
    assert [row.label for row in rows] == ["gen answer", "select verdict"]
    assert [row.num_prompt_tokens for row in rows] == [len("Is it?"), len("Is it?fine So:")]
    assert [row.num_cached_tokens for row in rows] == [0, len("Is it?fine")]


def test_modules_beside_the_file_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside_the_program.py").write_text("VALUE = 42", encoding="utf-8")
    try:
        assert run_source(tmp_path, "import beside_the_program; print(beside_the_program.VALUE)")[0] == 0
    finally:
        sys.modules.pop("beside_the_program", None)
    assert capsys.readouterr().out == "42\n"


def test_an_error_shows_the_programs_own_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run_source(tmp_path, "def fail():\n    return 1 / 0\nfail()\n")
    lines = capsys.readouterr().err.splitlines()
    assert status == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert files == [str(tmp_path / "program.py")] * 2


def test_an_error_raised_on_purpose_ends_at_the_programs_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = run_source(tmp_path, PROGRAM + 'print(state["no such"])\n')
    errors = capsys.readouterr().err
    assert status == 1
    files = [line.split('"')[1] for line in errors.splitlines() if line.startswith("  File ")]
    assert files == [str(tmp_path / "program.py")]
    assert errors.splitlines()[-1].startswith("ramet.frontend.errors.UnknownVariableError: ")


def test_a_syntax_error_shows_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run_source(tmp_path, "x = 1\ny = (\n")
    errors = capsys.readouterr().err
    assert status == 1
    assert errors.startswith(f'  File "{tmp_path / "program.py"}", line 2\n')
    assert "SyntaxError" in errors


@pytest.mark.parametrize(
    ("source", "status", "errors"),
    [("raise SystemExit", 0, ""), ("import sys; sys.exit(7)", 7, ""), ("import sys; sys.exit('no')", 1, "no\n")],
)
def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, status: int, errors: str) -> None:
    assert run_source(tmp_path, source)[0] == status
    assert capsys.readouterr().err == errors


def test_a_backend_that_cannot_be_opened_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempts = []

    def open_backend() -> MockBackend:
        attempts.append(1)
        raise ramet.ModelLoadError("there is no such model")

    with pytest.raises(ramet.ModelLoadError, match="no such model"):
        run.run_program(write_program(tmp_path, PROGRAM), [], RecordingBackend(open_backend))
    assert len(attempts) == 1
    assert capsys.readouterr().err == ""


def test_a_program_without_calls_opens_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_program(tmp_path, "print('hello')")
    assert cli.main(["run", "--model", "no-such-model.gguf", str(path)]) == 0
    assert capsys.readouterr() == ("hello\n", "")


@pytest.mark.parametrize(("name", "reason"), [("missing.py", "does not exist"), (".", "is a directory")])
def test_a_file_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=reason):
        run.checked_path(name)
    assert cli.main(["run", name]) == 2
    assert capsys.readouterr().err.startswith(f"ramet: error: {name!r} {reason}")


def test_options_after_the_file_are_the_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_program(tmp_path, "import sys; print(sys.argv[1:])")
    assert cli.main(["run", "--no-report", str(path), "--model", "x", "-v", "--", "y"]) == 0
    assert capsys.readouterr().out == "['--model', 'x', '-v', '--', 'y']\n"


def test_the_report_is_one_line_or_a_table(tmp_path: Path, screen: io.StringIO) -> None:
    _, backend = run_source(tmp_path, PROGRAM)
    run.print_report(backend, Terminal(screen), is_long=False)
    assert screen.getvalue().startswith("ramet: 2 calls, 20 prompt tokens: 10 from the cache (50%), 10 computed")
    assert screen.getvalue().count("\n") == 1
    run.print_report(backend, Terminal(screen), is_long=True)
    assert "select verdict" in screen.getvalue()


TWO_ITEMS = """
from ramet import function, gen

@function
def ask(s, question):
    s += question + gen("answer", max_tokens=8)

for question in ("a", "b", "c"):
    state = ask.run(question=question)
    state.sync()
"""


@pytest.mark.parametrize("is_refused", [False, True])
def test_failed_calls_that_nobody_reads_are_reported(tmp_path: Path, screen: io.StringIO, is_refused: bool) -> None:
    class Refusing(MockBackend):
        def generate(self, call: GenerateCall) -> Generation:
            if is_refused and call.prompt_token_ids != (ord("b"),):
                raise OSError("the disk\nis full")
            return super().generate(call)

    script = ["fine"] if is_refused else [OSError("the disk\nis full"), "fine", OSError("more trouble")]
    backend = RecordingBackend(lambda: Refusing(script))
    assert run.run_program(write_program(tmp_path, TWO_ITEMS), [], backend) == 0
    assert [row.num_prompt_tokens for row in backend.rows()] == [1]
    run.print_report(backend, Terminal(screen), is_long=False)
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith("ramet: 1 call, 1 prompt tokens")
    assert lines[1:] == ["ramet: 2 of 3 calls failed; the first, gen answer: the disk is full"]
    run.print_report(backend, Terminal(screen), is_long=True)
    table = screen.getvalue().splitlines()[2:]
    assert [line.split()[:3] for line in table[2:5:2]] == [["gen", "answer", "failed:"]] * 2
    assert len({len(line) for line in table[:7]}) == 1


def test_only_failed_calls(tmp_path: Path, screen: io.StringIO) -> None:
    backend = RecordingBackend(lambda: MockBackend([RuntimeError("broken")]))
    assert run.run_program(write_program(tmp_path, PROGRAM), [], backend) == 1
    run.print_report(backend, Terminal(screen), is_long=False)
    assert screen.getvalue() == "ramet: 1 of 1 call failed; gen answer: broken\n"


def test_cancelled_calls_are_no_failures(tmp_path: Path, screen: io.StringIO) -> None:
    source = TWO_ITEMS.replace("state.sync()", "state.cancel()")
    backend = RecordingBackend(lambda: MockBackend(mode="manual"))
    assert run.run_program(write_program(tmp_path, source), [], backend) == 0
    run.print_report(backend, Terminal(screen), is_long=False)
    assert screen.getvalue() == ""


def test_one_backend_is_opened_for_many_threads() -> None:
    opened = []

    def open_backend() -> MockBackend:
        opened.append(MockBackend())
        return opened[-1]

    backend = RecordingBackend(open_backend)
    threads = [threading.Thread(target=backend.info) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1


@pytest.mark.model
def test_a_program_finds_the_llm_of_its_backend(
    smollm2: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from ramet import get_default_backend\nprint(get_default_backend().llm.model_name)\n"
    with LocalBackend(smollm2) as local:
        backend = RecordingBackend(lambda: local)
        assert run.run_program(write_program(tmp_path, source), [], backend) == 0
        assert capsys.readouterr().out == "smollm2\n"
        assert backend.llm is smollm2
    with pytest.raises(AttributeError, match="a MockBackend has no llm"):
        _ = RecordingBackend(MockBackend).llm


def test_ctrl_c_in_a_program(tmp_path: Path) -> None:
    path = write_program(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    code = "import sys; from ramet.cli.main import main; sys.exit(main())"
    status, _, errors = interrupted(["-c", code, "run", str(path)])
    assert (status, errors) == (130, "\nramet: interrupted\n")


def test_ctrl_c_while_a_thread_of_the_program_opens_the_model(tmp_path: Path) -> None:
    path = write_program(tmp_path, PROGRAM.split("state =", maxsplit=1)[0] + 'ask.run_batch([("Is it?",)])\n')
    code = (
        "import sys, time\n"
        "from ramet.cli import run\n"
        "from ramet.cli.main import main\n"
        "def open_backend(args):\n"
        "    print('opening', flush=True)\n"
        "    time.sleep(60)\n"
        "run.open_backend = open_backend\n"
        "sys.exit(main())\n"
    )
    status, _, errors = interrupted(["-c", code, "run", str(path)], said="opening\n")
    assert (status, errors) == (130, "\nramet: interrupted\n")


@pytest.mark.model
def test_a_page_of_the_run_has_programs_cache_and_steps(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program, page = write_program(tmp_path, PROGRAM), tmp_path / "run.html"
    assert cli.main(["run", "--trace", str(page), str(program)]) == 0
    shown = capfd.readouterr().err
    assert "the trace of 1 run and" in shown
    assert f"steps is in {page}" in shown
    text = page.read_text(encoding="utf-8")
    assert "<h2>Timeline</h2>" in text
    assert "<h2>Cache</h2>" in text
    assert "srcdoc" in text
    assert "&lt;svg" in text


@pytest.mark.model
def test_a_picture_of_the_steps_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program, picture = write_program(tmp_path, PROGRAM), tmp_path / "steps.svg"
    assert cli.main(["run", "--trace", str(picture), str(program)]) == 0
    assert f"steps is in {picture}" in capfd.readouterr().err
    assert picture.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.model
def test_records_of_the_run_are_written_also_if_it_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = PROGRAM + "\n@function\ndef bad(s):\n    s += 'a'\n    raise ValueError('no luck')\nbad.run()\n"
    program, records = write_program(tmp_path, source), tmp_path / "run.jsonl"
    assert cli.main(["run", "--trace", str(records), str(program)]) == 1
    assert f"the trace of 2 runs is in {records}, that of" in capfd.readouterr().err
    asked, raised = ProgramTrace.load(records)
    assert (asked.name, asked.status, asked.arguments) == ("ask", "done", {"question": "Is it?"})
    assert asked.model["model"] == "smollm2"
    assert all(call.started_s is not None for call in asked.model_calls)
    assert raised.error is not None
    assert (raised.error.message, raised.error.source) == ("no luck", "program.py:16")
    steps = Trace.load_jsonl(tmp_path / "run.steps.jsonl")
    assert steps.metadata.model == "smollm2"
    assert sum(step.num_tokens for step in steps) >= 3  # the prompt; how much is generated is drawn


def test_a_trace_is_written_when_the_program_is_interrupted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "open_traced", lambda *_: MockBackend("fine"))
    program = write_program(tmp_path, PROGRAM + "\nraise KeyboardInterrupt\n")
    records = tmp_path / "run.jsonl"
    assert cli.main(["run", "--trace", str(records), str(program)]) == 130
    assert [trace.name for trace in ProgramTrace.load(records)] == ["ask"]
    assert f"the trace of 1 run is in {records}" in capfd.readouterr().err


def test_what_runs_share_is_reported(tmp_path: Path, screen: io.StringIO) -> None:
    source = """
    from ramet import function, gen

    @function
    def triage(s, ticket):
        s += "Sort this: " + ticket + gen("queue", max_tokens=4)

    triage.run_batch([{"ticket": letter} for letter in "abcd"], max_concurrency=1)
    """
    _, backend = run_source(tmp_path, source)
    run.print_report(backend, Terminal(screen), is_long=False)
    told = screen.getvalue().splitlines()[1]
    assert told == "ramet: triage: shared prefix 11 tokens x 4 runs, 75 % hit; the cache saved 33 of 48 prompt tokens"


@pytest.mark.parametrize(("name", "message"), [("steps.png", "must end in"), ("no/such/steps.svg", "does not exist")])
def test_a_trace_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    program = write_program(tmp_path, "print('ran')")
    assert cli.main(["run", "--trace", str(tmp_path / name), str(program)]) == 2
    captured = capfd.readouterr()
    assert message in captured.err
    assert "ran" not in captured.out


def test_a_program_without_a_call_has_no_trace_and_is_told_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program, trace = write_program(tmp_path, "print('ran')"), tmp_path / "steps.svg"
    assert cli.main(["run", "--trace", str(trace), str(program)]) == 0
    captured = capfd.readouterr()
    assert captured.out == "ran\n"
    assert "no call reached the default backend" in captured.err
    assert not trace.exists()


def test_threads_of_the_program_end_before_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
        import threading, time
        from ramet import function, gen

        @function
        def late(s):
            s += "q" + gen("a", max_tokens=4)

        def run():
            time.sleep(0.05)
            threading.Thread(target=lambda: print(late.run()["a"], __name__)).start()

        threading.Thread(target=run).start()
        raise GeneratorExit
    """
    status, backend = run_source(tmp_path, source)
    output = capsys.readouterr()
    assert (status, output.out) == (1, "fine __main__\n")
    assert output.err.rstrip().endswith("GeneratorExit")
    assert len(backend.rows()) == 1


def test_a_relative_trace_path_is_where_the_command_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    trace = TraceFile("trace.jsonl")
    backend = RecordingBackend(lambda: MockBackend("fine"), keeps_runs=True)
    assert (
        run.run_program(write_program(tmp_path, f"import os; os.chdir({str(elsewhere)!r})\n" + PROGRAM), (), backend)
        == 0
    )
    trace.save(backend)
    assert [trace.name for trace in ProgramTrace.load(tmp_path / "trace.jsonl")] == ["ask"]
