"""What is exact about the Orca figures."""

from __future__ import annotations

import pytest

from ramet.figures import orca_steps, orca_throughput
from ramet.figures.context import FigureContext
from ramet.figures.orca_throughput import LoadPoint, rate_at


def test_four_requests_in_three_slots_take_eleven_steps_or_eight() -> None:
    with FigureContext("quick") as context:
        result = orca_steps.run(context)
    assert [row[:2] for row in result.rows] == [("request-level", 11), ("continuous", 8)]
    ends = {row[0]: row[3:] for row in result.rows}
    assert ends == {"request-level": (6, 4, 8, 11), "continuous": (6, 4, 8, 7)}


def test_equal_lengths_gain_nothing() -> None:
    lens = dict.fromkeys("ABCDEF", 5)
    assert len(orca_steps.steps_of("request-level", lens, 3)) == len(orca_steps.steps_of("continuous", lens, 3)) == 10


def test_skewed_lengths_take_several_times_the_steps_request_by_request() -> None:
    steps = {
        mode: len(orca_throughput.simulate(mode, orca_throughput.A100_13B, [0.0] * 64, seed=1).steps)
        for mode in orca_throughput.MODES
    }
    assert steps["request-level"] > 2 * steps["continuous"]


@pytest.mark.parametrize(("limit_s", "rate"), [(1.0, 0.0), (1.5, 1.0), (2.0, 2.0), (3.0, 3.0), (100.0, 4.0)])
def test_the_rate_within_a_limit_is_interpolated(limit_s: float, rate: float) -> None:
    points = [LoadPoint(2.0, 2.0), LoadPoint(4.0, 4.0)]
    assert rate_at(points, 1.0, limit_s) == pytest.approx(rate)
