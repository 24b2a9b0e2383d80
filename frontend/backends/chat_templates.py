"""Chat templates for servers that tell of none: a few formats by SGLang's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.chat_template import ChatTemplate
from ...runtime.chat_template import TextSegment as RuntimeSegment
from ...suggestions import did_you_mean
from ..backend import Message, TextSegment
from ..errors import InvalidProgramError

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA_3 = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PLAIN = (
    "{% for m in messages %}{{ m.role | upper }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

NAMED_TEMPLATES: Mapping[str, str] = {
    "default": _PLAIN,
    "chatml": _CHATML,
    "qwen": _CHATML,
    "llama-3-instruct": _LLAMA_3,
    "gemma-it": _GEMMA,
}


class RemoteChat:
    """A server's chat format, rendered here."""

    def __init__(self, source: str | None, bos_token: str | None = None, eos_token: str | None = None) -> None:
        self._has_template = source is not None
        self._template = ChatTemplate(source, bos_token, eos_token)

    @staticmethod
    def named(name: str) -> RemoteChat:
        """
        Raises:
            InvalidProgramError: no template has that name.
        """
        if name not in NAMED_TEMPLATES:
            known = sorted(NAMED_TEMPLATES)
            raise InvalidProgramError(
                f"chat_template_name={name!r} is unknown{did_you_mean(name, known)} there are {', '.join(known)}"
            )
        return RemoteChat(NAMED_TEMPLATES[name])

    def role_prefix(self, messages: Sequence[Message], role: str) -> tuple[TextSegment, ...]:
        self._check()
        return _segments(self._template.role_prefix(messages, role))

    def role_suffix(self, messages: Sequence[Message], role: str) -> tuple[TextSegment, ...]:
        self._check()
        return _segments(self._template.role_suffix(messages, role))

    def segments(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, add_generation_prompt: bool
    ) -> tuple[TextSegment, ...]:
        self._check()
        return _segments(self._template.segments(messages, add_generation_prompt, tools))

    def _check(self) -> None:
        if not self._has_template:
            raise InvalidProgramError(
                "the server tells of no chat template: give chat_template_name, one of "
                f"{', '.join(sorted(NAMED_TEMPLATES))}, or write plain text"
            )


def _segments(pieces: Sequence[RuntimeSegment]) -> tuple[TextSegment, ...]:
    return tuple(TextSegment(piece.text, piece.is_template) for piece in pieces)
