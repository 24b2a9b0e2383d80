"""What all runs of a program begin with: found by running its body up to the first thing that a run decides.

Only `Program.cache` does this, because somebody asked for it. Arguments without a value are placeholders: appending
one, or asking it anything, ends the prefix, and so does a gen, a select, a fork or a read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from .appendable import AppendableState
from .backend import Backend
from .errors import InvalidProgramError
from .fork import Appendable, ForkGroup
from .primitives import Expression, RoleBegin, RoleEnd, Text, as_expression
from .program_body import ProgramBody
from .run_context import RunContext
from .scope import Scope


class _PrefixEnd(BaseException):
    """The text from here on differs from run to run. No Exception, so that a body does not catch it by chance."""


class Placeholder(Expression):
    """An argument whose value a run will give."""

    def _end(self, *_: object) -> NoReturn:
        raise _PrefixEnd

    __str__ = __format__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __call__ = _end
    __int__ = __float__ = __index__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _end
    __getattr__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __mod__ = __rmod__ = __enter__ = __exit__ = _end


class PrefixState(AppendableState):
    """The state of a body that is run for its prefix: takes text until something else comes."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self._is_over = False

    def append(self, expression: Appendable | Sequence[Appendable]) -> None:
        for part in as_expression(expression).parts():
            if self._is_over:  # such as the end of a message whose block is left now
                return
            if not isinstance(part, Text | RoleBegin | RoleEnd):
                self._end()
            self._scope.add(part)

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ForkGroup[PrefixState]:
        self._end()

    def _end(self, *_: object, **__: object) -> NoReturn:
        self._is_over = True
        raise _PrefixEnd

    __getitem__ = __iter__ = get = get_var = meta = metas = get_meta_info = _end
    text = messages = token_ids = text_iter = text_async_iter = sync = error = _end


def compute_prefix(body: ProgramBody, arguments: Mapping[str, Any], backend: Backend) -> int:
    """Run a body with these arguments, defaults and placeholders, and have its prefix computed. Blocks.

    Returns:
        The number of tokens of the prefix, which the backend has computed.

    Raises:
        InvalidProgramError: the body is a coroutine.
        GenerationError: the backend failed.
    """
    if body.is_async:
        raise InvalidProgramError(f"{body.name} is async: only the beginning of a plain program can be cached ahead")
    scope = Scope(RunContext(body.name, backend, {}))
    bound = _arguments(body.signature, arguments)
    with suppress(_PrefixEnd, Exception):  # what a placeholder made fail ends the prefix, too
        body.function(PrefixState(scope), *bound.args[1:], **bound.kwargs)
    try:
        return scope.compute()
    finally:
        scope.run.end_body(None)


def _arguments(signature: inspect.Signature, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
    bound = signature.bind_partial(None, **arguments)
    for name, parameter in signature.parameters.items():
        is_open = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if name not in bound.arguments and not is_open:
            has_default = parameter.default is not inspect.Parameter.empty
            bound.arguments[name] = parameter.default if has_default else Placeholder()
    bound.arguments = {name: bound.arguments[name] for name in signature.parameters if name in bound.arguments}
    return bound
