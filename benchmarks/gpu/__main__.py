"""Command line: see `python benchmarks/gpu.py --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

COMMAND = "PYTHONPATH=. python benchmarks/gpu.py --minutes 8 --out DIR"
DESCRIPTION = "ramet on a GPU: correctness, shares of what the device can do, and whole models beside transformers."
NO_DEVICE = """No CUDA device is seen here. On a machine with one, torch, Triton and transformers, from the root of the
checkout, without installing anything:

    {command}

Here, `--tiny` runs the same code under Triton's interpreter."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, 1 if something failed or is wrong, 2 if there is no device."""
    args = _parser().parse_args(arguments)
    # Before anything of ramet is imported: kernels are decorated, and libraries looked for, when they are.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers looks for kernels on its hub
    import torch

    has_device = torch.cuda.is_available()
    if args.tiny and not has_device:
        os.environ["TRITON_INTERPRET"] = "1"
        torch.set_num_threads(1)
    if args.device_check:
        return _check_device()
    if not has_device and not args.tiny:
        print(NO_DEVICE.format(command=COMMAND))
        return 2
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    import torch

    from .packages import stand_ins

    with stand_ins():
        from .parts import PARTS
        from .results import Deadline
        from .run import JSON_NAME, TABLE_NAME, end_process_after, make_bench, make_header, run_parts, write_results

    names = args.parts or [part.name for part in PARTS]
    unknown = sorted(set(names) - {part.name for part in PARTS})
    if unknown:
        print(f"error: no part is called {unknown[0]!r}; there are {', '.join(part.name for part in PARTS)}")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = Deadline(args.minutes * 60)
    bench = make_bench(torch.device("cuda" if torch.cuda.is_available() else "cpu"), is_tiny=args.tiny)
    parts = [part for part in PARTS if part.name in names]
    header, results = make_header(bench, _command(args), args.minutes), []
    if not args.tiny:
        end_process_after(deadline.left, partial(write_results, args.out, header, results))
    run_parts(bench, parts, deadline, args.out, header, results)
    print((args.out / TABLE_NAME).read_text(encoding="utf-8"))
    print(f"{args.out / JSON_NAME} and {args.out / TABLE_NAME} are written.")
    return 0 if all(result.is_sound for result in results) else 1


def _check_device() -> int:
    """Say whether this machine can run it, and how."""
    import torch

    from .packages import missing_packages, version_of

    print(", ".join(f"{name} {version_of(name)}" for name in ("torch", "triton", "transformers")))
    if missing_packages():
        print(f"not installed, and not needed here: {', '.join(missing_packages())}")
    if not torch.cuda.is_available():
        print(NO_DEVICE.format(command=COMMAND))
        return 2
    from ramet.kernels.triton.availability import why_unavailable

    reason = why_unavailable(torch.device("cuda"))
    print(torch.cuda.get_device_name())
    print(f"Triton kernels cannot run: {reason}" if reason else f"ready; run\n\n    {COMMAND}\n")
    return 2 if reason else 0


def _command(args: argparse.Namespace) -> str:
    parts = ["python benchmarks/gpu.py"]
    parts += ["--tiny"] if args.tiny else [f"--minutes {args.minutes:g}"]
    return " ".join([*parts, *(["--parts", *args.parts] if args.parts else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python benchmarks/gpu.py", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for gpu.json and gpu.md")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything; parts are cut to fit")
    parser.add_argument("--parts", nargs="+", metavar="PART", help="only these")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, without a GPU: to see that everything runs")
    parser.add_argument("--device-check", action="store_true", help="only say whether this machine can run it, and how")
    return parser


if __name__ == "__main__":
    sys.exit(main())
