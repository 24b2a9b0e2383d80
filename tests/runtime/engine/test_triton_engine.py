"""The whole engine over Triton kernels, interpreted: token by token what the reference kernels say."""

from __future__ import annotations

import importlib.util

import pytest

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
    captured sizes, drawn on the device, and prepared while the step before is in flight."""
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
