"""The scripted backend holds its replies to the constraint of the call, as far as the standard library can."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.frontend.backend import GenerateCall, TextSegment
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.backends.mock_reply import MockIncompleteError
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.generation import GenerateResult
from ramet.sampling_params import SamplingParams


def answer(backend: MockBackend, prompt: str = "q", num_healable_tokens: int = 0, **options: Any) -> GenerateResult:
    ids = tuple(backend.encode([TextSegment(prompt)], at_start=True))
    call = GenerateCall(ids, SamplingParams(**{"max_tokens": 50, **options}), num_healable_tokens=num_healable_tokens)
    return backend.generate(call).result(timeout=0)


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ("2024-01", {"regex": r"\d{4}-\d\d"}),
        ("b", {"choices": ["a", "b"]}),
        ('{"a": [1, null]}', {"json_schema": {}}),
        ("anything", {"ebnf": 'root ::= "a"'}),
    ],
)
def test_a_reply_that_satisfies_the_constraint_is_complete(reply: str, options: dict[str, Any]) -> None:
    (sample,) = answer(MockBackend(reply), **options).samples
    assert (sample.text, sample.complete, sample.finish_reason) == (reply, True, "stop")


@pytest.mark.parametrize(
    ("reply", "options", "message"),
    [
        (
            "2024-1",
            {"regex": r"\d{4}-\d\d"},
            r"reply '2024-1' must match the regex '\\\\d\{4\}-\\\\d\\\\d': script one",
        ),
        ("c", {"choices": ["a", "b"]}, r"reply 'c' must be one of \['a', 'b'\]"),
        ("{'a': 1}", {"json_schema": {}}, "must be JSON"),
    ],
)
def test_a_reply_that_does_not_is_an_error_that_says_so(reply: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        answer(MockBackend(reply), **options)


def test_without_replies_the_first_choice_is_the_answer() -> None:
    backend = MockBackend()
    assert answer(backend).samples[0].text == "ok"
    assert answer(backend, choices=["b", "a"]).samples[0].text == "b"
    with pytest.raises(InvalidProgramError, match="reply 'ok' must be JSON"):
        answer(backend, json_schema={})


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ("2024-01", {"regex": r"\d{4}-\d\d"}),
        ("[1, 2, 3]", {"json_schema": {}}),
        ("yesyes", {"ebnf": 'root ::= "yesyes"'}),
        ("yesyes", {"choices": ["yesyes", "no"]}),
    ],
)
def test_a_reply_that_is_cut_off_is_incomplete(reply: str, options: dict[str, Any]) -> None:
    (sample,) = answer(MockBackend(reply), max_tokens=4, **options).samples
    assert (sample.text, sample.complete, sample.finish_reason) == (reply[:4], False, "length")
    for on_incomplete in ("raise", "close"):
        with pytest.raises(MockIncompleteError, match=f"which on_incomplete='{on_incomplete}' does not let pass"):
            answer(MockBackend(reply), max_tokens=4, on_incomplete=on_incomplete, **options)


def test_a_cut_reply_may_be_complete_and_a_free_one_is_neither() -> None:
    assert answer(MockBackend("1234"), regex="[0-9]+", max_tokens=2).samples[0].complete is True
    assert answer(MockBackend("1234"), max_tokens=2).samples[0].complete is None


def test_only_tokens_that_change_are_healed() -> None:
    tokenizer = MockTokenizer(merges=[" yes", "abc"])
    backend = MockBackend("yes", tokenizer=tokenizer)
    result = answer(backend, "a: ", 3, regex="yes")
    assert (result.num_healed_tokens, result.num_prompt_tokens) == (1, 2)
    assert result.samples[0].token_ids == (tokenizer.merge_ids[" yes"],)
    assert result.samples[0].text == "yes"
    assert answer(backend, "a:", 2, regex="yes").num_healed_tokens == 0
    both = answer(MockBackend("cd", tokenizer=tokenizer), "xab", 2, regex="cd")
    assert (both.num_healed_tokens, both.samples[0].token_ids) == (2, (tokenizer.merge_ids["abc"], ord("d")))


def test_healed_tokens_do_not_count_against_max_tokens_or_for_the_cache() -> None:
    tokenizer = MockTokenizer(merges=[" y"])
    backend = MockBackend("yes", tokenizer=tokenizer)
    result = answer(backend, "a: ", 1, regex="yes", max_tokens=1)
    assert (result.samples[0].text, result.samples[0].complete) == ("ye", False)
    assert answer(backend, "a: ", 1, regex="yes", max_tokens=1).num_cached_tokens == 1
    assert answer(backend, "a: ", 0).num_cached_tokens == 2  # "a:", but the lone space was never computed
