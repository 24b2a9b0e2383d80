"""ProgramLog: adds up, as calls pass by, what the runs of each program have in common."""

from __future__ import annotations

from ..frontend.backend import GenerateCall, ProgramRef, ScoreCall
from ..frontend.trace.report import ProgramReport, ReportBuilder
from .report import CallRow


class ProgramLog:
    """Reports of the programs whose calls it is shown; calls from outside a program count for none.

    Keeps one prompt per program and one id per run. Not thread-safe.
    """

    def __init__(self) -> None:
        self._builders: dict[str, ReportBuilder] = {}
        self._run_ids: set[str] = set()

    def reports(self) -> list[ProgramReport]:
        """One per program, in the order of their first calls."""
        return [builder.report() for builder in self._builders.values()]

    def call_sent(self, call: GenerateCall | ScoreCall) -> bool:
        """A call goes to the backend. Whether it is the first of its run, which tells what the runs share."""
        if call.program is None or call.program.run_id in self._run_ids:
            return False
        self._run_ids.add(call.program.run_id)
        name = call.program.program_name
        self._builders.setdefault(name, ReportBuilder(name)).add_first_prompt(call.prompt_token_ids)
        return True

    def call_ended(self, program: ProgramRef | None, row: CallRow, prefill_s: float | None, *, is_first: bool) -> None:
        """A call has ended well; its prompt took so long to compute, if that is known."""
        if program is None:
            return
        builder = self._builders[program.program_name]
        builder.add_call(row.num_prompt_tokens, row.num_cached_tokens, row.num_generated_tokens)
        if is_first:
            builder.add_first_cached(row.num_cached_tokens)
        if prefill_s is not None:
            builder.add_prefill(row.num_computed_tokens, prefill_s)
