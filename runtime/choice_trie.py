"""ChoiceTrie: continuations of one prompt merged by their tokens; and the branches that compute it in few rows.

    continuations  [a b c] [a b d] [a e f] [g]          root - a - b - c
                                                              |   |   ` d
                                                              |    ` e - f
                                                               ` g

A node's row of logits scores its children, so only nodes that have some need one: here root, a, b and e. The row of the
root is that of the prompt's last token, which is computed anyway. What is left is cut into *branches*, runs of tokens
that go on from a common place:

    1. The first branch is the prompt and, as long as only one child has children itself, that child and so on: a
       common beginning, or a single continuation, needs no other branch. Here it is the prompt and a.
    2. Where several children have children, each begins branches of its own, and they run side by side. Here b and e.
    3. Below such a place, tokens that branches have in common are computed by each of them, but only the first wants
       their logits: so every row of logits is made once and all branches run in one step. Where that would compute more
       than MAX_REPEATED_TOKENS again, they begin behind what they share, a step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_REPEATED_TOKENS = 64
"""Computing some tokens twice is cheaper than a step of its own for them, which reads all weights once more."""

ROOT = 0


class ChoiceTrie:
    """The trie of some continuations. Node 0 is the root; a child has a higher number than its parent. O(tokens).

    Args:
        continuations: at least one, none empty.

    Attributes:
        token_ids: of each node, its token; -1 for the root.
        children: of each node, token id to node.
        paths: of each continuation, the nodes of its tokens.
    """

    def __init__(self, continuations: Sequence[Sequence[int]]) -> None:
        self.token_ids: list[int] = [-1]
        self.children: list[dict[int, int]] = [{}]
        self.paths: list[list[int]] = []
        for token_ids in continuations:
            assert token_ids
            node = ROOT
            path = []
            for token_id in token_ids:
                child = self.children[node].setdefault(token_id, len(self.children))
                if child == len(self.children):
                    self.token_ids.append(token_id)
                    self.children.append({})
                node = child
                path.append(node)
            self.paths.append(path)


@dataclass(slots=True, eq=False)
class Branch:
    """Tokens to compute behind the place where the branch begins. Nobody changes it once it is planned.

    Attributes:
        token_ids: empty only for a first branch that is the prompt alone.
        nodes: whose rows of logits it gives: the last len(nodes) rows up to the branch's last token. That is one more
            than it has tokens for a first branch behind a prompt, and fewer where another branch gives those of the
            first tokens.
        children: the branches that begin where it ends.
        idx: its number among all branches of the trie; an ancestor's is lower.
    """

    token_ids: list[int]
    nodes: list[int]
    children: list[Branch] = field(default_factory=list)
    idx: int = 0

    def longest_run(self) -> int:
        """Tokens of this branch, its first child, the first child of that, and so on."""
        num_tokens, branch = len(self.token_ids), self
        while branch.children:
            branch = branch.children[0]
            num_tokens += len(branch.token_ids)
        return num_tokens


@dataclass(frozen=True, slots=True)
class BranchPlan:
    """How a trie is computed.

    Attributes:
        first: the branches to begin with. Behind a prompt that is one. Without a prompt nothing gives the logits of the
            first tokens, so each of these that goes on begins branches of its own.
        num_branches: how many there are in all.
    """

    first: list[Branch]
    num_branches: int


def plan_branches(trie: ChoiceTrie, *, has_prompt: bool) -> BranchPlan:
    """Cut the nodes that have children into branches. O(tokens). No recursion: a trie may be as deep as a context."""
    stem = _common_beginning(trie) if has_prompt else []
    below = _branches_below(trie, stem[-1] if stem else ROOT, set(stem))
    if has_prompt:
        first = [Branch([trie.token_ids[node] for node in stem], [ROOT, *stem], below)]
    else:
        # Something must run for the request to end: if nothing has children, the first token, whose row nobody needs.
        first = below or [Branch([trie.token_ids[1]], [1])]
    num_branches = 0
    unnumbered = list(reversed(first))
    while unnumbered:
        branch = unnumbered.pop()
        branch.idx = num_branches
        num_branches += 1
        unnumbered += reversed(branch.children)
    return BranchPlan(first, num_branches)


def _common_beginning(trie: ChoiceTrie) -> list[int]:
    """The nodes from the root on, without it, as long as one child has children itself and no other has."""
    stem: list[int] = []
    node = ROOT
    while True:
        inner = [child for child in trie.children[node].values() if trie.children[child]]
        if len(inner) != 1:
            return stem
        node = inner[0]
        stem.append(node)


def _branches_below(trie: ChoiceTrie, end: int, stem: set[int]) -> list[Branch]:
    """The branches that begin behind node `end`, which `stem`, all nodes before it but the root, leads to."""
    found: dict[int, list[Branch]] = {}
    num_repeated: dict[int, int] = {}
    for node in range(len(trie.children) - 1, ROOT, -1):  # children before their parents
        children = trie.children[node].values()
        if not children or node in stem:
            continue
        below = [branch for child in children for branch in found.pop(child, ())]
        repeated = sum(num_repeated.pop(child, 0) for child in children) + max(0, len(below) - 1)
        if not below or repeated > MAX_REPEATED_TOKENS:
            below, repeated = [Branch([], [], [_turned(branch) for branch in below])], 0
        for branch in below:
            branch.token_ids.append(trie.token_ids[node])
        below[0].nodes.append(node)  # the first one gives every row that it computes
        found[node], num_repeated[node] = below, repeated
    return [_turned(branch) for child in trie.children[end].values() for branch in found.get(child, ())]


def _turned(branch: Branch) -> Branch:
    """A branch grew at its beginning, so its lists were kept in reverse order until now."""
    branch.token_ids.reverse()
    branch.nodes.reverse()
    return branch
