"""evaluate on the bundled model: the values are those of a plain computation, and nothing else changes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from ramet import LLM, GenerationError, LocalBackend, SamplingParams
from ramet.eval import EvalResult, ItemResult, Task, build_questions, evaluate, exact_prompt
from ramet.eval.perplexity import windows

pytestmark = pytest.mark.model

FACTS = [
    ("France", "Paris", "Lyon"),
    ("Italy", "Rome", "New Orleans"),
    ("Japan", "Tokyo", "Osaka City"),
    ("Spain", "Madrid", "Rome"),
    ("Egypt", "Cairo", "Alexandria"),
    ("Norway", "Oslo", "Bergen"),
]
ITEMS = [
    {"country": country, "options": [wrong, right] if len(country) % 2 else [right, wrong], "capital": right}
    for country, right, wrong in FACTS
]


def capitals(**options: Any) -> Task:
    fields = {"name": "capitals", "items": ITEMS, "num_shots": 2, "prompt": "Country: {country}\nCapital:"}
    choices = {"kind": "multiple_choice", "target": "{capital}", "choices": "{options}"}
    return Task(**{**fields, **choices, **options})


def written(**options: Any) -> Task:
    return capitals(**{"kind": "generate", "choices": (), "max_tokens": 6, "stop": "\n", **options})


def texts(**options: Any) -> Task:
    return capitals(
        kind="perplexity", choices=(), num_shots=0, prompt="The capital of {country} is {capital}.", **options
    )


@pytest.fixture(scope="module")
def uncached() -> Iterator[LLM]:
    with LLM("smollm2", enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture
def backend(smollm2: LLM) -> Iterator[LocalBackend]:
    with LocalBackend(smollm2) as local:
        local.flush_cache()
        yield local


def prompt_logprobs(llm: LLM, token_ids: list[int]) -> list[float]:
    """Of every token but the first, computed in one piece."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": token_ids}], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    pairs = zip(token_ids, output.prompt_logprobs, strict=True)
    return [entry[token_id].logprob for token_id, entry in pairs if entry is not None]


def test_likelihoods_are_those_of_the_plain_prompts(backend: LocalBackend, uncached: LLM) -> None:
    result = evaluate(capitals(), backend)
    encode = uncached.tokenizer.encode
    for item in result.items:
        assert item.outcome is not None
        context = item.question.parts[0][1]
        num_context = len(encode(context))
        for idx, choice in enumerate(item.question.choices):
            whole = encode(f"{context} {choice}")
            assert whole[:num_context] == encode(context)
            assert item.outcome.num_scored_tokens[idx] == len(whole) - num_context
            assert item.outcome.logprobs[idx] == sum(prompt_logprobs(uncached, whole)[num_context - 1 :])


def test_the_shots_are_computed_once(backend: LocalBackend) -> None:
    pool = [{"country": f"Land {n}", "options": ["x", "y"], "capital": "x"} for n in range(12)]
    result = evaluate(capitals(shots=pool, num_shots=12), backend)
    prompts = [item.question.parts[0][1] for item in result.items]
    shared_len = len(backend.llm.tokenizer.encode(prompts[0].rpartition("Country:")[0]))
    own_len = result.tokens.num_prompt_tokens - shared_len * len(prompts)
    num_computed = result.tokens.num_prompt_tokens - result.tokens.num_cached_tokens
    block_size = backend.llm.config.block_size
    assert shared_len > 5 * block_size
    assert num_computed <= shared_len + own_len + block_size * len(prompts)


def plain(item: ItemResult) -> dict[str, Any]:
    dropped = ("duration_s", "num_cached_tokens", "idx")
    return {key: value for key, value in item.to_json().items() if key not in dropped}


def values(result: EvalResult) -> dict[str, dict[str, Any]]:
    return {item.question.item["country"]: plain(item) for item in result.items}


@pytest.mark.parametrize(
    "task",
    [capitals(), capitals(kind="select"), capitals(chat="turns"), written(), written(chat="text"), texts()],
    ids=["multiple_choice", "select", "turns", "generate", "text", "perplexity"],
)
def test_neither_cache_nor_concurrency_nor_order_changes_a_result(
    task: Task, backend: LocalBackend, uncached: LLM
) -> None:
    cold = evaluate(task, backend)
    warm = evaluate(task, backend, max_concurrency=2)
    without = evaluate(task, uncached, max_concurrency=1)
    assert values(cold) == values(warm) == values(without)
    assert cold.metrics == warm.metrics == without.metrics
    assert without.tokens.num_cached_tokens == 0
    assert warm.tokens.num_cached_tokens > 0
    if task.kind != "perplexity":
        task = dataclasses.replace(task, shots=ITEMS)  # without a pool of their own they follow the order of the items
    reordered = dataclasses.replace(task, items=list(reversed(ITEMS)))
    assert values(evaluate(task, backend)) == values(evaluate(reordered, backend))


def test_generated_answers_end_where_they_should(backend: LocalBackend) -> None:
    result = evaluate(written(), backend)
    for item in result.items:
        assert item.outcome is not None
        assert "\n" not in item.outcome.output
        assert item.outcome.num_generated_tokens <= 6
    assert result.metrics["exact_match"].value >= 0.5


def test_perplexity_is_that_of_the_plain_text(backend: LocalBackend, uncached: LLM) -> None:
    result = evaluate(texts(), backend)
    total, num_words = 0.0, 0
    for item in result.items:
        text = item.question.parts[0][1]
        logprobs = prompt_logprobs(uncached, uncached.tokenizer.encode(text))
        assert item.outcome is not None
        assert item.outcome.logprobs == (sum(logprobs),)
        assert item.outcome.num_scored_tokens == (len(logprobs),)
        total, num_words = total + sum(logprobs), num_words + len(text.split())
    assert result.metrics["word_perplexity"].value == pytest.approx(math.exp(-total / num_words))


def test_what_was_scored_before_is_not_computed_again(backend: LocalBackend) -> None:
    task = texts(items=[{"country": "x" * 200, "capital": "y"}])
    evaluate(task, backend)
    again = evaluate(task, backend)
    assert again.tokens.num_prompt_tokens - again.tokens.num_cached_tokens <= 2


@pytest.mark.parametrize(("num_tokens", "max_len"), [(2, 5), (5, 5), (6, 5), (9, 5), (10, 5), (23, 2)])
def test_windows_score_every_token_but_the_first_once(num_tokens: int, max_len: int) -> None:
    pieces = list(windows(range(num_tokens), max_len))
    assert [token for piece in pieces for token in piece[1:]] == list(range(1, num_tokens))
    assert all(2 <= len(piece) <= max_len for piece in pieces)


def test_a_text_longer_than_the_context_is_scored_in_windows() -> None:
    task = Task(name="t", kind="perplexity", items=[{"text": "one two three four five. " * 20}], prompt="{text}")
    with LLM("smollm2", max_model_len=48) as llm:
        (item,) = evaluate(task, llm).items
        token_ids = llm.tokenizer.encode(item.question.parts[0][1])
        by_hand = sum(sum(prompt_logprobs(llm, piece)) for piece in windows(token_ids, 47))
    assert item.error is None
    assert item.outcome is not None
    assert len(token_ids) > 100
    assert item.outcome.num_scored_tokens == (len(token_ids) - 1,)
    assert item.outcome.logprobs[0] == pytest.approx(by_hand)


def test_an_item_beyond_the_context_fails_alone() -> None:
    items = [*ITEMS[:2], {**ITEMS[2], "country": "word " * 200}]
    with LLM("smollm2", max_model_len=128) as llm:
        result = evaluate(capitals(items=items, num_shots=0), llm)
    assert [item.error is None for item in result.items] == [True, True, False]
    assert "ContextLimitError" in str(result.items[2].error)
    assert result.metrics["acc"].num_items == 2


def test_the_shown_prompt_is_the_one_that_is_sent(backend: LocalBackend) -> None:
    for task in (capitals(), capitals(chat="turns", system="Be brief."), written(chat="text")):
        question = build_questions(task, 1)[0]
        shown = exact_prompt(task, question, backend)
        (item,) = evaluate(task, backend, limit=1).items
        assert item.outcome is not None
        assert (shown.text, shown.num_tokens) == (item.outcome.prompt, item.outcome.num_prompt_tokens)
        assert [len(tokens) for tokens in shown.continuations] == list(item.outcome.num_scored_tokens)
        if task.chat != "off":
            assert shown.text.startswith("<|im_start|>system\n")
            assert shown.text.endswith("<|im_start|>assistant\n")


def test_special_tokens_in_an_item_stay_text(backend: LocalBackend) -> None:
    task = capitals(items=[{**ITEMS[0], "country": "<|im_end|>"}], num_shots=0, chat="turns")
    evaluate(task, backend)
    shown = exact_prompt(task, build_questions(task)[0], backend)
    assert shown.text.count("<|im_end|>") == 3  # the default system message's, the user's and the text itself
    assert shown.num_tokens > len(backend.llm.tokenizer.encode(shown.text, parse_special=True))


def test_a_chat_that_the_model_refuses_fails_before_anything_runs(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(messages: object, role: str) -> list[object]:
        raise ValueError(f"no {role} here")

    monkeypatch.setattr(backend, "role_prefix", refuse)
    with pytest.raises(GenerationError, match="no user here"):
        evaluate(capitals(chat="turns"), backend)
