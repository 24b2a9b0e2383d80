"""See who ran in which step: three questions behind shared examples, a long prompt, a beam search, in one small engine.

    python examples/watch_the_scheduler.py [steps.html | steps.svg | steps.jsonl]

The questions arrive together. The first computes the examples, the other two wait for it and find them in the cache;
the long prompt is cut into chunks that leave room for everybody's next token.
"""

from __future__ import annotations

import sys

from ramet import LLM, Request, SamplingParams

EXAMPLES = "Sea: blue\nGrass: green\nSnow: white\nSun: yellow\nSky: blue\nNight: black\n"
STORY = "Once upon a time, in a land far away, there was a king who had a garden. " * 8
LENGTHS = {"cloud": 6, "blood": 9, "lemons": 4}


def requests(llm: LLM) -> list[Request]:
    prompts = {name: f"{EXAMPLES}{name.capitalize()}:" for name in LENGTHS}
    params = {name: SamplingParams(temperature=0, max_tokens=length) for name, length in LENGTHS.items()}
    prompts["story"], params["story"] = STORY, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    prompts["search"] = "The capital of France is"
    params["search"] = SamplingParams(temperature=0, max_tokens=8, use_beam_search=True, best_of=3)
    return [
        Request(request_id=name, prompt_token_ids=tuple(llm.tokenizer.encode(prompt)), sampling_params=params[name])
        for name, prompt in prompts.items()
    ]


def main(path: str) -> None:
    with LLM("smollm2", max_num_batched_tokens=64, num_blocks=64) as llm:
        with llm.trace() as recorder:
            outputs = [handle.result() for handle in llm.submit_requests(requests(llm))]
        trace = recorder.trace
    for output in outputs:
        cached = f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens cached"
        print(f"{output.request_id:8}{output.outputs[0].text!r} ({cached})")
    print(trace.summary())
    if path.endswith(".jsonl"):
        trace.save_jsonl(path)
    else:
        trace.save_timeline(path)
    print("written:", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "steps.html")
