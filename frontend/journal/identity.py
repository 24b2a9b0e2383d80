"""What a journal is of, and which line of it is which item's."""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..backend import Backend
from ..errors import InvalidProgramError, described, words_of
from ..run_context import DEFAULT_SAMPLING
from .plain_data import NotPlainDataError, canonical_json, plain_data

VERSION = 1
HEADER_START = b'{"ramet_journal":'


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """What has to be the same for an item's outcome to be taken from a journal instead of computed.

    Attributes:
        program: name of the program.
        source: hash of its body's text. What the body uses from outside itself is not in it.
        sampling: the defaults that its gens inherit.
        model: what the backend says it runs.
    """

    program: str
    source: str
    sampling: Mapping[str, Any]
    model: Mapping[str, Any]

    @classmethod
    def of(
        cls, name: str, body: Callable[..., object], sampling: Mapping[str, Any], backend: Backend
    ) -> JournalIdentity:
        info = backend.info()
        return cls(
            program=name,
            source=_source_hash(body),
            sampling=plain_data({**DEFAULT_SAMPLING, **sampling}, "the sampling defaults"),
            model=plain_data({key: info[key] for key in ("backend", "model") if key in info}, "the model"),
        )

    def to_header(self) -> dict[str, Any]:
        """The first line of a journal, before it is JSON. It begins with HEADER_START then."""
        return {
            "ramet_journal": VERSION,
            "program": self.program,
            "source": self.source,
            "sampling": dict(self.sampling),
            "model": dict(self.model),
        }

    def check_header(self, header: Mapping[str, Any], path: str) -> None:
        """
        Raises:
            InvalidProgramError: the journal with this header is of something else.
        """
        version = header.get("ramet_journal")
        if version != VERSION:
            raise InvalidProgramError(
                f"the journal {path!r} has version {version!r}, and this program reads version {VERSION}: "
                "give another file"
            )
        what = {
            "program": "is of another program",
            "source": f"is of an earlier text of the program {self.program!r}, whose body has changed since",
            "sampling": "was written with other sampling defaults",
            "model": "was written with another model",
        }
        for key, difference in what.items():
            own, its = self.to_header()[key], header.get(key)
            if own != its:
                shown = "" if key == "source" else f": {its!r} there, {own!r} here"
                raise InvalidProgramError(
                    f"the journal {path!r} {difference}{shown}. Give another file, or delete this one to begin anew"
                )


@dataclass(frozen=True, slots=True)
class ItemKey:
    """An item of a batch.

    Attributes:
        digest: of the identity and the arguments: equal items have the same.
        occurrence: how many equal items come before it; each has a line of its own.
        item_idx: its position in the batch, for people: a later batch may have the item elsewhere.
    """

    digest: str
    occurrence: int
    item_idx: int = field(compare=False)


class ItemKeys:
    """Makes the keys of a batch's items, in order."""

    def __init__(self, identity: JournalIdentity) -> None:
        self._prefix = canonical_json(identity.to_header())
        self._counts: Counter[str] = Counter()
        self._num_items = 0

    def next_key(self, arguments: object) -> ItemKey:
        """
        Raises:
            InvalidProgramError: an argument has no form in JSON.
        """
        idx = self._num_items
        try:
            text = canonical_json(plain_data(arguments, f"item {idx}"))
        except Exception as error:  # of the arguments themselves, which may do anything when they are looked at
            reason = words_of(error) if isinstance(error, NotPlainDataError) else f"item {idx}: {described(error)}"
            raise InvalidProgramError(
                f"a journal tells items apart by their arguments, which must be data: {reason}. Give the program data, "
                "and let it make objects of them itself"
            ) from None
        digest = hashlib.sha256(f"{self._prefix}\n{text}".encode()).hexdigest()[:32]
        key = ItemKey(digest, self._counts[digest], idx)
        self._counts[digest] += 1
        self._num_items += 1
        return key


def _source_hash(body: Callable[..., object]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(body))
    except (OSError, TypeError):  # typed in at a prompt, or made by exec
        text = repr(_code_parts(body.__code__)) if inspect.isfunction(body) else repr(body)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _code_parts(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_code_parts(item) if isinstance(item, CodeType) else item for item in code.co_consts)
    return (code.co_code, constants, code.co_names, code.co_varnames)
