"""Every pattern and schema of the corpus under a model of random logits: whatever it says, the text is right.

The checkers are independent of what constrained the texts: `re` and `jsonschema`. They are asked for in many ways, in
engines with jumps and without; the slow tier asks more than 10,000 times.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

from ramet.grammar_spec import schema_text
from ramet.runtime.batch import Batch
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.grammar.errors import GrammarError
from ramet.runtime.outputs import CompletionOutput, RequestOutput
from ramet.runtime.request import Request
from ramet.runtime.tokenizer import Tokenizer, load_tokenizer
from ramet.runtime.weights.resolve import resolve_path
from ramet.sampling_params import SamplingParams

from .corpus.patterns import PATTERNS
from .corpus.schemas import SCHEMA_CASES

CASES: list[dict[str, Any]] = [{"regex": case.pattern} for case in PATTERNS if case.pattern] + [
    {"json_schema": schema_text(case.schema)} for case in SCHEMA_CASES if case.valid
]
# Strings that must hold something in the middle: no search from outside finds it.
UNPROVEN = {schema_text(case.schema) for case in SCHEMA_CASES if case.name in ("pattern (^|,)x(,|$)", "two patterns")}
random.Random(0).shuffle(CASES)
BATCH_SIZE = 64


class RandomRunner:
    """A model without a mind: its logits are random, a little in favour of short tokens and of the end."""

    captured_batch_sizes: tuple[int, ...] = ()
    can_run_ahead = False
    num_blocks = 2048
    block_size = 16

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._generator = torch.Generator().manual_seed(seed)
        self._bias = torch.tensor(
            [3.0 if len(tokenizer.token_bytes(idx)) == 1 else 0.0 for idx in range(self.vocab_size)]
        )
        self._bias[sorted(tokenizer.eos_token_ids)] = 6.0
        self._bias[tokenizer.encode('"') + tokenizer.encode("}") + tokenizer.encode("]")] = 6.0

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        num_rows = sum(part.num_logit_rows for part in batch.scheduled)
        return lambda: torch.randn(num_rows, self.vocab_size, generator=self._generator) + self._bias

    def forward(self, batch: Batch) -> Tensor:
        return self.prepare(batch)()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_path("smollm2"))


def params_of(case: dict[str, Any], rng: random.Random) -> SamplingParams:
    kind = rng.choice(["plain", "plain", "cut", "close", "close", "several", "logprobs", "filters", "beams"])
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": rng.randrange(20, 80), "seed": rng.randrange(1 << 30)}
    fields |= {
        "plain": {"min_tokens": rng.choice([0, 0, 5])},
        "cut": {"max_tokens": rng.randrange(1, 20)},
        "close": {"on_incomplete": "close", "max_tokens": rng.randrange(5, 80)},
        "several": {"n": 2},
        "logprobs": {"logprobs": 1, "n": 2, "best_of": 3},
        "filters": {"top_k": 50, "top_p": 0.9, "presence_penalty": 1.0},
        "beams": {"temperature": 0.0, "use_beam_search": True, "n": 2, "max_tokens": 12},
    }[kind]
    return SamplingParams(**case, **fields)


def is_possible(request: Request, engine: Engine) -> bool:
    """A request may be refused because no text fits in so few tokens, and for nothing else."""
    try:
        engine.prepare(request)
    except GrammarError as error:
        if request.sampling_params.on_incomplete == "close" and "was found" in str(error):
            return False
        raise
    return True


def run(engine: Engine) -> Iterator[RequestOutput]:
    while engine.has_work:
        yield from (chunk.output for chunk in engine.step() if chunk.output is not None)


def check(sample: CompletionOutput, request: Request, engine: Engine) -> None:
    params = request.sampling_params
    where = (params.regex or params.json_schema, sample.text)
    assert sample.complete is not None
    spelled = b"".join(map(engine.tokenizer.token_bytes, sample.token_ids[: sample.num_text_tokens]))
    assert spelled.decode() + sample.leftover_text == sample.text, where
    if params.on_incomplete == "close":
        assert sample.complete, where
    text = sample.text
    if not sample.complete:
        assert sample.finish_reason == "length", where
        ending = ending_of(sample, request, engine)
        if ending is None:
            return
        text += ending
    if params.regex is not None:
        assert re.fullmatch(params.regex, text), where
    else:
        assert isinstance(params.json_schema, str)
        schema = json.loads(params.json_schema)
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator(schema).validate(json.loads(text))


def ending_of(sample: CompletionOutput, request: Request, engine: Engine) -> str | None:
    """How a text that was cut could have gone on; None where no way is found, although there is one."""
    assert request.grammar is not None
    state, ending = request.grammar.new_state(), request.grammar.ending()
    token_ids = engine.tokenizer.encode(sample.text, is_text_start=False)
    assert state.try_accept(token_ids) == len(token_ids), sample.text
    for token_id in token_ids:
        ending = ending.after(token_id)
    rest = ending.tokens(state, 2000)
    if rest is None and request.sampling_params.json_schema in UNPROVEN:
        return None
    assert rest is not None, sample.text
    return b"".join(map(engine.tokenizer.token_bytes, rest)).decode()


def generate(tokenizer: Tokenizer, num_requests: int, seed: int) -> tuple[int, int]:
    """Ask for the cases in turn. Returns how many texts there were, and how many were complete."""
    rng = random.Random(seed)
    asked = (CASES * (1 + num_requests // len(CASES)))[:num_requests]
    rng.shuffle(asked)
    num_texts = num_complete = 0
    for start in range(0, len(asked), BATCH_SIZE):
        config = EngineConfig(
            num_blocks=2048,
            seed=start,
            jump_forward=rng.random() < 0.7,
            overlap_schedule=rng.random() < 0.5,
            schedule_policy=rng.choice(["lpm", "fcfs"]),
        )
        engine = Engine(config, RandomRunner(tokenizer, start), tokenizer, 4096)  # type: ignore[arg-type]
        requests = {}
        for idx, case in enumerate(asked[start : start + BATCH_SIZE]):
            request = Request(request_id=str(idx), prompt_token_ids=(5, 6, 7), sampling_params=params_of(case, rng))
            if is_possible(request, engine):
                requests[str(idx)] = engine.prepare(request)
                engine.add_request(request)
        for output in run(engine):
            assert output.error is None, (output.error, requests[output.request_id].sampling_params)
            for sample in output.outputs:
                check(sample, requests[output.request_id], engine)
                num_texts += 1
                num_complete += bool(sample.complete)
        engine.close()
    return num_texts, num_complete


def test_random_logits_make_right_texts(tokenizer):
    num_texts, num_complete = generate(tokenizer, 128, seed=1)
    assert num_texts > 128
    assert num_complete > num_texts // 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_random_generations(tokenizer):
    num_texts, num_complete = generate(tokenizer, 9_000, seed=2)
    print(f"{num_texts} texts, {num_complete} complete")
    assert num_texts > 10_000
