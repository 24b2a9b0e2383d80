"""Runs programs of several calls in a simulation: what a call answers decides what is asked next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .simulation import Arrival, RequestRecord, Simulation, simulated_request
from .workloads import Call, Program, Tokens


@dataclass(slots=True)
class CallGroup:
    """Calls that a program waits for together."""

    program: Program
    outputs: list[Tokens]
    num_left: int


class ProgramSimulation:
    """Programs on a simulated engine. One object, one run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._places: dict[str, tuple[CallGroup, int]] = {}

    def run(self, programs: Sequence[Program], start_times_s: Sequence[float]) -> list[RequestRecord]:
        """Run every program to its end; the records of all calls.

        Args:
            start_times_s: when each program makes its first calls, in virtual seconds.

        Raises:
            RuntimeError: as Simulation.run.
        """
        arrivals = [
            arrival
            for program, time_s in zip(programs, start_times_s, strict=True)
            for arrival in self._submit(program, next(program), time_s)
        ]
        return self._simulation.run(arrivals, on_output=self._go_on)

    def _submit(self, program: Program, calls: Sequence[Call], time_s: float) -> Iterable[Arrival]:
        group = CallGroup(program, [[] for _ in calls], len(calls))
        for idx, call in enumerate(calls):
            request_id = f"call {len(self._places)}"
            self._places[request_id] = group, idx
            request = simulated_request(
                request_id, call.prompt, call.num_output_tokens, routing_key=call.session, priority=call.priority
            )
            yield Arrival(time_s, request)

    def _go_on(self, record: RequestRecord) -> Iterable[Arrival]:
        group, idx = self._places[record.request.request_id]
        assert record.output is not None
        group.outputs[idx] = record.output.outputs[0].token_ids
        group.num_left -= 1
        if group.num_left:
            return ()
        try:
            calls = group.program.send(group.outputs)
        except StopIteration:
            return ()
        return self._submit(group.program, calls, self._simulation.now_s)
