"""Part 2: whether the kernels, the sampler and captured steps are right. No speed is worth a look before."""

from __future__ import annotations

from functools import partial

from ramet.runtime.outputs import RequestOutput
from ramet.sampling_params import SamplingParams

from .attention_checks import attention_checks
from .bench import Bench
from .checks import Check, Finding, run_checks
from .engine_session import EngineSession
from .op_checks import op_checks
from .results import Record

NUM_THREADS = 8
CAPTURED_SIZE = 4


def check_everything(bench: Bench, record: Record) -> None:
    """Cheap checks first, so that little time leaves few of them out."""
    with record.guard("captured steps"):
        run_checks([Check("engine", partial(_captured_steps, bench))], 1, record)
    # Triton's interpreter is one for the whole process.
    num_threads = NUM_THREADS if bench.is_cuda else 1
    run_checks([*op_checks(bench), *attention_checks(bench)], num_threads, record)
    record.note(f"Most of the time is compilation, {num_threads} at a time.")


def _captured_steps(bench: Bench) -> list[Finding]:
    """The same prompts with and without graphs, and with them a second time: the same tokens and logprobs, bit by bit.

    As many sequences run as the captured size has rows, so that matrices have the same shapes."""
    eager = _answers(bench, captured_batch_sizes=())
    captured = _answers(bench, captured_batch_sizes=(CAPTURED_SIZE,))
    again = _answers(bench, captured_batch_sizes=(CAPTURED_SIZE,))
    padded = _answers(bench, captured_batch_sizes=(2 * CAPTURED_SIZE,))
    return [
        Finding("tokens whose logprobs differ, captured and eager", _num_different(captured, eager), 0.0),
        Finding("tokens whose logprobs differ, captured twice", _num_different(captured, again), 0.0),
        Finding("largest difference of logprobs, padded and eager", _largest_difference(padded, eager), 0.05),
    ]


def _answers(bench: Bench, captured_batch_sizes: tuple[int, ...]) -> list[RequestOutput]:
    model = bench.settings.checked_model
    loaded = bench.models.load(model, captured_batch_sizes=captured_batch_sizes)
    session = EngineSession(loaded, bench.models.config(model))
    stem = [(37 * idx + 11) % 290 for idx in range(40)]
    prompts = [[*stem, 7 + idx, *range(3 * idx)] for idx in range(CAPTURED_SIZE)]
    params = SamplingParams(
        temperature=0.0, max_tokens=2 if bench.settings.is_tiny else 24, ignore_eos=True, logprobs=0
    )
    try:
        return session.run(prompts, params)
    finally:
        session.close()


def _logprobs(output: RequestOutput) -> list[tuple[int, float]]:
    """(token, logprob) of everything that was generated."""
    (sample,) = output.outputs
    assert sample.logprobs is not None
    listings = zip(sample.token_ids, sample.logprobs, strict=True)
    return [(token_id, listing[token_id].logprob) for token_id, listing in listings]


def _num_different(one: list[RequestOutput], other: list[RequestOutput]) -> float:
    return float(
        sum(
            left != right
            for first, second in zip(one, other, strict=True)
            for left, right in zip(_logprobs(first), _logprobs(second), strict=True)
        )
    )


def _largest_difference(one: list[RequestOutput], other: list[RequestOutput]) -> float:
    """Up to the first token of each sample that differs: what follows has another context."""
    largest = 0.0
    for first, second in zip(one, other, strict=True):
        for (token_id, logprob), (other_id, other_logprob) in zip(_logprobs(first), _logprobs(second), strict=True):
            if token_id != other_id:
                break
            largest = max(largest, abs(logprob - other_logprob))
    return largest
