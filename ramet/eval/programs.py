"""The programs that put a question to a model: ramet's own language, so that the shots are computed once.

Each returns an Outcome and blocks until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..frontend.backend import Backend
from ..frontend.primitives import Expression, assistant, gen, select, system, user
from ..frontend.state import ProgramState
from .perplexity import measure_perplexity
from .question import Question
from .results import Outcome
from .task import Task

Ask = Callable[[ProgramState, Task, Question, Backend], Outcome]

_MESSAGES: Mapping[str, Callable[[str], Expression]] = {"system": system, "user": user, "assistant": assistant}


def add_question(s: ProgramState, question: Question, answer: Expression) -> None:
    """Append what stands before the answer, and the answer."""
    for role, text in question.parts:
        s += text if not role else _MESSAGES[role](text)
    s += assistant(answer) if question.is_chat else answer


def ask_for_text(s: ProgramState, task: Task, question: Question, backend: Backend) -> Outcome:
    """Let the model write. Spaces at the end of the delimiter are the model's to write."""
    params = task.sampling_params()
    answer = gen("answer", params.max_tokens, stop=params.stop, temperature=params.temperature, seed=params.seed)
    add_question(s, question, question.lead.rstrip(" ") + answer)
    output, meta = s["answer"], s.meta("answer")
    return Outcome(
        prompt=_prompt_text(s, backend),
        output=output,
        finish_reason=meta.finish_reason,
        num_prompt_tokens=meta.num_prompt_tokens,
        num_cached_tokens=meta.num_cached_tokens,
        num_generated_tokens=meta.num_generated_tokens,
        duration_s=meta.duration_s,
    )


def ask_for_choice(s: ProgramState, task: Task, question: Question, backend: Backend) -> Outcome:
    """Score all choices in one request. A text that is among them twice is scored once."""
    distinct = list(dict.fromkeys(question.choices))
    method = task.choices_method if task.kind == "select" else "sum"
    add_question(s, question, select("answer", [question.lead + choice for choice in distinct], choices_method=method))
    chosen, meta = s["answer"], s.meta("answer")
    scored = dict(zip(distinct, (entry.choice for entry in meta.choices), strict=True))
    return Outcome(
        prompt=_prompt_text(s, backend),
        output=chosen.removeprefix(question.lead),
        finish_reason=meta.finish_reason if task.kind == "select" else "scored",
        logprobs=tuple(scored[choice].sum_logprob for choice in question.choices),
        num_scored_tokens=tuple(len(scored[choice].token_ids) for choice in question.choices),
        num_prompt_tokens=meta.num_prompt_tokens,
        num_cached_tokens=meta.num_cached_tokens,
        duration_s=meta.duration_s,
    )


def ask_for_likelihood(s: ProgramState, task: Task, question: Question, backend: Backend) -> Outcome:
    """How likely the text itself is. It is no call of the language, whose prompts are not scored."""
    return measure_perplexity(question.parts[0][1], backend)


def _prompt_text(s: ProgramState, backend: Backend) -> str:
    """The tokens that the call was sent, as text."""
    (call,) = [call for call in s.calls() if call.name == "answer"]
    return backend.decode(call.prompt_token_ids)


ASK: Mapping[str, Ask] = {
    "generate": ask_for_text,
    "multiple_choice": ask_for_choice,
    "select": ask_for_choice,
    "perplexity": ask_for_likelihood,
}
