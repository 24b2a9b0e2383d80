"""From the items of a batch to what runs them, and what each is known by in a journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .backend import Backend
from .batch import BatchItem, BatchRun
from .batch_items import Arguments
from .batch_options import BatchOptions
from .errors import InvalidProgramError
from .journal.identity import ItemKeys, JournalIdentity
from .journal.journal import JournalSpec
from .program_body import ProgramBody
from .run_context import RunContext
from .scope import Scope


@dataclass(frozen=True, slots=True)
class ProgramBatch:
    """One program, to be run on many items in the same way.

    Attributes:
        ahead: arguments of the body that items may replace.
        sampling: defaults of every run.
        journal: path of the file that keeps finished items.
    """

    body: ProgramBody
    ahead: Mapping[str, Any]
    backend: Backend
    sampling: Mapping[str, Any]
    journal: str | None

    def run_of(self, calls: Iterable[Arguments], options: BatchOptions) -> BatchRun:
        """What runs the program once for each of these arguments."""
        spec = None if self.journal is None else self._journal_spec(self.journal)
        keys = None if spec is None else ItemKeys(spec.identity)
        items = [self._batch_item(args, own, keys) for args, own in calls]
        return BatchRun(self.body.name, items, options, spec)

    def _batch_item(self, args: tuple[Any, ...], own: Mapping[str, Any], keys: ItemKeys | None) -> BatchItem:
        async def execute(scope: Scope) -> BaseException | None:
            try:
                arguments = self.body.arguments(args, own, self.ahead)
            except InvalidProgramError as error:  # the item's own failure
                scope.run.end_body(error)
                return error
            return await self.body.aexecute(scope, arguments)

        return BatchItem(self._new_scope, execute, None if keys is None else keys.next_key(self._known_by(args, own)))

    def _new_scope(self) -> Scope:
        return Scope(RunContext(self.body.name, self.backend, self.sampling))

    def _journal_spec(self, path: str) -> JournalSpec:
        identity = JournalIdentity.of(self.body.name, self.body.function, self.sampling, self.backend)
        return JournalSpec(path, identity, self.backend)

    def _known_by(self, args: tuple[Any, ...], own: Mapping[str, Any]) -> object:
        """What an item is known by: its arguments by name, those given ahead and defaults included."""
        try:
            arguments = self.body.arguments(args, own, self.ahead)
        except InvalidProgramError:
            return [args, own]
        arguments.apply_defaults()
        return self.body.named(arguments)
