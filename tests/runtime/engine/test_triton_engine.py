"""The whole engine over Triton kernels, interpreted: token by token what the reference kernels say."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from .device_reads import DeviceReads

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton runs on Linux only")

STEM = [(idx * 37 + idx * idx * 5) % 97 for idx in range(300)]
"""Long enough for its blocks to be read once for all who share them."""


@pytest.fixture(scope="module")
def model_dir(make_tiny_model, tmp_path_factory):
    return make_tiny_model(seed=3).save(tmp_path_factory.mktemp("triton") / "model")


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_the_engine_says_what_it_says_over_the_reference(
    model_dir, load_runner, engine_over, request_of, run, is_overlapping
):
    """A shared prefix, prompts in chunks, seeds, penalties, two samples, and a cache that is used again; decodes of
    captured sizes, drawn on the device, and launched before the tokens of the step before are known."""
    requests = [
        request_of("greedy", [*STEM, 5, 6], max_tokens=6),
        request_of("seeded", [*STEM, 7], temperature=0.8, top_p=0.9, seed=11, max_tokens=6),
        request_of("two", [*STEM, 8], temperature=1.0, seed=5, n=2, max_tokens=5),
        request_of("own", [3, 1, 4, 1, 5], repetition_penalty=1.2, max_tokens=6),
    ]
    outputs = []
    for kernels in ("triton", "reference"):
        options = {"captured_batch_sizes": (1, 2, 4)} if kernels == "triton" else {}
        loaded = load_runner(model_dir, kernels, num_blocks=80, **options)
        engine = engine_over(loaded, max_num_batched_tokens=160, overlap_schedule=is_overlapping)
        assert engine._launcher.is_pipelined == (is_overlapping and kernels == "triton")
        engine.add_request(request_of("warm", STEM, max_tokens=1))
        warm = run(engine)
        for request in requests:
            engine.add_request(request)
        finished = warm | run(engine)
        outputs.append(
            {
                name: ([tuple(each.token_ids) for each in output.outputs], output.num_cached_tokens)
                for name, output in finished.items()
            }
        )
    assert outputs[0] == outputs[1]
    assert outputs[0]["greedy"][1] >= 288


def test_the_host_reads_nothing_of_the_device_but_the_tokens(
    make_tiny_model, load_runner, engine_over, request_of, tmp_path, monkeypatch
):
    """Between two waits for tokens a step is accepted, another one sampled, and the next one launched: nothing in
    there may wait. Rows are masked, changed, cut and listed; two samples copy the end of their prompt."""
    from ramet.kernels.triton.launch import KernelCall
    from ramet.runtime.gpu import runner, sampler

    model_dir = make_tiny_model(seed=3, num_hidden_layers=1).save(tmp_path / "model")
    loaded = load_runner(model_dir, "triton", num_blocks=40, captured_batch_sizes=(1, 2, 4))
    reads = DeviceReads(monkeypatch)
    monkeypatch.setattr(KernelCall, "run", reads.launching(KernelCall.run))
    for module in (runner, sampler):
        monkeypatch.setattr(module, "upload", reads.uploading(module.upload))
    reads.put(*(cache for layer in loaded.runner.kv_cache.layers for cache in layer))
    num_waits = 0
    finish = sampler.TritonDraw.finish

    def wait(draw):
        nonlocal num_waits
        num_waits += 1
        with reads.watching(is_watching=False):
            return finish(draw)

    monkeypatch.setattr(sampler.TritonDraw, "finish", wait)
    engine = engine_over(loaded, overlap_schedule=True)
    engine.add_request(request_of("masked", [1, 2, 3], max_tokens=3, regex="[a-z]{9}", logprobs=1))
    engine.add_request(request_of("two", [4, 5, 6], max_tokens=4, n=2, temperature=1.0, top_p=0.9, seed=1))
    engine.add_request(request_of("changed", [7, 8], max_tokens=4, repetition_penalty=1.3, logit_bias={5: 2.0}))
    with reads, reads.watching():
        num_outputs = 0
        while engine.has_work:
            num_outputs += sum(chunk.output is not None for chunk in engine.step())
    assert num_outputs == 3
    assert num_waits == engine.metrics.num_steps
    assert reads.reads == []
    logits = torch.zeros(2)
    reads.put(logits)
    with reads, reads.watching():
        assert (logits * 2).tolist() == [0.0, 0.0]
        assert not logits[0] > 0
    assert reads.reads[0] == "tolist", "what reads is found"
    assert len(reads.reads) > 1
