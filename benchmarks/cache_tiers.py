"""What does a prefix cache on a disk cost while it is written, and what does it save after a restart?

    python -m benchmarks.cache_tiers [--rounds 6] [--prompt-len 256] [--tokens 32] [--output FILE]

*Writing*: batches of new prompts, each answered by two processes in turn, of which one keeps its prefixes on the disk.
*Restart*: a new process is asked for a prompt that an earlier one has answered and kept on the disk, and for one that
is as long and new.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from .server_client import prompts_of
from .server_process import ServerProcess

BATCH = 32
RESTART_PROMPT_LEN = 900


def measure_writing(directory: Path, num_rounds: int, prompt_len: int, max_tokens: int) -> list[tuple[float, float]]:
    """Seconds of each batch, without and with the disk."""
    found = []
    with ServerProcess() as without, ServerProcess(prefix_cache_dir=str(directory)) as with_disk:
        for idx in range(num_rounds + 1):
            prompts = prompts_of(f"writing {idx}", BATCH, prompt_len)
            pair = {}
            for server in (without, with_disk) if idx % 2 else (with_disk, without):
                pair[server] = server.ask("run", prompts=prompts, max_tokens=max_tokens)["seconds"]
            if idx:  # the first is for warming up
                found.append((pair[without], pair[with_disk]))
    return found


def measure_restart(directory: Path, count: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token of prompts that an earlier process has answered, and of new ones."""
    known = prompts_of("known", count, RESTART_PROMPT_LEN)
    with ServerProcess(prefix_cache_dir=str(directory)) as first:
        first.ask("run", prompts=known, max_tokens=1)
    times: tuple[list[float], list[float]] = ([], [])
    for idx, prompt in enumerate(known):
        with ServerProcess(prefix_cache_dir=str(directory)) as restarted:
            restarted.ask("first", prompt=prompts_of(f"warm {idx}", 1)[0])
            (new,) = prompts_of(f"new {idx}", 1, RESTART_PROMPT_LEN)
            for asked, seconds in zip((prompt, new), times, strict=True):
                seconds.append(restarted.ask("first", prompt=asked)["seconds"])
    return times


def report(num_rounds: int, prompt_len: int, max_tokens: int) -> str:
    with tempfile.TemporaryDirectory() as directory:
        pairs = measure_writing(Path(directory), num_rounds, prompt_len, max_tokens)
        num_bytes = sum(path.stat().st_blocks * 512 for path in Path(directory).rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory() as directory:
        known, new = measure_restart(Path(directory), 5)
    ratio = statistics.median(without / with_disk for without, with_disk in pairs)
    rows = ["| | without | with a disk | ratio |", "|---|---|---|---|"]
    num_tokens = BATCH * (prompt_len + max_tokens)
    speeds = [num_tokens / statistics.median(times) for times in zip(*pairs, strict=True)]
    rows.append(f"| tokens/s while it is written | {speeds[0]:.0f} | {speeds[1]:.0f} | {ratio:.3f} |")
    ms = [1000 * statistics.median(times) for times in (new, known)]
    rows.append(f"| first token after a restart, ms | {ms[0]:.0f} | {ms[1]:.0f} | {ms[0] / ms[1]:.1f} |")
    rows += [
        "",
        f"{BATCH} prompts of {prompt_len} tokens, {max_tokens} generated, {num_rounds} rounds, "
        f"{num_bytes / 1e6:.0f} MB written; "
        f"a prompt of {RESTART_PROMPT_LEN} tokens after each of {len(known)} restarts. Medians.",
    ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--prompt-len", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--output", type=Path, help="write the report there too")
    args = parser.parse_args()
    text = report(args.rounds, args.prompt_len, args.tokens)
    print(text)
    if args.output is not None:
        args.output.write_text(f"# Tiers of the prefix cache\n\n`python -m benchmarks.cache_tiers`\n\n{text}\n")


if __name__ == "__main__":
    main()
