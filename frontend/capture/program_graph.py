"""ProgramGraph: the calls of a program and what each of them needs, captured ahead of a run or taken from one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ...sampling_params import SamplingParams
from ..backend import TextSegment
from ..calls import CallKind, CallRecord
from .placeholder import StopPoint, keys_in, shown

_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One call, or a piece of text.

    Attributes:
        node_id: position in the program's order, from 0.
        kind: "text", "gen", "select", "fork" or "join".
        name: the variable it binds, if any.
        parent_ids: what is directly before it: its prompt is what the nodes on the way there made.
        uses: the calls whose values are written into its text.
        arguments: the arguments that were not given and are written into its text.
        branch: () for the program itself, (1, 0) for branch 0 of branch 1.
        source: file and line of the program.
        role: the chat message it is in, where that is known.
        text: of a text node; a value or argument that is not known stands in it as {name}.
        params: of a gen, what differs from the defaults of SamplingParams.
        choices: of a select.
        num_branches: of a fork or join.
    """

    node_id: int
    kind: CallKind
    name: str | None
    parent_ids: tuple[int, ...]
    uses: tuple[int, ...]
    arguments: tuple[str, ...]
    branch: tuple[int, ...]
    source: str
    role: str | None = None
    text: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[str, ...] = ()
    num_branches: int = 0


@dataclass(frozen=True, slots=True)
class ProgramGraph:
    """The calls of a program in its order; `print` shows them.

    Attributes:
        program_name: of the function.
        nodes: by node_id.
        prefix: what every call's prompt begins with, whatever the values and arguments are. Its template text is that
            of the backend the program was captured for; without one it only shows where messages begin and end.
        num_prefix_tokens: of the prefix on that backend; the last of them may become another one where text follows.
            None without a backend.
        stop: why and where the capture ended before the program did; None if the graph is complete.
    """

    program_name: str
    nodes: tuple[GraphNode, ...]
    prefix: tuple[TextSegment, ...] = ()
    num_prefix_tokens: int | None = None
    stop: StopPoint | None = None

    @property
    def prefix_text(self) -> str:
        return "".join(segment.text for segment in self.prefix)

    @property
    def is_complete(self) -> bool:
        return self.stop is None

    @property
    def calls(self) -> tuple[GraphNode, ...]:
        """The nodes that a model answers."""
        return tuple(node for node in self.nodes if node.kind in ("gen", "select"))

    @classmethod
    def of_calls(cls, program_name: str, records: Sequence[CallRecord]) -> ProgramGraph:
        """The graph of a run, from `state.calls()`. What was written into a text is not told apart there."""
        return cls(program_name, tuple(node_of(record) for record in records))

    def to_json(self) -> str:
        """The whole graph as one JSON object."""
        nodes = [{item.name: getattr(node, item.name) for item in fields(node)} for node in self.nodes]
        document = {
            "program": self.program_name,
            "prefix": self.prefix_text,
            "num_prefix_tokens": self.num_prefix_tokens,
            "nodes": nodes,
            "stop": None if self.stop is None else {"reason": self.stop.reason, "source": self.stop.source},
        }
        return json.dumps(document, ensure_ascii=False, default=str)

    def __str__(self) -> str:
        size = f"{len(self.prefix_text)} characters"
        if self.num_prefix_tokens is not None:
            size += f", {self.num_prefix_tokens} tokens"
        lines = [f"program {self.program_name}", f"constant prefix ({size}): {_shortened(self.prefix_text)}"]
        lines += [_line(node) for node in self.nodes]
        if self.stop is not None:
            lines.append(f"stops here: {self.stop.reason} ({self.stop.source})")
        return "\n".join(lines)


def node_of(record: CallRecord, role: str | None = None) -> GraphNode:
    keys = keys_in(record.text)
    return GraphNode(
        node_id=record.call_id,
        kind=record.kind,
        name=record.name,
        parent_ids=record.parent_ids,
        uses=tuple(int(key) for key in keys if key.isdecimal()),
        arguments=tuple(key.removeprefix("@") for key in keys if key.startswith("@")),
        branch=record.branch,
        source=record.source,
        role=role,
        text=shown(record.text),
        params=_params(record.sampling_params),
        choices=record.choices,
        num_branches=record.num_branches,
    )


def _params(params: SamplingParams | None) -> dict[str, Any]:
    if params is None:
        return {}
    default = SamplingParams()
    values = {item.name: (getattr(params, item.name), getattr(default, item.name)) for item in fields(params)}
    return {name: value for name, (value, usual) in values.items() if value != usual}


def _line(node: GraphNode) -> str:
    where = "".join(f"[{idx}]" for idx in node.branch)
    head = f"{node.node_id:>4}  {'  ' * len(node.branch)}{node.kind}{where}"
    if node.role is not None:
        head += f" in {node.role}"
    if node.name is not None:
        head += f" {node.name!r}"
    if node.kind == "text":
        head += f" {_shortened(node.text)}"
    elif node.kind == "select":
        head += f" of {len(node.choices)} choices"
    elif node.kind in ("fork", "join"):
        head += f" of {node.num_branches} branches"
    for name, value in node.params.items():
        head += f" {name}={_shortened(value)}"
    after = f" after {', '.join(map(str, node.parent_ids))}" if node.parent_ids else ""
    uses = f" uses {', '.join(map(str, node.uses))}" if node.uses else ""
    return f"{head}{after}{uses}  {node.source}"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 4]}...{text[-1]}"
