"""BeamSearch against transformers on tiny random models, against listing every token list, and by hand.

transformers runs the model; what it computed at each step drives a BeamSearch. Both must then have the same live beams
at every step, end at the same step, and return the same tokens and scores, bit for bit.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from ramet.runtime.beam_search import BeamSearch, Hypothesis
from ramet.runtime.logprobs import largest
from ramet.runtime.outputs import FinishReason

Tokens = tuple[int, ...]
Row = np.ndarray
MAX_TOKENS = 8
LENGTH_PENALTIES = (-1.0, 0.0, 0.5, 1.0, 2.0)
EARLY_STOPPING = (True, False, "never")


def candidates_of(row: Row, count: int) -> list[tuple[int, float]]:
    return [(token_id, float(row[token_id])) for token_id in largest(row, count).tolist()]


def drive(search: BeamSearch, logprobs_after: Callable[[Tokens], Row], num_candidates: int | None = None) -> None:
    """Run a search to its end on the logprobs [vocab] that follow any generated tokens."""
    count = num_candidates or search.num_candidates
    while not search.is_finished:
        before = search.live_token_ids
        step = search.advance([candidates_of(logprobs_after(tokens), count) for tokens in before])
        assert search.live_token_ids == [(*before[beam.parent_idx], beam.token_id) for beam in step.beams]
        logprobs = [beam.cumulative_logprob for beam in step.beams]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len(logprobs) <= search.beam_width


# Against transformers ------------------------------------------------------------------------------------------------


class TieError(Exception):
    """Two of a step's best candidates have the same sum, whose order transformers leaves open."""


@dataclass
class Recorder(LogitsProcessor):
    """Keeps each step's generated tokens and logprobs [beams, vocab] of a generate call."""

    prompt_len: int
    steps: list[dict[Tokens, Row]] = field(default_factory=list)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        beams = [tuple(row) for row in input_ids[:, self.prompt_len :].tolist()]
        logprobs = scores.log_softmax(-1) if len(beams) == 1 else scores  # greedy decoding gives it logits
        self.steps.append(dict(zip(beams, logprobs.numpy(), strict=True)) if beams[0] else {(): logprobs[0].numpy()})
        return scores


@cache
def tiny_llama(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40 + 15 * seed,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.25,
        max_position_embeddings=64,
        eos_token_id=None,  # a generate call without one would fall back to this
    )
    return LlamaForCausalLM(config).eval()


def replay(search: BeamSearch, steps: list[dict[Tokens, Row]]) -> None:
    """Drive a search with what transformers computed."""
    totals = {(): np.float32(0.0)}
    for step in steps:
        assert set(search.live_token_ids) == set(step)
        sums = np.concatenate([totals[tokens] + step[tokens] for tokens in step])
        best = sums[largest(sums, search.beam_width * (2 + len(search.stop_token_ids)))]
        if (best[1:] == best[:-1]).any():
            raise TieError
        before = search.live_token_ids
        rows = [candidates_of(step[tokens], search.num_candidates) for tokens in before]
        totals = {
            (*before[beam.parent_idx], beam.token_id): np.float32(beam.cumulative_logprob)
            for beam in search.advance(rows).beams
        }
        assert set(totals) == set(search.live_token_ids)
    assert search.is_finished


def assert_like_transformers(
    model_seed: int, num_results: int, prompt_seed: int, **options: object
) -> tuple[BeamSearch, int]:
    """The search that agreed, and the number of steps.

    Raises:
        TieError: this prompt decides nothing.
    """
    model = tiny_llama(model_seed)
    search = BeamSearch(**options)
    pad_token_id = model.config.vocab_size  # stands in no result
    prompt = torch.randint(3, pad_token_id, (1, 5), generator=torch.Generator().manual_seed(prompt_seed))
    recorder = Recorder(prompt_len=prompt.shape[1])
    beam_options = {
        "num_return_sequences": num_results,
        "length_penalty": search.length_penalty,
        "early_stopping": options["early_stopping"],
        "output_scores": True,
    }
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=GenerationConfig(
            num_beams=search.beam_width,
            do_sample=False,
            max_new_tokens=search.max_tokens,
            eos_token_id=sorted(search.stop_token_ids) or None,
            pad_token_id=pad_token_id,
            bos_token_id=None,
            return_dict_in_generate=True,
            **(beam_options if search.beam_width > 1 else {}),
        ),
        logits_processor=LogitsProcessorList([recorder]),
    )
    replay(search, recorder.steps)
    results = search.hypotheses
    assert len(results) == search.beam_width
    rows = output.sequences[:, prompt.shape[1] :].tolist()
    assert len(rows) == num_results
    for row, result in zip(rows, results[:num_results], strict=True):
        assert row == [*result.token_ids, *[pad_token_id] * (len(row) - len(result.token_ids))]
    if search.beam_width > 1:
        assert output.sequences_scores.tolist() == [result.score for result in results[:num_results]]
    for result in results:
        is_stopped = result.token_ids[-1] in search.stop_token_ids
        assert result.finish_reason is (FinishReason.STOP if is_stopped else FinishReason.LENGTH)
        score = result.cumulative_logprob / len(result.token_ids) ** search.length_penalty
        assert result.score == pytest.approx(score, rel=1e-6)
    return search, len(recorder.steps)


def compare(model_seed: int, num_results: int, **options: object) -> tuple[BeamSearch, int]:
    """`assert_like_transformers` on the first prompt without a tie."""
    for prompt_seed in itertools.count(100 * model_seed):
        try:
            return assert_like_transformers(model_seed, num_results, prompt_seed, **options)
        except TieError:
            continue
    raise AssertionError("unreachable")


@pytest.mark.parametrize("beam_width", [1, 2, 3, 4, 8])
def test_every_step_and_result_is_that_of_transformers(beam_width):
    ends = Counter[str]()
    stop_sets = itertools.cycle([(2,), (2, 7, 11), tuple(range(12)), ()])
    num_results = itertools.cycle(range(1, beam_width + 1))
    for model_seed, length_penalty, early_stopping in itertools.product(range(3), LENGTH_PENALTIES, EARLY_STOPPING):
        search, num_steps = compare(
            model_seed,
            next(num_results),
            beam_width=beam_width,
            max_tokens=MAX_TOKENS,
            stop_token_ids=next(stop_sets),
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        ends["early" if num_steps < MAX_TOKENS else "at max_tokens"] += 1
        ends.update(str(result.finish_reason) for result in search.hypotheses)
    assert set(ends) == {"early", "at max_tokens", "stop", "length"}  # the comparison has seen all of them


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@pytest.mark.parametrize("beam_width", [1, 2, 5])
def test_short_results_are_those_of_transformers(max_tokens, beam_width):
    for early_stopping in EARLY_STOPPING:
        _, num_steps = compare(
            1,
            beam_width,
            beam_width=beam_width,
            max_tokens=max_tokens,
            stop_token_ids=tuple(range(3, 12)),
            early_stopping=early_stopping,
        )
        assert num_steps <= max_tokens


# Against other definitions -------------------------------------------------------------------------------------------


def random_language(seed: int, vocab_size: int) -> Callable[[Tokens], Row]:
    """Random logprobs after any tokens, always the same after the same."""

    def logprobs_after(tokens: Tokens) -> Row:
        logits = np.random.default_rng([seed, *tokens, len(tokens)]).normal(size=vocab_size)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    return logprobs_after


def all_results(
    logprobs_after: Callable[[Tokens], Row], stop_token_ids: Tokens, max_tokens: int
) -> dict[Tokens, float]:
    """Every complete token list and its cumulative logprob."""
    results: dict[Tokens, float] = {}
    growing = {(): 0.0}
    for length in range(1, max_tokens + 1):
        longer = {
            (*tokens, token_id): total + float(logprob)
            for tokens, total in growing.items()
            for token_id, logprob in enumerate(logprobs_after(tokens))
        }
        complete = {tokens for tokens in longer if tokens[-1] in stop_token_ids or length == max_tokens}
        results |= {tokens: longer[tokens] for tokens in complete}
        growing = {tokens: total for tokens, total in longer.items() if tokens not in complete}
    return results


@pytest.mark.parametrize("length_penalty", LENGTH_PENALTIES)
@pytest.mark.parametrize("beam_width", [31, 40])
def test_a_width_that_holds_everything_finds_all_results_in_order(length_penalty, beam_width):
    language = random_language(3, vocab_size=3)
    search = BeamSearch(
        beam_width=beam_width,
        max_tokens=4,
        stop_token_ids=[0],
        length_penalty=length_penalty,
        early_stopping="never",
    )
    drive(search, language)
    totals = all_results(language, (0,), max_tokens=4)
    scores = {tokens: total / len(tokens) ** length_penalty for tokens, total in totals.items()}
    assert len(scores) == 31
    assert [result.token_ids for result in search.hypotheses] == sorted(scores, key=lambda tokens: -scores[tokens])
    for result in search.hypotheses:
        assert result.score == pytest.approx(scores[result.token_ids], rel=1e-5)
        assert result.cumulative_logprob == pytest.approx(totals[result.token_ids], rel=1e-5)


@pytest.mark.parametrize("early_stopping", EARLY_STOPPING)
@pytest.mark.parametrize("length_penalty", LENGTH_PENALTIES)
def test_width_1_is_greedy_decoding(length_penalty, early_stopping):
    for seed in range(20):
        language = random_language(seed, vocab_size=9)
        search = BeamSearch(
            beam_width=1,
            max_tokens=8,
            stop_token_ids=[4],
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        drive(search, language)
        tokens: Tokens = ()
        while len(tokens) < 8 and tokens[-1:] != (4,):
            tokens = (*tokens, int(language(tokens).argmax()))
        assert [result.token_ids for result in search.hypotheses] == [tokens]


@pytest.mark.parametrize("stop_token_ids", [(), (0,), (0, 3, 5, 6)])
def test_more_candidates_than_it_asks_for_change_nothing(stop_token_ids):
    for seed, beam_width in itertools.product(range(10), (1, 2, 3, 5)):
        results = []
        for num_candidates in (None, 12):
            search = BeamSearch(beam_width=beam_width, max_tokens=6, stop_token_ids=stop_token_ids)
            drive(search, random_language(seed, vocab_size=12), num_candidates)
            results.append(search.hypotheses)
        assert search.num_candidates < 12
        assert results[0] == results[1]


def test_a_longer_search_finds_no_worse_a_result_and_sometimes_a_better_one():
    is_better = []
    for seed in range(40):
        best = []
        for early_stopping in ("never", False, True):
            search = BeamSearch(
                beam_width=3,
                max_tokens=12,
                stop_token_ids=[0, 1],
                length_penalty=1.5,
                early_stopping=early_stopping,
            )
            drive(search, random_language(seed, vocab_size=6))
            best.append(search.hypotheses[0].score)
        assert best == sorted(best, reverse=True)
        is_better.append((best[0] > best[1], best[1] > best[2]))
    assert {(True, False), (False, True)} <= set(is_better)


# By hand -------------------------------------------------------------------------------------------------------------

STOP = 9


def parents_and_tokens(search: BeamSearch, *rows: list[tuple[int, float]]) -> list[tuple[int, int]]:
    return [(beam.parent_idx, beam.token_id) for beam in search.advance(rows).beams]


def test_beams_are_chosen_across_parents_by_their_sums():
    search = BeamSearch(beam_width=2, max_tokens=5, stop_token_ids=[STOP])
    assert search.live_token_ids == [()]
    assert parents_and_tokens(search, [(1, -1.0), (2, -2.0), (3, -3.0)]) == [(0, 1), (0, 2)]
    assert parents_and_tokens(search, [(1, -4.0), (2, -5.0), (3, -6.0)], [(4, -0.5), (5, -1.0), (6, -9.0)]) == [
        (1, 4),
        (1, 5),
    ]
    assert search.live_token_ids == [(2, 4), (2, 5)]
    assert search.hypotheses == []


def test_a_stop_token_counts_only_among_the_best_candidates_of_the_step():
    search = BeamSearch(beam_width=2, max_tokens=5, stop_token_ids=[STOP], early_stopping="never")
    assert parents_and_tokens(search, [(1, -1.0), (STOP, -1.5), (2, -2.0)]) == [(0, 1), (0, 2)]
    assert search.hypotheses == [Hypothesis((STOP,), -1.5, -1.5, FinishReason.STOP)]
    rows = [(1, -0.5), (2, -0.75), (STOP, -1.0)], [(1, -5.0), (2, -6.0), (STOP, -7.0)]
    assert parents_and_tokens(search, *rows) == [(0, 1), (0, 2)]
    assert len(search.hypotheses) == 1  # (1, STOP) came third


def test_of_equal_candidates_the_better_beam_and_the_first_listed_win():
    search = BeamSearch(beam_width=2, max_tokens=5)
    assert parents_and_tokens(search, [(5, -1.0), (6, -1.0), (7, -1.0)]) == [(0, 5), (0, 6)]
    assert parents_and_tokens(search, [(8, -1.0), (3, -1.0)], [(1, -1.0), (2, -0.5)]) == [(1, 2), (0, 8)]


def test_many_equal_candidates_keep_their_order():
    search = BeamSearch(beam_width=40, max_tokens=5)
    search.advance([[(1, -1.0), (2, -1.0)]])
    row = [(token_id * 37 % 101, -1.0 - token_id // 25) for token_id in range(50)]
    likeliest = [token_id for token_id, _ in row[:25]]
    expected = [(0, token_id) for token_id in likeliest] + [(1, token_id) for token_id in likeliest]
    assert parents_and_tokens(search, row, row) == expected[:40]


def test_sums_are_compared_in_single_precision():
    search = BeamSearch(beam_width=2, max_tokens=5)
    search.advance([[(1, -1.0), (2, -1.0)]])
    step = search.advance([[(3, -1.00000001), (4, -3.0)], [(5, -1.0), (6, -4.0)]])
    assert [(beam.token_id, beam.cumulative_logprob) for beam in step.beams] == [(3, -2.0), (5, -2.0)]


def test_of_equal_hypotheses_the_first_found_is_kept():
    search = BeamSearch(beam_width=1, max_tokens=1)
    search.advance([[(5, -1.0), (6, -1.0)]])
    assert [result.token_ids for result in search.hypotheses] == [(5,)]
    search = BeamSearch(beam_width=2, max_tokens=2, stop_token_ids=[STOP], length_penalty=0.0, early_stopping="never")
    search.advance([[(STOP, -1.0), (1, -1.0), (2, -1.0)]])
    search.advance([[(3, 0.0), (4, 0.0)], [(3, 0.0), (4, 0.0)]])
    assert [result.token_ids for result in search.hypotheses] == [(STOP,), (1, 3)]


def test_the_search_ends_where_a_vocabulary_does():
    search = BeamSearch(beam_width=3, max_tokens=4, stop_token_ids=[STOP])
    assert parents_and_tokens(search, [(STOP, -0.25), (1, -2.0)]) == [(0, 1)]
    assert parents_and_tokens(search, [(STOP, -0.5)]) == []
    assert search.is_finished
    assert [result.token_ids for result in search.hypotheses] == [(STOP,), (1, STOP)]


def test_a_token_without_probability_is_never_taken():
    search = BeamSearch(beam_width=3, max_tokens=4, stop_token_ids=[STOP])
    assert parents_and_tokens(search, [(1, -0.5), (2, -np.inf), (STOP, -np.inf)]) == [(0, 1)]
    assert search.hypotheses == []
    assert parents_and_tokens(search, [(1, -np.inf), (2, -np.inf)]) == []
    assert search.is_finished
    assert search.hypotheses == []


def test_a_stop_token_at_max_tokens_is_a_stop():
    search = BeamSearch(beam_width=2, max_tokens=1, stop_token_ids=[STOP])
    assert parents_and_tokens(search, [(1, -0.5), (STOP, -1.0), (2, -2.0)]) == []
    assert search.hypotheses == [
        Hypothesis((1,), -0.5, -0.5, FinishReason.LENGTH),
        Hypothesis((STOP,), -1.0, -1.0, FinishReason.STOP),
    ]


def test_a_finished_search_and_a_wrong_number_of_rows_are_programming_errors():
    search = BeamSearch(beam_width=2, max_tokens=1)
    with pytest.raises(AssertionError):
        search.advance([[(1, -0.5)], [(2, -0.5)]])
    search = BeamSearch(beam_width=2, max_tokens=1)
    search.advance([[(1, -0.5), (2, -1.5)]])
    with pytest.raises(AssertionError):
        search.advance([])
