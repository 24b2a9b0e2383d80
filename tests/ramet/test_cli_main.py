"""The command line as a whole: what it accepts, and how an error ends."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ramet
from ramet.cli import main as cli
from ramet.cli.engine_options import engine_options, small_cache_warning
from ramet.cli.errors import CommandError, one_line
from ramet.cli.flags import in_flags
from ramet.runtime.config import EngineConfig

RAMET = [sys.executable, "-c", "import sys; from ramet.cli.main import main; sys.exit(main())"]


def run_ramet(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAMET, *arguments], capture_output=True, text=True, timeout=120, check=False)


def raising(error: BaseException) -> cli.Command:
    def execute(args: argparse.Namespace) -> int:
        raise error

    return cli.Command("raise an error", lambda parser: None, execute)


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ramet.cli.main import build_parser; print(build_parser().format_help());"
        "assert not {'torch', 'numpy', 'transformers', 'tokenizers'} & set(sys.modules), sorted(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    for name in cli.COMMANDS:
        assert name in result.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out == f"ramet {ramet.__version__}\n"


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_says_what_it_does_in_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    summary = cli.COMMANDS[command].summary
    assert f"{summary[0].upper()}{summary[1:]}." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_num_seqs=0 must be positive", "--max-num-seqs=0 must be positive"),
        ("host='x' is no host; num_threads=0", "--host='x' is no host; --threads=0"),
        ("prefix_cache_dir_size=1 is too small", "--cache-dir-size=1 is too small"),
        ("leave out max_body_bytes.", "leave out --max-body-size."),
        ("/tmp/max_num_seqs and my_max_num_seqs_file", "/tmp/max_num_seqs and my_max_num_seqs_file"),
    ],
)
def test_errors_call_options_by_their_flags(message: str, shown: str) -> None:
    assert in_flags(message, cli.build_parser().parse_args(["serve"]).flags) == shown


def test_without_a_command_it_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["run"],
        ["chat", "--threads", "0"],
        ["chat", "--model", ""],
        ["run", "--model", "  ", "program.py"],
        ["chat", "--kv-cache-memory", "lots"],
        ["doctor", "--no-such"],
    ],
)
def test_a_bad_command_line_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    assert "usage: ramet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        CommandError("cannot do that"),
        ramet.InvalidSamplingParamsError("top_p=2 is not allowed"),
        ramet.ModelLoadError("no such\nmodel"),
        ramet.GenerationError("it failed"),
    ],
)
def test_errors_on_purpose_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", raising(error))
    assert cli.main(["fail"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"ramet: error: {' '.join(str(error).split())}\n"
    with pytest.raises(type(error)):
        cli.main(["fail", "--debug"])


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", raising(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["fail"])


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "fail", raising(KeyboardInterrupt()))
    assert cli.main(["fail"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    code = (
        "import argparse, sys; from ramet.cli import main as cli\n"
        "def shout(args):\n"
        "    for _ in range(100_000): print('x' * 100)\n"
        "cli.COMMANDS['shout'] = cli.Command('shout', lambda parser: None, shout)\n"
        "sys.exit(cli.main(['shout']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert errors == b""


def test_a_model_that_does_not_exist_is_one_line() -> None:
    result = run_ramet("chat", "--model", "no-such-model.gguf")
    assert result.returncode == 2
    assert result.stderr.startswith("ramet: error: ")
    assert "no-such-model.gguf" in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_line_adds_causes_that_are_not_named_yet() -> None:
    error = ramet.GenerationError("gen 'x' failed: disk on fire")
    error.__cause__ = OSError("disk on fire")
    assert one_line(error) == "gen 'x' failed: disk on fire"
    error.__cause__ = OSError("disk on fire\nCall the fire brigade.")
    assert one_line(error) == "gen 'x' failed: disk on fire"
    error.__cause__ = OSError("out of space")
    assert one_line(error) == "gen 'x' failed: disk on fire: out of space"


@pytest.mark.parametrize("size", ["2T", "0", "-1", "G", "1.5G", ""])
def test_a_size_that_is_none_says_how_to_write_one(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["chat", f"--kv-cache-memory={size}"])
    assert f"--kv-cache-memory: {size!r} must be a number of bytes such as 512M or 2G" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (
            ["serve", "--prot", "8"],
            "ramet serve [OPTIONS] [MODEL]",
            "there is no option --prot; did you mean '--port'?",
        ),
        (["serve", "--max_model_len=8"], "ramet serve [OPTIONS] [MODEL]", "did you mean '--max-model-len'?"),
        (["run", "--modle", "x", "f.py"], "ramet run [OPTIONS] FILE ...", "did you mean '--model'?"),
        (["run"], "ramet run [OPTIONS] FILE ...", "required: FILE ("),
        (["chat", "--zzz"], "ramet chat [OPTIONS]", "there is no option --zzz ("),
        (["chat", "--threads", "0"], "ramet chat [OPTIONS]", "--threads: '0' must be an integer of at least 1"),
        (["sevre"], "ramet [OPTIONS] COMMAND ...", "'sevre' is unknown; did you mean 'serve'?"),
        (["--vresion"], "ramet [OPTIONS] COMMAND ...", "did you mean '--version'?"),
        (["serve", "a", "b"], "ramet serve [OPTIONS] [MODEL]", "'b' is one value too many; an option takes one"),
    ],
)
def test_a_mistake_is_answered_by_the_command_it_was_made_with(
    arguments: list[str], usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    lines = capsys.readouterr().err.splitlines()
    prog = usage.partition(" [")[0]
    assert lines[0] == f"usage: {usage}"
    assert lines[1].startswith(f"{prog}: error: ")
    assert message in lines[1]
    assert lines[1].endswith(f"('{prog} --help' lists the options)")
    assert len(lines) == 2


def test_the_options_of_a_program_are_its_own() -> None:
    args = cli.build_parser().parse_args(["run", "--threads", "1", "f.py", "--prot", "8"])
    assert (args.file, args.args, args.threads) == ("f.py", ["--prot", "8"], 1)


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_no_option_takes_what_follows_its_value(command: str) -> None:
    """It would swallow a MODEL or a FILE."""
    (subparsers,) = (each for each in cli.build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    options = [action for action in subparsers.choices[command]._actions if action.option_strings]
    assert {action.nargs for action in options} <= {None, 0}


@pytest.mark.parametrize(
    ("context_len", "asked", "is_warned"), [(32, None, True), (32, 8192, False), (4096, None, False)]
)
def test_a_cache_much_smaller_than_the_context_is_said(context_len: int, asked: int | None, is_warned: bool) -> None:
    arguments = ["chat"] if asked is None else ["chat", "--max-model-len", str(asked)]
    llm: Any = SimpleNamespace(max_context_len=context_len, max_model_len=8192)
    warning = small_cache_warning(llm, cli.build_parser().parse_args(arguments))
    assert (warning is not None) == is_warned
    if warning is not None:
        assert "holds 32 tokens, and the model's context is 8,192" in warning


def test_kernels_are_chosen_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["chat", "--kernels", "swift"]) == 2
    assert "--kernels='swift' is unknown; choose one of cpu, reference, torch, torch_int8" in capsys.readouterr().err


def test_only_given_options_reach_the_engine() -> None:
    parser = cli.build_parser()
    assert engine_options(parser.parse_args(["chat"])) == {}
    arguments = ["chat", "--max-model-len", "64", "--kv-cache-memory", "1M", "--no-prefix-caching"]
    assert engine_options(parser.parse_args(arguments)) == {
        "max_model_len": 64,
        "kv_cache_memory": 1 << 20,
        "enable_prefix_caching": False,
    }


@pytest.mark.parametrize("command", [["chat"], ["run", "x.py"], ["eval", "x"], ["demo"], ["doctor"]])
def test_every_command_with_a_model_can_keep_prefixes(command: list[str]) -> None:
    given = ["--cache-dir", "~/kept", "--cache-dir-size", "1G", "--host-cache-memory", "512M"]
    options = engine_options(cli.build_parser().parse_args([command[0], *given, *command[1:]]))
    assert options == {
        "prefix_cache_dir": "~/kept",
        "prefix_cache_dir_size": 1 << 30,
        "host_cache_memory": 512 << 20,
    }
    EngineConfig(**options)


@pytest.mark.parametrize("command", [["chat"], ["run", "x.py"], ["eval", "x"], ["demo"], ["doctor"]])
def test_every_command_with_a_model_takes_the_options_of_a_gpu(command: list[str]) -> None:
    parser = cli.build_parser()
    given = ["--dtype", "float16", "--kv-cache-dtype", "int8", "--gpu-memory-utilization", "0.5"]
    given += ["--no-overlap-schedule", "--captured-batch-sizes", "1, 2,4"]
    options = engine_options(parser.parse_args([command[0], *given, *command[1:]]))
    assert options == {
        "dtype": "float16",
        "kv_cache_dtype": "int8",
        "gpu_memory_utilization": 0.5,
        "overlap_schedule": False,
        "captured_batch_sizes": (1, 2, 4),
    }
    EngineConfig(**options)
    graphs = parser.parse_args([command[0], "--disable-cuda-graph", "--overlap-schedule", *command[1:]])
    assert engine_options(graphs) == {"captured_batch_sizes": (), "overlap_schedule": True}
    smaller = parser.parse_args([command[0], "--quantization", "int8", "--tensor-parallel-size", "2", *command[1:]])
    assert engine_options(smaller) == {"quantization": "int8", "tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu-memory-utilization", "90"], "'90' must be a number above 0 and at most 1"),
        (["--gpu-memory-utilization", "nan"], "'nan' must be a number above 0"),
        (["--gpu-memory-utilization", "much"], "'much' must be a number above 0"),
        (["--captured-batch-sizes", "1,0"], "'0' must be an integer of at least 1"),
        (["--captured-batch-sizes", "1", "--disable-cuda-graph"], "not allowed with argument"),
    ],
)
def test_options_of_a_gpu_out_of_range(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["chat", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_names_of_dtypes_are_the_configs_to_refuse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["chat", "--kv-cache-dtype", "int3"]) == 2
    assert "--kv-cache-dtype='int3' is unknown; choose one of ['auto', 'fp8'" in capsys.readouterr().err
