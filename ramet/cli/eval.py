"""`ramet eval TASK`: few-shot evaluation of a model, with the shots computed once."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine_options import add_engine_arguments, open_backend, positive_int
from .errors import CommandError
from .interrupts import exit_on_interrupt
from .terminal import Terminal

if TYPE_CHECKING:
    from ..eval import EvalResult, Task
    from ..frontend.backend import Backend

EXIT_FAILED = 1

_TASK_OPTIONS = {
    "kind": ("KIND", "multiple_choice, select, generate or perplexity"),
    "prompt": ("TEMPLATE", r"a question, such as 'Question: {question}\nAnswer:' (\n is a new line)"),
    "target": ("TEMPLATE", "the right answer, such as '{answer}'"),
    "choices": ("TEMPLATE", "a field with a list, such as '{options}'; or give it once per choice"),
    "description": ("TEXT", "text before everything else"),
    "shots": ("FILE", "a JSONL file to take the shots from (default: the items themselves)"),
    "shot_target": ("TEMPLATE", "the answer in a shot, where it is more than the target"),
    "shot_order": ("ORDER", "fixed (default): the same drawn shots for all; first; or per_item"),
    "stop": ("TEXT", "where a generated answer ends; may be given several times"),
    "choices_method": ("NAME", "of kind select, such as greedy_token_selection"),
    "answer_regex": ("REGEX", "of kind generate: its first group is the answer"),
    "system": ("TEXT", "the system message of a chat"),
}
_SEVERAL = ("choices", "stop")
_WITH_ESCAPES = ("prompt", "description", "stop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", metavar="TASK", help="a task file (.toml), items (.jsonl), gsm8k, bbh:SUBTASK or bbh_choices:SUBTASK"
    )
    parser.add_argument("--data", metavar="PATH", help="the directory that has the data of a built-in task")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="ask the first N items only")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write an item a line (JSONL), the summary beside it"
    )
    parser.add_argument("--resume", action="store_true", help="go on with --output: ask only what it does not have")
    parser.add_argument("--max-concurrency", type=positive_int, default=64, metavar="N", help="items at a time (64)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")
    parser.add_argument("--no-progress", action="store_true", help="show no progress")
    parser.add_argument(
        "--show", type=positive_int, metavar="N", help="print the exact prompts of the first N items and ask nothing"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="run all of it on a mock instead of a model, to check the task"
    )
    add_task_arguments(parser)
    add_engine_arguments(parser)


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Fields of the task that may be set, or changed, at the command line."""
    group = parser.add_argument_group("task", "what these say goes before what the task's file says")
    group.add_argument("--num-shots", type=_count, metavar="N", help="worked examples before each item")
    group.add_argument("--seed", type=_count, metavar="N", help="of the draw of shots, and of sampling")
    group.add_argument("--chat", choices=("off", "turns", "text"), help="use the chat template; shots as turns or text")
    group.add_argument("--max-tokens", type=positive_int, metavar="N", help="longest generated answer")
    group.add_argument("--temperature", type=float, metavar="X", help="of generated answers (0)")
    for name, (metavar, text) in _TASK_OPTIONS.items():
        action = "append" if name in _SEVERAL else "store"
        group.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text, action=action)


def execute(args: argparse.Namespace) -> int:
    with exit_on_interrupt():
        from ..eval import load_task
    task = load_task(args.task, args.data, **task_changes(args))
    check_output(args)
    with ExitStack() as stack:
        backend: Backend
        if args.dry_run:
            from ..frontend.backends.mock import MockBackend

            backend = MockBackend()
        else:
            backend = stack.enter_context(open_backend(args))
        if args.show is not None:
            show_prompts(task, args.show, backend, Terminal())
            return 0
        return run(task, args, backend, Terminal())


def run(task: Task, args: argparse.Namespace, backend: Backend, terminal: Terminal) -> int:
    """Evaluate and report. Returns the exit status: 1 if an item failed."""
    from ..eval import evaluate, format_report

    try:
        result = evaluate(
            task,
            backend,
            limit=args.limit,
            max_concurrency=args.max_concurrency,
            progress_bar=not args.no_progress,
            output=args.output,
            resume=args.resume,
        )
    except KeyboardInterrupt:
        if args.output is not None:
            print(f"\nramet: what has ended is in {args.output}; --resume goes on with it", file=sys.stderr)
        raise
    if args.output is not None:
        write_summary(result, summary_path(args.output))
    if args.json:
        terminal.line(json.dumps(result.to_json(), indent=2))
    else:
        terminal.line(format_report(result))
    return EXIT_FAILED if result.failed else 0


def show_prompts(task: Task, num_prompts: int, backend: Backend, terminal: Terminal) -> None:
    """Print what a model would be sent, special tokens included."""
    from ..eval import build_questions, exact_prompt

    model = backend.info().get("model")
    whose = "a mock, since this is a dry run; a model has its own" if model is None else f"the model {model}"
    terminal.line(terminal.dim(f"--- chat template and tokens are those of {whose}"))
    for question in build_questions(task, num_prompts):
        shown = exact_prompt(task, question, backend)
        terminal.line(terminal.bold(f"--- item {question.idx}: {shown.num_tokens:,} tokens"))
        terminal.line(shown.text)
        for idx, tokens in enumerate(shown.continuations):
            terminal.line(terminal.dim(f"--- choice {idx}: {' | '.join(map(repr, tokens))}"))
        if question.targets:
            terminal.line(terminal.dim(f"--- target: {' or '.join(map(repr, question.targets))}"))


def task_changes(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of Task that were given at the command line."""
    from ..eval import Filter

    names = ("num_shots", "seed", "chat", "max_tokens", "temperature", *_TASK_OPTIONS)
    given = {name: vars(args)[name] for name in names if vars(args)[name] is not None}
    for name in _WITH_ESCAPES:
        if name in given:
            value = given[name]
            given[name] = [_unescaped(text) for text in value] if isinstance(value, list) else _unescaped(value)
    if "shots" in given:
        given["shots"] = str(Path(given["shots"]).absolute())
    if "answer_regex" in given:
        given["filters"] = [Filter(pattern=given.pop("answer_regex"))]
    return given


def check_output(args: argparse.Namespace) -> None:
    """Raise before a model is loaded if the results could not be written."""
    if args.resume and args.output is None:
        raise CommandError("--resume goes on with a file: name it with --output")
    if args.output is None:
        return
    if not args.output.parent.is_dir():
        raise CommandError(f"{args.output} cannot be written: there is no directory {args.output.parent}")
    if args.output.is_dir():
        raise CommandError(f"{args.output} is a directory: give the name of a file")
    if args.output.exists() and args.output.stat().st_size and not args.resume:
        raise CommandError(f"{args.output} exists: go on with it by --resume, or give another name")


def summary_path(output: Path) -> Path:
    """Where the summary of these results goes."""
    return output.with_name(f"{output.stem}.summary.json")


def write_summary(result: EvalResult, path: Path) -> None:
    path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _count(text: str) -> int:
    """An argument type: an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 0")
    return int(text)
