"""Command line: see `python benchmarks/gpu.py --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .packages import missing_packages, stand_ins, version_of, why_not_installed

if TYPE_CHECKING:
    import torch

    from .bench import Bench
    from .parts import Part

EXIT_IMPOSSIBLE, EXIT_INTERRUPTED = 2, 130
COMMAND = "PYTHONPATH=. python benchmarks/gpu.py --minutes 8 --out DIR"
DESCRIPTION = "ramet on a GPU: correctness, shares of what the device can do, and whole models beside transformers."
NO_DEVICE = """No CUDA device is seen here. On a machine with one, torch, Triton and transformers, from the root of the
checkout, without installing anything:

    {command}

Here, `--tiny` runs the same code under Triton's interpreter."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if something failed, is wrong or was not measured; 2 if it cannot run here or as asked; 130 on
    Ctrl-C."""
    args = _parser().parse_args(arguments)
    # Before anything of ramet is imported: kernels are decorated, and libraries looked for, when they are.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers looks for kernels on its hub
    try:
        if args.device_check:
            return _check_device()
        reason = why_not_installed()
        return _refuse(f"error: {reason}") if reason else _run(args)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    import torch

    has_device = torch.cuda.is_available()
    if args.tiny and not has_device:
        os.environ["TRITON_INTERPRET"] = "1"
        torch.set_num_threads(1)
    if not has_device and not args.tiny:
        return _refuse(NO_DEVICE.format(command=COMMAND))
    from ramet.kernels.triton.availability import why_unavailable

    device = torch.device("cuda" if has_device else "cpu")
    reason = why_unavailable(device)
    return _refuse(f"error: Triton kernels cannot run on {device}: {reason}") if reason else _measure(args, device)


def _measure(args: argparse.Namespace, device: torch.device) -> int:
    with stand_ins():
        from .parts import PARTS
        from .run import make_bench, make_header, why_not_minutes, why_not_written

    known = [part.name for part in PARTS]
    unknown = [name for name in args.parts or () if name not in known]
    if unknown:
        return _refuse(f"error: no part is called {' or '.join(map(repr, unknown))}; there are {', '.join(known)}")
    parts = [part for part in PARTS if args.parts is None or part.name in args.parts]
    reason = why_not_minutes(args.minutes, len(parts)) or why_not_written(args.out)
    if reason:
        return _refuse(f"error: {reason}")
    bench = make_bench(device, is_tiny=args.tiny)
    header = make_header(bench, _command(args, [part.name for part in parts]), args.minutes)
    return _run_and_report(args, bench, parts, header)


def _run_and_report(args: argparse.Namespace, bench: Bench, parts: Sequence[Part], header: dict[str, Any]) -> int:
    from .report import unsound
    from .results import Deadline
    from .run import JSON_NAME, TABLE_NAME, end_process_after, run_parts, write_results

    deadline, results = Deadline(args.minutes * 60), []
    if not args.tiny:
        end_process_after(deadline.left, partial(write_results, args.out, header, results))
    written = f"{args.out / JSON_NAME} and {args.out / TABLE_NAME} are written."
    try:
        run_parts(bench, parts, deadline, args.out, header, results)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {written}", flush=True)
        return EXIT_INTERRUPTED
    print((args.out / TABLE_NAME).read_text(encoding="utf-8"))
    print("\n".join([*unsound(results), written]))
    return 0 if all(result.is_sound for result in results) else 1


def _check_device() -> int:
    """Say whether this machine can run it, and how. Where torch is missing, it needs the standard library alone."""
    print(", ".join(f"{name} {version_of(name)}" for name in ("torch", "triton", "transformers")))
    if missing_packages():
        print(f"not installed, and not needed here: {', '.join(missing_packages())}")
    reason = why_not_installed()
    if reason:
        return _refuse(f"error: {reason}")
    import torch

    if not torch.cuda.is_available():
        return _refuse(NO_DEVICE.format(command=COMMAND))
    from ramet.kernels.triton.availability import why_unavailable

    reason = why_unavailable(torch.device("cuda"))
    print(torch.cuda.get_device_name())
    print(f"Triton kernels cannot run: {reason}" if reason else f"ready; run\n\n    {COMMAND}\n")
    return 2 if reason else 0


def _refuse(text: str) -> int:
    print(text)
    return EXIT_IMPOSSIBLE


def _command(args: argparse.Namespace, names: Sequence[str]) -> str:
    parts = ["python benchmarks/gpu.py"]
    parts += ["--tiny"] if args.tiny else [f"--minutes {args.minutes:g}"]
    return " ".join([*parts, *(["--parts", *names] if args.parts else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python benchmarks/gpu.py", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything; parts are cut to fit")
    parser.add_argument("--parts", nargs="+", action="extend", metavar="PART", help="only these")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, without a GPU: to see that everything runs")
    parser.add_argument("--device-check", action="store_true", help="only say whether this machine can run it, and how")
    return parser


if __name__ == "__main__":
    sys.exit(main())
