"""The parts of a run, in order: what they are called, what they may take of the time, and their columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .attention_speed import measure_decode, measure_extend, measure_shared_prefix
from .bench import Bench
from .ceilings import measure_ceilings
from .correctness import check_everything
from .device import describe
from .elementwise import measure_elementwise
from .end_to_end import measure_end_to_end
from .host_gap import measure_host_gap
from .results import Record


@dataclass(frozen=True, slots=True)
class Column:
    """Attributes:
    key: of the rows.
    form: "text", "count", "number", "share" (as per cent), "times" or "error".
    is_timing: comes from a clock, so it means nothing where kernels are interpreted.
    """

    key: str
    head: str
    form: str = "text"
    is_timing: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Attributes:
    weight: its share of the time is its weight over those of all parts that are still to run.
    """

    name: str
    title: str
    weight: float
    run: Callable[[Bench, Record], None]
    columns: tuple[Column, ...]


def _timing(key: str, head: str, form: str = "number") -> Column:
    return Column(key, head, form, is_timing=True)


_BASELINES = (
    _timing("sdpa_ms", "SDPA, ms"),
    _timing("vs_sdpa", "vs SDPA", "times"),
    _timing("flex_ms", "FlexAttention, ms"),
    _timing("vs_flex", "vs FlexAttention", "times"),
)

PARTS: tuple[Part, ...] = (
    Part("device", "Device and versions", 5, describe, (Column("what", ""), Column("value", ""))),
    Part(
        "ceilings",
        "Ceilings",
        15,
        measure_ceilings,
        (
            *(Column("what", ""), Column("size", "size"), _timing("ms", "ms")),
            *(_timing("tb_s", "TB/s"), _timing("tflop_s", "TFLOP/s")),
        ),
    ),
    Part(
        "correctness",
        "Correctness against fp64",
        95,
        check_everything,
        (
            *(Column("check", "check"), Column("error", "error", "error"), Column("limit", "limit", "error")),
            Column("is_right", "right"),
        ),
    ),
    Part(
        "decode",
        "Decode attention",
        50,
        measure_decode,
        (
            *(Column("sequences", "sequences", "count"), Column("context", "context", "count"), _timing("ms", "ms")),
            *(_timing("tb_s", "TB/s"), _timing("share", "of copy", "share"), *_BASELINES),
        ),
    ),
    Part(
        "shared_prefix",
        "Decode attention behind a shared prefix",
        45,
        measure_shared_prefix,
        (
            *(Column("sharers", "sharers", "count"), Column("shared", "shared", "count")),
            *(Column("own", "own", "count"), _timing("shared_ms", "shared, ms"), _timing("planned_ms", "planned, ms")),
            *(_timing("private_ms", "private, ms"), _timing("copies_ms", "copies, ms")),
            *(_timing("vs_private", "private / shared", "times"), _timing("vs_copies", "copies / shared", "times")),
            Column("saved", "saved / cost", "number"),
        ),
    ),
    Part(
        "extend",
        "Extend attention",
        30,
        measure_extend,
        (
            *(Column("sequences", "sequences", "count"), Column("new", "new", "count")),
            *(Column("cached", "cached", "count"), _timing("ms", "ms"), _timing("tflop_s", "TFLOP/s")),
            *(_timing("share", "of matmul", "share"), *_BASELINES),
        ),
    ),
    Part(
        "elementwise",
        "Ops that move memory",
        20,
        measure_elementwise,
        (
            *(Column("op", "op"), Column("mb", "MB", "number"), _timing("ms", "ms"), _timing("tb_s", "TB/s")),
            _timing("share", "of copy", "share"),
        ),
    ),
    Part(
        "host_gap",
        "Device idle between decoding steps",
        45,
        measure_host_gap,
        (
            *(Column("model", "model"), Column("batch", "batch", "count"), _timing("step_ms", "step, ms")),
            *(_timing("busy_ms", "device busy, ms"), _timing("idle_share", "idle", "share")),
            _timing("profiled_step_ms", "step under the profiler, ms"),
        ),
    ),
    Part(
        "end_to_end",
        "End to end",
        175,
        measure_end_to_end,
        (
            *(Column("model", "model"), Column("workload", "workload"), Column("engine", "engine")),
            *(Column("requests_note", ""), _timing("seconds", "s"), _timing("first_token_s", "first token, s")),
            *(_timing("tokens_s", "tokens/s"), _timing("ours_faster", "ramet is faster", "times")),
            Column("agreement", "same first tokens", "share"),
        ),
    ),
)
