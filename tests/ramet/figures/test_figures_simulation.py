"""The engine in virtual time: clocks, arrivals, ends that nobody foresees."""

from __future__ import annotations

import pytest

from ramet.figures.cost_model import UNIT_STEPS, CostModel, roofline
from ramet.figures.lengths import ALPACA
from ramet.figures.pool_meter import meter_requests
from ramet.figures.simulation import END_TOKEN_ID, Arrival, RequestRecord, Simulation, simulated_request

COSTS = CostModel(source="test", step_s=1.0, prefill_token_s=0.1, decode_s=0.01, context_token_s=0.001)


def test_a_step_costs_what_the_model_says() -> None:
    simulation = Simulation(COSTS, num_blocks=16)
    (record,) = simulation.run([Arrival(0.0, simulated_request("a", range(10), 3))])
    first, second, third = 1.0 + 10 * 0.1 + 0.01, 1.0 + 0.01 + 0.011, 1.0 + 0.01 + 0.012
    assert record.token_times_s == pytest.approx([first, first + second, first + second + third])
    assert record.time_to_first_token_s == pytest.approx(first)
    assert record.times_between_tokens_s == pytest.approx([second, third])
    assert [step.num_decodes for step in simulation.steps] == [0, 1, 1]


def test_a_request_arrives_when_it_does_and_idle_time_is_skipped() -> None:
    simulation = Simulation(UNIT_STEPS, num_blocks=16)
    early, late = simulation.run(
        [Arrival(100.0, simulated_request("late", [2], 2)), Arrival(0.5, simulated_request("early", [1], 2))]
    )
    assert (early.request.request_id, late.request.request_id) == ("early", "late")
    assert early.token_times_s == [1.5, 2.5]
    assert late.token_times_s == [101.0, 102.0]


def test_an_output_may_bring_the_next_request() -> None:
    simulation = Simulation(UNIT_STEPS, num_blocks=16)

    def next_turn(record: RequestRecord) -> list[Arrival]:
        assert record.output is not None
        if record.request.request_id == "second":
            return []
        tokens = [*record.request.prompt_token_ids, *record.output.outputs[0].token_ids]
        return [Arrival(0.0, simulated_request("second", tokens, 4))]

    first, second = simulation.run([Arrival(0.0, simulated_request("first", range(30), 20))], on_output=next_turn)
    assert second.arrival_s == first.token_times_s[-1]
    assert second.output is not None
    assert second.output.num_cached_tokens == 49  # all but the last token, whose keys and values nobody computed


def test_outputs_end_where_they_are_told_to_whatever_is_allowed() -> None:
    simulation = Simulation(UNIT_STEPS, num_blocks=64)
    requests = [simulated_request(f"{length}", [length], length, allowed_len=50) for length in (1, 2, 7)]
    records = simulation.run(Arrival(0.0, request) for request in requests)
    assert [len(record.token_times_s) for record in records] == [1, 2, 7]
    for record in records:
        assert record.output is not None
        assert record.output.outputs[0].token_ids[-1] == END_TOKEN_ID


def test_samples_of_a_request_differ() -> None:
    simulation = Simulation(UNIT_STEPS, num_blocks=16)
    (record,) = simulation.run([Arrival(0.0, simulated_request("a", range(5), 6, n=3))])
    assert record.output is not None
    assert len({tuple(sample.token_ids) for sample in record.output.outputs}) == 3


def test_a_roofline_counts_bytes_and_operations() -> None:
    costs = roofline("test", num_parameters=10, kv_bytes_per_token=6, bytes_per_s=2, flops_per_s=5)
    assert (costs.step_s, costs.prefill_token_s, costs.decode_s, costs.context_token_s) == (10.0, 4.0, 4.0, 3.0)


def test_blocks_of_one_slot_waste_nothing_and_larger_ones_more() -> None:
    waste = [meter_requests(ALPACA, 10_000, num_slots=2_048, block_size=size).waste for size in (1, 8, 32)]
    assert waste[0] == 0.0
    assert waste[0] < waste[1] < waste[2]


def test_more_samples_share_more() -> None:
    saved = [meter_requests(ALPACA, 10_000, num_slots=2_048, n=n).saved_by_sharing for n in (1, 2, 6)]
    assert saved[0] == 0.0
    assert saved[0] < saved[1] < saved[2]
