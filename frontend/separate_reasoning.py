"""separate_reasoning: gens whose reasoning is taken out of the text and bound to a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .errors import InvalidProgramError
from .primitives import Concat, Expression, Gen, Select, as_expression
from .reasoning import ReasoningFormat, resolve_reasoning_format

_CONSTRAINTS = frozenset({"regex", "json_schema", "ebnf", "choices"})


def separate_reasoning(
    expr: Expression | str | Sequence[Expression | str], model_type: str | None = None
) -> Expression:
    """The same expression, but what the model thinks in its gens is kept apart.

    A gen that binds `name` binds the answer to it and the reasoning to `name` + "_reasoning_content". The text of the
    program goes on with the answer alone, as if the model had not thought, also in `messages()` and while it streams.
    What the model was thinking counts towards max_tokens.

    Args:
        model_type: how the model marks its reasoning, in SGLang's names; see REASONING_FORMATS.

    Raises:
        InvalidProgramError: another model_type, or the expression has a select or a gen under a constraint, which
            leave a model no room to think; or no gen at all.
    """
    reasoning = resolve_reasoning_format(model_type)
    parts = as_expression(expr).parts()
    if not any(isinstance(part, Gen) for part in parts):
        raise InvalidProgramError("separate_reasoning is not allowed here: the expression has no gen that could reason")
    return Concat(tuple(_with_reasoning(part, reasoning) for part in parts))


def _with_reasoning(part: Expression, reasoning: ReasoningFormat) -> Expression:
    if isinstance(part, Select):
        raise InvalidProgramError(f"separate_reasoning is not allowed around select {part.name!r}: it does not reason")
    if not isinstance(part, Gen):
        return part
    constraints = sorted(_CONSTRAINTS & part.options.keys())
    if constraints:
        raise InvalidProgramError(
            f"separate_reasoning is not allowed around gen {part.name!r}: {constraints[0]} says what all of its text "
            "must be; let one gen reason and constrain the next"
        )
    return replace(part, reasoning=reasoning)
