"""LLMs over rounded weights: the same text whatever was cached, less memory, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from ramet import LLM, SamplingParams
from ramet.kernels.quantized.matrix import QuantizedMatrix
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.models.errors import ModelLoadError
from ramet.runtime.models.parameters import ParameterReader, Piece
from ramet.runtime.quantization.linear_reader import RoundingReader
from ramet.runtime.quantization.registry import SCHEMES
from ramet.runtime.weights.resolve import resolve_model

PROMPT = [(7 * idx * idx + 3) % 250 for idx in range(70)]


def with_tokenizer(path: Path) -> Path:
    """Bytes are tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={char: idx for idx, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    (path / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    return path


@pytest.fixture
def plain_path(tmp_path: Path, make_tiny_model: Callable[..., Any]) -> Path:
    return with_tokenizer(make_tiny_model(seed=2, num_hidden_layers=1, vocab_size=256).save(tmp_path / "plain"))


@pytest.fixture
def packed_path(save_tiny: Callable[..., tuple[Path, Path]], make_packing: Any) -> Path:
    packed, _ = save_tiny(make_packing(), vocab_size=256)
    return with_tokenizer(packed)


def generated(llm: LLM, prompt: list[int]) -> tuple[int, list[int], list[float]]:
    """Cached tokens of the prompt, tokens drawn, and their logprobs."""
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1, ignore_eos=True)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    (sample,) = output.outputs
    assert sample.logprobs is not None
    drawn = [entry[token_id].logprob for entry, token_id in zip(sample.logprobs, sample.token_ids, strict=True)]
    return output.num_cached_tokens, list(sample.token_ids), drawn


@pytest.mark.parametrize(
    ("source", "kernels"), [("int8", "torch"), ("int4", "torch"), ("gptq", "torch"), ("gptq", "triton")]
)
def test_a_cached_prefix_changes_nothing(source: str, kernels: str, plain_path: Path, packed_path: Path) -> None:
    """A hit computes one row where a miss computes all, and products of torch round by their number of rows: the same
    tokens, but the last bit of a logprob may differ, as it may with plain weights."""
    if kernels == "triton":
        pytest.importorskip("triton")
    path, quantization = (packed_path, None) if source == "gptq" else (plain_path, source)
    options: dict[str, Any] = {"kernels": kernels, "quantization": quantization, "num_blocks": 32, "num_threads": 1}
    with LLM(str(path), check_invariants=True, **options) as llm:
        alone, hit, hit_again = (generated(llm, PROMPT) for _ in range(3))
    with LLM(str(path), enable_prefix_caching=False, **options) as llm:
        uncached = generated(llm, PROMPT)
    assert (alone[0], hit[0], uncached[0]) == (0, len(PROMPT) - 1, 0)
    assert alone == uncached
    assert hit == hit_again
    assert alone[1] == hit[1]
    assert alone[2] == pytest.approx(hit[2], abs=1e-5)


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_captured_steps_take_rounded_weights(
    kernels: str, plain_path: Path, load_runner: Any, paged_sequence: Any, forward_parts: Any
) -> None:
    if kernels == "triton":
        pytest.importorskip("triton")
    logits = []
    for sizes in ((), (4,)):
        runner = load_runner(plain_path, kernels, quantization="int4", captured_batch_sizes=sizes).runner
        sequence = paged_sequence(PROMPT[:20], [0, 1])
        forward_parts(runner, [(sequence, 0, 19)])
        logits += forward_parts(runner, [(sequence, 19, 20)])
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_only_linear_layers_are_rounded(quantization: str, plain_path: Path, load_runner: Any) -> None:
    model = load_runner(plain_path, "torch", quantization=quantization).runner.model
    for layer in model.layers:
        for matrix in (layer.qkv_weight, layer.output_weight, layer.gate_up_weight, layer.down_weight):
            assert isinstance(matrix, QuantizedMatrix)
            assert matrix.bits == int(quantization.removeprefix("int"))
    assert isinstance(model.embedding, torch.Tensor)
    assert isinstance(model.lm_head, torch.Tensor)


def test_a_model_with_layer_norms_is_rounded_too(
    tmp_path: Path, load_runner: Any, paged_sequence: Any, forward_parts: Any
) -> None:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=80, hidden_size=64, num_hidden_layers=1, ffn_dim=96, num_attention_heads=4, word_embed_proj_dim=64
    )
    torch.manual_seed(3)
    OPTForCausalLM(config).save_pretrained(tmp_path)
    sequence = paged_sequence([idx % 80 for idx in range(20)], [0, 1])
    runners = [load_runner(tmp_path, "torch", quantization=name).runner for name in (None, "int8")]
    assert isinstance(runners[1].model.layers[0].up[0], QuantizedMatrix)
    plain, rounded = (forward_parts(runner, [(sequence, 0, 20)])[0] for runner in runners)
    assert 0 < (plain - rounded).abs().max() < 0.05 * plain.abs().max()


@pytest.mark.parametrize("kernels", ["cpu", "torch_int8", None])
def test_kernels_that_round_by_themselves_refuse(kernels: str | None, plain_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"quantization='int8' goes with kernels .*'torch'.*'triton'"):
        LLM(str(plain_path), kernels=kernels, device="cpu", quantization="int8")


def test_unknown_ways_of_rounding_are_refused(plain_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"quantization='fp8' is unknown; choose one of \['int4', 'int8'\]"):
        LLM(str(plain_path), quantization="fp8")


def test_sizes_that_do_not_divide_are_refused(
    tmp_path: Path, make_tiny_model: Callable[..., Any], load_runner: Any
) -> None:
    path = make_tiny_model(hidden_size=48).save(tmp_path / "odd")
    with pytest.raises(ModelLoadError, match=r"q_proj.weight .*quantization='int4': int4 takes a multiple of 32 .* 48"):
        load_runner(path, "torch", quantization="int4")
    load_runner(path, "torch", quantization="int8")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_that_are_not_finite_are_named(
    quantization: str, name: str, value: float, tmp_path: Path, make_tiny_model: Callable[..., Any], load_runner: Any
) -> None:
    """They would fail every request."""
    tiny = make_tiny_model(num_hidden_layers=1)
    tiny.tensors[f"model.layers.0.{name}.weight"][5, 9] = value
    path = tiny.save(tmp_path / "odd")
    with pytest.raises(ModelLoadError, match=f"tensor 'model.layers.0.{name}.weight': weights are not finite"):
        load_runner(path, "torch", quantization=quantization)


def test_an_error_says_that_ranks_have_cut_the_inputs(tmp_path: Path, make_tiny_model: Callable[..., Any]) -> None:
    path = make_tiny_model(num_hidden_layers=1).save(tmp_path / "whole")
    shapes, pieces = [(64, 96)], [Piece(1, 0, 48)]
    name = "model.layers.0.mlp.down_proj.weight"
    parameters = ParameterReader(resolve_model(path), torch.float32, torch.device("cpu"))
    message = r"not 48 \(tensor_parallel_size cuts the 96 inputs into parts of 48\)"
    with pytest.raises(ModelLoadError, match=message):
        RoundingReader(SCHEMES["int4"], str(path)).read(parameters, [name], shapes, pieces)


def test_packed_checkpoints_load_into_the_int8_kernels(
    packed_path: Path, load_runner: Any, paged_sequence: Any, forward_parts: Any
) -> None:
    """They round the dequantised weights anew, in their own way."""
    sequence = paged_sequence(PROMPT[:20], [0, 1])
    found, expected = (
        forward_parts(load_runner(packed_path, kernels).runner, [(sequence, 0, 20)])[0]
        for kernels in ("torch_int8", "reference")
    )
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()
    assert json.loads((packed_path / "config.json").read_text())["quantization_config"]["quant_method"] == "gptq"


TEXT = (
    "The capital of France is Paris, a city on the river Seine with more than two million people. It has been the "
    "seat of government for most of the last thousand years. Water boils at one hundred degrees Celsius at sea level, "
    "and at a lower temperature on a high mountain, because the pressure of the air is lower there. A prime number is "
    "a number greater than one that has no divisors other than one and itself: two, three, five, seven and eleven are "
    "the first five of them. Once upon a time there was a little girl who lived with her mother in a small house at "
    "the edge of a large forest. Every morning she went to the well to fetch water, and every evening she fed the hens."
)


@pytest.mark.model
def test_eight_bits_choose_what_the_model_would(load_runner: Any, paged_sequence: Any) -> None:
    from ramet.runtime.tokenizer import load_tokenizer

    token_ids = load_tokenizer(resolve_model("smollm2").tokenizer_source).encode(TEXT)
    batch = Batch(scheduled=[ScheduledSequence(paged_sequence(token_ids, list(range(16))), 0, len(token_ids), 0)])
    logits = [load_runner("smollm2", "torch", 2, quantization=name).runner.forward(batch) for name in (None, "int8")]
    logprobs = [each.log_softmax(1) for each in logits]
    agreement = (logits[0].argmax(1) == logits[1].argmax(1)).float().mean()
    next_ids = torch.tensor(token_ids[1:])[:, None]
    losses = [-each[:-1].gather(1, next_ids).mean() for each in logprobs]
    assert agreement >= 0.95
    assert abs(losses[1] - losses[0]) < 0.01
