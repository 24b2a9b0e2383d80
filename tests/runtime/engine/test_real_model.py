"""The engine on the bundled model: equal to transformers, and never dependent on cache, batch or chunking."""

from __future__ import annotations

import math

import pytest

from ramet import LLM, SamplingParams

pytestmark = pytest.mark.model

STORY = (
    "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It carried flour, paraffin, "
    "three letters and a boy of about nine, who stepped onto the rock as if he had been there before. "
)
OPENINGS = [
    "Hello",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 3, 5, 8,",
    "In 1969, the first",
    "Once upon a time there was a fox who",
    "Die Hauptstadt von Deutschland ist",
    "Q: How many legs does a spider have?\nA:",
]


def prompts(num_prompts: int) -> list[str]:
    """Texts of 1 to some 600 tokens."""
    lengths = [0, 0, 1, 2, 3, 4, 6, 8, 10, 12]
    texts = []
    for idx in range(num_prompts):
        background = STORY * lengths[(idx // 2) % len(lengths)]
        texts.append(background + OPENINGS[idx % len(OPENINGS)])
    return texts


@pytest.fixture(scope="module")
def reference():
    """transformers' Llama on the same dequantised weights, in fp32. (That these are read right is tested apart.)"""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ramet.runtime.weights.resolve import resolve_model

    checkpoint = resolve_model("smollm2")
    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval()
    state = {name: torch.empty(checkpoint.shape(name)) for name in checkpoint.tensor_names()}
    for name, tensor in state.items():
        checkpoint.read_into(name, tensor)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def fp32_llm():
    """Our engine on the weights as they are: other kernels round them to 8 bits."""
    with LLM("smollm2", kernels="torch") as llm:
        yield llm


def continue_greedily(reference, token_ids: list[int], num_tokens: int) -> list[int]:
    import torch

    with torch.inference_mode():
        output = reference.generate(
            torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    return output[0, len(token_ids) :].tolist()


@pytest.mark.slow
def test_greedy_output_equals_transformers_for_twenty_prompts(fp32_llm: LLM, reference):
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    outputs = fp32_llm.generate(prompts(20), params)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    assert min(lengths) < 6
    assert max(lengths) > 550
    for output in outputs:
        assert output.outputs[0].token_ids == continue_greedily(reference, output.prompt_token_ids, 64), output.prompt


def test_greedy_output_equals_transformers(fp32_llm: LLM, reference):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    for output in fp32_llm.generate(prompts(6), params):
        assert output.outputs[0].token_ids == continue_greedily(reference, output.prompt_token_ids, 24), output.prompt


SCORED = SamplingParams(temperature=0.0, max_tokens=18, ignore_eos=True, logprobs=2, prompt_logprobs=1)


def assert_same(actual, expected) -> None:
    """Equal tokens; logprobs within 1e-4 (the torch path reduces in an order that depends on the batch)."""
    assert actual.outputs[0].token_ids == expected.outputs[0].token_ids
    assert actual.outputs[0].text == expected.outputs[0].text
    pairs = [
        *zip(actual.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True),
        *zip(actual.prompt_logprobs, expected.prompt_logprobs, strict=True),
    ]
    for position, (mine, theirs) in enumerate(pairs):
        assert (mine is None) == (theirs is None)
        for token_id in set(mine or ()) & set(theirs or ()):
            assert math.isclose(mine[token_id].logprob, theirs[token_id].logprob, abs_tol=1e-4), position


@pytest.fixture(scope="module")
def int8_llm():
    with LLM("smollm2", kernels="torch_int8", check_invariants=True, max_num_batched_tokens=37) as llm:
        yield llm


def prompt_logprobs(llm: LLM, prompts: list[str]) -> list[list[float]]:
    """For each prompt the logprob of every token after the first, those of all prompts computed together."""
    llm.reset_prefix_cache()
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))
    rows = []
    for output in outputs:
        assert output.prompt_logprobs is not None
        pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        rows.append([entries[token_id].logprob for token_id, entries in pairs if entries is not None])
        assert len(rows[-1]) == len(output.prompt_token_ids) - 1
    return rows


def test_int8_weights_change_the_model_little(int8_llm: LLM, fp32_llm: LLM):
    text = STORY + "Nobody had told the keeper that a boy was coming, and nobody had told the boy about the stairs."
    [mine], [exact] = prompt_logprobs(int8_llm, [text]), prompt_logprobs(fp32_llm, [text])
    assert len(mine) > 60
    assert math.isclose(sum(mine) / len(mine), sum(exact) / len(exact), abs_tol=0.1)
    assert sum(abs(one - other) for one, other in zip(mine, exact, strict=True)) / len(mine) < 0.3


def test_int8_output_hardly_depends_on_batch_or_chunking(int8_llm: LLM):
    """Rounding of attention moves activations by a level of 2^-15 at most, not by one of 2^-7."""
    together = prompt_logprobs(int8_llm, related_prompts())  # in chunks of 37 rows, prefixes shared
    for prompt, expected in zip(related_prompts(), together, strict=True):
        [alone] = prompt_logprobs(int8_llm, [prompt])
        for one, other in zip(alone, expected, strict=True):
            assert math.isclose(one, other, abs_tol=0.05)


def related_prompts() -> list[str]:
    """Five texts of 1 to 99 tokens, some of which share a beginning."""
    texts = prompts(8)
    return [texts[idx] for idx in (0, 2, 4, 6, 7)]


@pytest.fixture(scope="module")
def alone_and_uncached():
    """Each prompt by itself, in one piece, without a cache."""
    options = {"enable_prefix_caching": False, "max_num_batched_tokens": 2048, "max_num_logit_rows": 2048}
    with LLM("smollm2", kernels="torch", **options) as llm:
        return [llm.generate(prompt, SCORED)[0] for prompt in related_prompts()]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 1, "max_num_seqs": 1},
        {"max_num_batched_tokens": 7, "max_num_seqs": 7},
        {"max_num_batched_tokens": 64, "max_num_seqs": 64},
        {"max_num_batched_tokens": 2048},
        {"enable_prefix_caching": False},
        {"num_blocks": 9, "schedule_conservativeness": 0.0},
    ],
    ids=["chunks of 1", "chunks of 7", "chunks of 64", "whole prompts", "no cache", "tiny pool"],
)
def test_output_does_not_depend_on_cache_batch_or_chunking(alone_and_uncached, options):
    with LLM("smollm2", kernels="torch", check_invariants=True, **options) as llm:
        for _ in range(2):  # cold, then from the cache
            for actual, expected in zip(llm.generate(related_prompts(), SCORED), alone_and_uncached, strict=True):
                assert_same(actual, expected)
        if options.get("num_blocks"):
            assert llm.metrics().num_preemptions > 0


def test_questions_behind_one_prefix_compute_it_once(smollm2: LLM):
    smollm2.reset_prefix_cache()
    prefix = smollm2.tokenizer.encode(STORY * 30)[:1024]
    assert len(prefix) == 1024
    questions = [[1000 + idx, *smollm2.tokenizer.encode(f" What happened on day {idx}?")] for idx in range(64)]
    outputs = smollm2.generate(
        [{"prompt_token_ids": prefix + question} for question in questions],
        SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    )
    computed = sum(output.metrics.num_computed_prompt_tokens for output in outputs)
    assert computed == 1024 + sum(len(question) for question in questions)


def test_six_turns_of_a_chat_compute_only_what_is_new(smollm2: LLM):
    smollm2.reset_prefix_cache()
    token_ids: list[int] = []
    num_known = 0
    for turn in range(6):
        token_ids += smollm2.tokenizer.encode(f"\nUser: And what about number {turn}?\nBot:")
        (output,) = smollm2.generate(
            {"prompt_token_ids": token_ids}, SamplingParams(temperature=0.0, max_tokens=11, ignore_eos=True)
        )
        assert output.num_cached_tokens == num_known
        assert output.metrics.num_computed_prompt_tokens == len(token_ids) - num_known
        num_known = len(token_ids) + 10  # the last generated token was never fed to the model
        token_ids += output.outputs[0].token_ids


@pytest.mark.parametrize("prefix_len", range(48, 64, 3))
def test_eight_samples_compute_the_prompt_once(smollm2: LLM, prefix_len):
    smollm2.reset_prefix_cache()
    token_ids = smollm2.tokenizer.encode(STORY * 3)[:prefix_len]
    before = smollm2.metrics().num_computed_tokens
    (output,) = smollm2.generate(
        {"prompt_token_ids": token_ids}, SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=3, ignore_eos=True)
    )
    assert output.metrics.num_computed_prompt_tokens == prefix_len + 7
    assert smollm2.metrics().num_computed_tokens - before == prefix_len + 7 + 8 * 2


def test_seeded_samples_do_not_depend_on_company(smollm2: LLM):
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=11, n=3, max_tokens=12)
    (alone,) = smollm2.generate(prompts(4)[3], params)
    together = smollm2.generate(prompts(8), params)[3]
    assert [sample.token_ids for sample in alone.outputs] == [sample.token_ids for sample in together.outputs]
    assert len({sample.text for sample in alone.outputs}) > 1


def test_a_stream_adds_up_to_the_output(smollm2: LLM):
    chunks = list(smollm2.stream("The capital of France is", SamplingParams(temperature=0.0, max_tokens=20, stop="\n")))
    final = chunks[-1].output
    assert final is not None
    assert "".join(chunk.text for chunk in chunks) == final.outputs[0].text
    assert "Paris" in final.outputs[0].text
    assert [token for chunk in chunks for token in chunk.token_ids] == final.outputs[0].token_ids


def test_leaving_a_stream_cancels_the_request(smollm2: LLM):
    stream = smollm2.stream("Once", SamplingParams(max_tokens=1000, ignore_eos=True))
    next(stream)
    num_aborted = smollm2.metrics().num_aborted
    stream.close()
    assert smollm2.generate("Hi", SamplingParams(max_tokens=1))[0].finished
    assert smollm2.metrics().num_aborted == num_aborted + 1
