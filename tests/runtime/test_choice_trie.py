"""The trie of continuations, and the branches it is cut into: every row is made once, and little else is computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.choice_trie import MAX_REPEATED_TOKENS, ROOT, Branch, BranchPlan, ChoiceTrie, plan_branches

continuations = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=40)


def texts_of(trie: ChoiceTrie) -> list[tuple[int, ...]]:
    """Of each node, the tokens that lead to it."""
    texts: list[tuple[int, ...]] = [()] * len(trie.children)
    for node, children in enumerate(trie.children):
        for token_id, child in children.items():
            assert trie.token_ids[child] == token_id
            texts[child] = (*texts[node], token_id)
    return texts


def runs(plan: BranchPlan) -> Iterator[tuple[tuple[int, ...], Branch]]:
    """Every branch with all tokens from the root to its end."""
    waiting = [((), branch) for branch in plan.first]
    while waiting:
        before, branch = waiting.pop()
        tokens = (*before, *branch.token_ids)
        yield tokens, branch
        waiting += [(tokens, child) for child in branch.children]


@given(continuations)
def test_a_path_leads_to_every_continuation(items):
    trie = ChoiceTrie(items)
    texts = texts_of(trie)
    assert len(set(texts)) == len(texts)
    for token_ids, path in zip(items, trie.paths, strict=True):
        assert [texts[node] for node in path] == [tuple(token_ids[: end + 1]) for end in range(len(token_ids))]


@given(continuations, st.booleans())
def test_every_node_with_children_gives_its_row_once(items, has_prompt):
    trie = ChoiceTrie(items)
    texts = texts_of(trie)
    plan = plan_branches(trie, has_prompt=has_prompt)
    given_rows: list[int] = []
    numbers: list[int] = []
    for tokens, branch in runs(plan):
        first_len = len(tokens) - len(branch.nodes) + 1
        assert [texts[node] for node in branch.nodes] == [tokens[:end] for end in range(first_len, len(tokens) + 1)]
        assert first_len >= len(tokens) - len(branch.token_ids) + (0 if branch.nodes[0] == ROOT else 1)
        assert all(child.idx > branch.idx for child in branch.children)
        given_rows += branch.nodes
        numbers.append(branch.idx)
    wanted = [node for node, children in enumerate(trie.children) if children and (has_prompt or node != ROOT)]
    assert sorted(given_rows) == (wanted or [1])
    assert sorted(numbers) == list(range(plan.num_branches))
    assert plan.first[0].idx == 0


@given(continuations)
def test_small_tries_need_one_step_behind_the_prompt(items):
    (first,) = plan_branches(ChoiceTrie(items), has_prompt=True).first
    if len(items) < 8:
        assert all(not child.children for child in first.children)
    assert len(first.children) != 1


@given(st.lists(st.integers(1, 50), min_size=2, max_size=30), st.integers(2, 20))
def test_what_is_computed_twice_is_bounded(lengths, width):
    """Long beginnings, each with several ends."""
    items = [[stem, *[99] * length, end, 7] for stem, length in enumerate(lengths) for end in range(width)]
    trie = ChoiceTrie(items)
    num_wanted = sum(1 for children in trie.children[1:] if children)
    branches = [branch for _, branch in runs(plan_branches(trie, has_prompt=True))]
    num_forks = sum(1 for branch in branches if branch.children)
    num_tokens = sum(len(branch.token_ids) for branch in branches)
    assert num_tokens - num_wanted <= MAX_REPEATED_TOKENS * (num_forks + len(lengths))


@pytest.mark.parametrize("has_prompt", [True, False])
def test_depth_and_width_are_no_trouble(has_prompt):
    comb = [[1] * depth + [2, 3] for depth in range(600)]
    plan = plan_branches(ChoiceTrie(comb), has_prompt=has_prompt)
    assert plan.num_branches >= 600
    assert plan_branches(ChoiceTrie([[1] * 9000]), has_prompt=has_prompt).num_branches == 1
    wide = plan_branches(ChoiceTrie([[idx] for idx in range(5000)]), has_prompt=has_prompt)
    assert wide.num_branches == 1
    assert wide.first[0].nodes == ([ROOT] if has_prompt else [1])


def test_the_example_of_the_essay():
    trie = ChoiceTrie([[0, 1, 2], [0, 1, 3], [0, 4, 5], [6]])
    (first,) = plan_branches(trie, has_prompt=True).first
    assert (first.token_ids, len(first.nodes)) == ([0], 2)
    assert [(child.token_ids, len(child.nodes), child.children) for child in first.children] == [
        ([1], 1, []),
        ([4], 1, []),
    ]
    assert first.longest_run() == 2
