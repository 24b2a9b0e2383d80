r"""Models that write what they think before they answer: how the two are told apart in one text.

<think>\nThe user greets me.\n</think>\n\nHello!        reasoning "The user greets me.", answer "Hello!"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .errors import InvalidProgramError

REASONING_SUFFIX = "_reasoning_content"
"""Of the name that the reasoning of `name` is bound to."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning.

    Attributes:
        begin, end: the marks.
        is_opened_by_template: the chat template or the habit of the model leaves `begin` out, so the text begins with
            reasoning in any case.
    """

    begin: str
    end: str
    is_opened_by_template: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer of a whole text.

        White space around the reasoning and before the answer belongs to neither. A reasoning that has no end is all
        there is; a text that does not begin with one is all answer.
        """
        body = text.lstrip()
        if not self.is_opened_by_template and not body.startswith(self.begin):
            return "", text
        reasoning, _, answer = body.removeprefix(self.begin).partition(self.end)
        return reasoning.strip(), answer.lstrip()

    def answer_so_far(self, beginning: str) -> str:
        """What is certain of the answer, given the beginning of a text: a prefix of what `split` will give."""
        body = beginning.lstrip()
        if not self.is_opened_by_template and self.begin.startswith(body):
            return ""  # it may still become the mark
        return self.split(beginning)[1]

    def answer_chunks(self, chunks: Iterator[str]) -> Iterator[str]:
        """The answer piece by piece, from the pieces of a text."""
        answer = AnswerStream(self)
        yield from filter(None, map(answer.feed, chunks))
        yield from filter(None, [answer.end()])


class AnswerStream:
    """Follows a text piece by piece and lets the answer through as soon as it is certain."""

    def __init__(self, marks: ReasoningFormat) -> None:
        self._format = marks
        self._text = ""
        self._num_shown = 0

    def feed(self, piece: str) -> str:
        """What is new of the answer with one more piece of the text; often nothing."""
        self._text += piece
        return self._new(self._format.answer_so_far(self._text))

    def end(self) -> str:
        """The rest of the answer, now that the text is whole."""
        return self._new(self._format.split(self._text)[1])

    def _new(self, answer: str) -> str:
        new = answer[self._num_shown :]
        self._num_shown = len(answer)
        return new


_THINK = ReasoningFormat("<think>", "</think>")
_OPEN_THINK = ReasoningFormat("<think>", "</think>", is_opened_by_template=True)

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek-r1": _OPEN_THINK,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "qwen3": _THINK,
    "qwen3-thinking": _OPEN_THINK,
    "step3": _OPEN_THINK,
}
"""By the names that SGLang has for them."""


def resolve_reasoning_format(model_type: str | None) -> ReasoningFormat:
    """
    Raises:
        InvalidProgramError: no such format, or none named.
    """
    if model_type is None or model_type not in REASONING_FORMATS:
        raise InvalidProgramError(
            f"separate_reasoning(model_type={model_type!r}) is not allowed: name the format of the model's reasoning, "
            f"one of {', '.join(REASONING_FORMATS)}"
        )
    return REASONING_FORMATS[model_type]
