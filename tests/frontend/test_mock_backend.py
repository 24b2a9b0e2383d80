"""The scripted backend cuts its replies as a model's would be, and counts cached tokens exactly."""

from __future__ import annotations

import pytest

from ramet.frontend.backend import GenerateCall, ScoreCall, TextSegment
from ramet.frontend.backends.mock import CHAT_TOKENS, MockBackend, MockCancelledError
from ramet.frontend.backends.mock_tokenizer import FIRST_SPECIAL_ID, MockTokenizer
from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.generation import GenerateResult
from ramet.sampling_params import SamplingParams


def answer(backend: MockBackend, prompt: str = "q", **options: object) -> GenerateResult:
    ids = tuple(backend.encode([TextSegment(prompt)], at_start=True))
    return backend.generate(GenerateCall(ids, SamplingParams(**{"max_tokens": 50, **options}))).result(timeout=0)  # type: ignore[arg-type]


def test_tokenizer_takes_the_longest_merge_and_keeps_special_tokens_out_of_text() -> None:
    tokenizer = MockTokenizer(merges=["ab", "abc"], special_tokens=CHAT_TOKENS, begin_token="<|begin|>")
    text = "abcab<|end|>\n"
    plain = tokenizer.encode([TextSegment(text)], at_start=False)
    assert plain[:2] == [tokenizer.merge_ids["abc"], tokenizer.merge_ids["ab"]]
    assert FIRST_SPECIAL_ID + 2 not in plain
    template = tokenizer.encode([TextSegment(text, is_template=True)], at_start=True)
    assert template == [FIRST_SPECIAL_ID, *plain[:2], FIRST_SPECIAL_ID + 2, 10]
    assert tokenizer.decode(template) == "<|begin|>" + text
    assert MockTokenizer().encode([TextSegment("a", is_template=True)], at_start=True) == [97]


def test_replies_end_at_max_tokens_or_at_the_first_stop_string_to_be_complete() -> None:
    (sample,) = answer(MockBackend("abcdef"), max_tokens=4).samples
    assert (sample.text, sample.finish_reason, len(sample.kept_token_ids)) == ("abcd", "length", 4)
    (sample,) = answer(MockBackend("abcdef"), stop=["f", "cd", "bcde"]).samples
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("ab", "stop", "cd")
    assert (len(sample.token_ids), len(sample.kept_token_ids)) == (4, 2)
    (sample,) = answer(MockBackend("abcdef"), logprobs=0, n=1).samples
    assert sample.logprobs is not None
    assert len(sample.logprobs) == 6


def test_cached_tokens_are_the_longest_prefix_seen_but_never_all() -> None:
    backend = MockBackend("xyz")
    assert answer(backend, "hello").num_cached_tokens == 0
    assert answer(backend, "hello").num_cached_tokens == 4
    assert answer(backend, "helloxyz!").num_cached_tokens == 8
    assert answer(backend, "help").num_cached_tokens == 3
    backend.flush_cache()
    assert answer(backend, "hello").num_cached_tokens == 0


def test_scripts_run_out_and_modes_are_checked() -> None:
    backend = MockBackend(["one"])
    assert answer(backend).samples[0].text == "one"
    with pytest.raises(InvalidProgramError, match="no reply left for the prompt 'q'"):
        answer(backend)
    with pytest.raises(InvalidProgramError, match="mode='fast'"):
        MockBackend(mode="fast")  # type: ignore[arg-type]


def test_scores_of_nothing_have_no_first_logprob() -> None:
    backend = MockBackend(scores=lambda prompt, choice: -1.0)
    scored = backend.score(ScoreCall((), ((97, 98), (99,)))).result(timeout=0)
    assert scored.logprobs == ((None, -1.0), (None,))
    failing = MockBackend(scores=lambda prompt, choice: ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        failing.score(ScoreCall((97,), ((98,),))).result(timeout=0)


def test_cancelled_calls_fail_and_leave_the_queue() -> None:
    backend = MockBackend(mode="manual")
    generation = backend.generate(GenerateCall((97,), SamplingParams()))
    scoring = backend.score(ScoreCall((97,), ((98,),)))
    generation.cancel()
    scoring.cancel()
    assert backend.waiting == ()
    with pytest.raises(MockCancelledError):
        generation.result(timeout=0)
    with pytest.raises(MockCancelledError):
        scoring.result(timeout=0)
