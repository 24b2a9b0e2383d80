"""Command line: see `python -m benchmarks.cpu --help`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from .campaign import PARTS, Plan, run_plan
from .catalogue import ENGINES, FAMILIES
from .inputs import FULL, QUICK
from .machine import available_cores, describe_machine
from .process import JobError
from .report import render
from .workloads import WORKLOADS

DESCRIPTION = "ramet on a CPU beside its peers, the machine's limits, and the same weights in fp32."
EPILOG = f"""Engines: {", ".join(ENGINES)}. Workloads: {", ".join(WORKLOADS)}. Parts: {", ".join(PARTS)}. Peers are
optional: one that is not installed, or fails, is a line that says so. They may live in other Python environments:
--python vllm=/path/to/python, for {", ".join(FAMILIES)}. Model files made for them are kept in ramet's cache."""


def main() -> None:
    args = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the process that is running is ended too
    if args.render is not None:
        results = json.loads(args.render.read_text(encoding="utf-8"))
    else:
        results = _measure(args)
        if args.raw is not None:
            args.raw.write_text(json.dumps(results, indent=1), encoding="utf-8")
    report = render(results)
    print(report)
    if args.output is not None:
        args.output.write_text(report + "\n", encoding="utf-8")


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    plan = Plan(
        model=args.model,
        engines=args.engines,
        workloads=args.workloads,
        parts=args.parts,
        pythons=dict(args.python),
        threads=args.threads,
        repeat=args.repeat,
        is_quick=args.quick,
        timeout=args.timeout,
        kernels=args.kernels,
        log=args.log,
    )
    try:
        results = run_plan(plan)
    except JobError as error:
        sys.exit(f"error: {error}")
    sizes = QUICK if args.quick else FULL
    results["run"] = {
        "machine": describe_machine(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "command": _command(args),
        "threads": args.threads,
        "repeat": args.repeat,
        "python": sys.version.split()[0],
        "sizes": {"prompt": sizes.single[0], "generated": sizes.single[1]},
    }
    return results


def _command(args: argparse.Namespace) -> str:
    """The command again, without what is this machine's only."""
    parts = ["python -m benchmarks.cpu", f"--threads {args.threads}", f"--repeat {args.repeat}"]
    parts += ["--quick"] if args.quick else []
    parts += [f"--kernels {args.kernels}"] if args.kernels else []
    for name, known in (("engines", ENGINES), ("workloads", WORKLOADS), ("parts", PARTS)):
        chosen: list[str] = getattr(args, name)
        parts += [f"--{name} {' '.join(chosen)}"] if list(chosen) != list(known) else []
    return " ".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="NAME")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--model", default="smollm2", help="a GGUF file; the bundled model by default")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--repeat", type=int, default=3, help="rounds; each starts every engine anew")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--kernels", help="what computes the model in ramet; the fastest there is by default")
    parser.add_argument("--python", action="append", type=_family_python, default=[], metavar="FAMILY=PYTHON")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds one process may take")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    parser.add_argument("--raw", type=Path, help="write what was measured to this file, as JSON")
    parser.add_argument("--render", type=Path, help="measure nothing: report what --raw wrote")
    parser.add_argument("--log", type=Path, help="append what the processes print to this file")
    return parser


def _family_python(text: str) -> tuple[str, str]:
    """ "vllm=python3.12" as a pair. The path is made absolute but its links are not followed: a venv is one."""
    family, _, python = text.partition("=")
    if family not in FAMILIES:
        raise argparse.ArgumentTypeError(f"{family!r} is none of {', '.join(FAMILIES)}")
    found = shutil.which(python)
    if found is None:
        raise argparse.ArgumentTypeError(f"{python!r} is no program")
    return family, os.path.abspath(found)


if __name__ == "__main__":
    main()
