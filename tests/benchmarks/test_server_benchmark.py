"""The server's benchmark in small, and what it must never find."""

from __future__ import annotations

import pytest

from benchmarks import server, server_overload
from benchmarks.server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]


def test_ten_times_too_much_is_refused_quickly_and_costs_no_memory() -> None:
    with ServerProcess(**server_overload.OVERLOAD_OPTIONS) as process:
        found = server_overload.overload(process, 10.0)
    assert found.num_accepted > 0
    assert found.num_rejected > found.num_accepted
    assert (found.num_unanswered, found.num_without_retry_after, found.num_other) == (0, 0, 0)
    before, after = found.rss
    assert after < 1.10 * before


def test_the_overhead_is_measured_on_equal_runs() -> None:
    with ServerProcess() as process:
        runs = server.measure_throughput(process, 4, 16, 1)
        over_http, in_process = server.measure_first_tokens(process, 2)
    assert [len(of_name) for of_name in runs.values()] == [1, 1, 1]
    assert min(over_http + in_process) > 0
