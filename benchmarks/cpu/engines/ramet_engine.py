"""ramet as its users have it: prompts through `LLM`, choices through a program with `select`."""

from __future__ import annotations

from typing import Any

from ramet import LLM, LocalBackend, ProgramState, SamplingParams, function, select

from ..workloads import Shape


@function
def choose_one(s: ProgramState, text: str, choices: list[str]) -> None:
    s += text + select("choice", choices)  # type: ignore[misc]


class RametSession:
    """See `workloads.Session`."""

    primes_prefix = False

    def __init__(self, model: str, num_threads: int, kernels: str | None) -> None:
        self.llm = LLM(model, num_threads=num_threads, kernels=kernels, show_progress=False)
        self._backend = LocalBackend(self.llm)

    def begin(self, shape: Shape) -> None:
        self.llm.reset_prefix_cache()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        for output in outputs:
            if output.error is not None:
                raise output.error
        return [output.outputs[0].token_ids for output in outputs]

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        """Token ids become the texts they are of: a program has texts."""
        prefix_text = self._text(prefix)
        choice_texts = [self._text(choice) for choice in choices]
        items = [{"text": prefix_text + self._text(question), "choices": choice_texts} for question in questions]
        states = choose_one.run_batch(items, backend=self._backend)
        return [choice_texts.index(state["choice"]) for state in states]

    def token_scores(self, token_ids: list[int]) -> tuple[list[float], list[int]]:
        """See `quality_job.ScoringSession`."""
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        (output,) = self.llm.generate([{"prompt_token_ids": token_ids}], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        nll, top = [], []
        for token_id, entry in zip(token_ids[1:], output.prompt_logprobs[1:], strict=True):
            assert entry is not None
            nll.append(-entry[token_id].logprob)
            top.append(next(other for other, logprob in entry.items() if logprob.rank == 1))
        return nll, top

    def _text(self, token_ids: list[int]) -> str:
        bos = self.llm.tokenizer.bos_token_id if self.llm.tokenizer.adds_bos else None
        own = token_ids[1:] if token_ids and token_ids[0] == bos else token_ids
        return self.llm.tokenizer.decode(own, skip_special_tokens=False)

    def close(self) -> None:
        self._backend.close()
        self.llm.shutdown()


def open_session(options: dict[str, Any]) -> RametSession:
    return RametSession(options["gguf"], options["threads"], options.get("kernels"))


def details(session: RametSession) -> str:
    return f"{session.llm.kernels_name} kernels"
