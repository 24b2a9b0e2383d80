"""Questions: shots, prompts, choices and targets of each item."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.eval import InvalidTaskError, Task, build_questions
from ramet.eval.shots import ShotSource

ITEMS = [{"q": f"q{idx}", "a": f"a{idx}", "options": [f"a{idx}", "other"]} for idx in range(8)]


def task(**options: Any) -> Task:
    return Task(**{"name": "t", "kind": "generate", "items": ITEMS, "prompt": "Q: {q}\nA:", "target": "{a}", **options})


def test_the_prompt_without_a_chat() -> None:
    (question, *_) = build_questions(task(num_shots=2, shot_order="first", shots=ITEMS[5:], description="Answer.\n\n"))
    assert question.parts == (("", "Answer.\n\nQ: q5\nA: a5\n\nQ: q6\nA: a6\n\nQ: q0\nA:"),)
    assert (question.is_chat, question.lead, question.targets) == (False, " ", ("a0",))


def test_shots_as_turns_and_as_one_text() -> None:
    options = {"num_shots": 1, "shot_order": "first", "shots": ITEMS[5:], "description": "Answer.\n\n", "system": "Be."}
    (turns, *_) = build_questions(task(chat="turns", **options))
    assert turns.parts == (
        ("system", "Be.\n\nAnswer."),
        ("user", "Q: q5\nA:"),
        ("assistant", "a5"),
        ("user", "Q: q0\nA:"),
    )
    assert turns.is_chat
    assert turns.lead == ""
    (text, *_) = build_questions(task(chat="text", **options))
    assert text.parts == (("system", "Be."), ("user", "Answer.\n\nQ: q5\nA: a5\n\nQ: q0\nA:"))


def test_without_a_system_prompt_there_is_no_system_message() -> None:
    (question, *_) = build_questions(task(chat="turns"))
    assert question.parts == (("user", "Q: q0\nA:"),)


def test_a_shot_may_show_more_than_the_target() -> None:
    (question, *_) = build_questions(task(num_shots=1, shot_target="because {q}", shots=ITEMS[1:]))
    assert "because q" in question.parts[0][1]
    assert question.targets == ("a0",)


@given(seed=st.integers(0, 10**9), num_shots=st.integers(0, 7), order=st.sampled_from(["fixed", "first", "per_item"]))
@settings(max_examples=60)
def test_an_item_is_never_among_its_shots(seed: int, num_shots: int, order: Any) -> None:
    source = ShotSource(task(seed=seed, num_shots=num_shots, shot_order=order))
    for item in ITEMS:
        shots = source.shots_for(item)
        assert len(shots) == num_shots
        assert item not in shots
        assert len({shot["q"] for shot in shots}) == num_shots


def test_fixed_shots_are_the_same_for_all_but_the_shots_themselves() -> None:
    source = ShotSource(task(num_shots=3, seed=1))
    drawn = [tuple(shot["q"] for shot in source.shots_for(item)) for item in ITEMS]
    shared = max(set(drawn), key=drawn.count)
    for item, shots in zip(ITEMS, drawn, strict=True):
        assert (shots == shared) == (item["q"] not in shared)


def test_fewer_shots_are_the_first_of_more() -> None:
    few, more = (ShotSource(task(num_shots=num, seed=5)).shots_for({"q": "new"}) for num in (2, 6))
    assert more[:2] == few


def test_seeds_differ_and_repeat() -> None:
    draws = {seed: str(ShotSource(task(num_shots=4, seed=seed)).shots_for({"q": "new"})) for seed in range(20)}
    assert len(set(draws.values())) > 15
    assert draws[7] == str(ShotSource(task(num_shots=4, seed=7)).shots_for({"q": "new"}))


def test_the_draw_of_an_item_depends_on_nothing_else() -> None:
    pool = ITEMS[:6]
    for order in ("fixed", "per_item"):
        one = ShotSource(task(items=ITEMS, shots=pool, num_shots=3, shot_order=order))
        other = ShotSource(task(items=list(reversed(ITEMS)), shots=pool, num_shots=3, shot_order=order))
        assert [one.shots_for(item) for item in ITEMS] == [other.shots_for(item) for item in ITEMS]


def test_per_item_shots_differ_between_items() -> None:
    source = ShotSource(task(num_shots=3, shot_order="per_item", shots=[{"q": f"s{n}", "a": "x"} for n in range(50)]))
    assert len({str(source.shots_for(item)) for item in ITEMS}) == len(ITEMS)


def test_a_copy_of_the_item_is_no_shot_either() -> None:
    copies = [dict(ITEMS[0]), dict(ITEMS[0]), ITEMS[1]]
    source = ShotSource(task(shots=copies, num_shots=1))
    assert source.shots_for(ITEMS[0]) == [ITEMS[1]]
    with pytest.raises(InvalidTaskError, match="beside the item itself there are 1"):
        build_questions(task(shots=copies, num_shots=2))


CHOICE = {"kind": "multiple_choice", "choices": "{options}"}


@pytest.mark.parametrize(
    ("target", "options", "idx"),
    [
        ("b", ["a", "b"], 1),
        ("1", ["a", "b"], 1),
        (1, ["a", "b"], 1),
        ("B", ["a", "b"], 1),
        ("1", ["0", "1"], 1),
        ("0", ["1", "0"], 1),
        ("B", ["B", "A"], 0),
        (" b ", ["a", "b"], 1),
    ],
)
def test_how_a_target_names_its_choice(target: object, options: list[str], idx: int) -> None:
    items = [{"q": "?", "a": target, "options": options}]
    (question,) = build_questions(task(items=items, **CHOICE))
    assert question.target_idx == idx
    assert question.targets == (options[idx],)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"q": "?", "a": "c", "options": ["a", "b"]}, "item 0 of the task 't': its target 'c' is none of the choices"),
        ({"q": "?", "a": "2", "options": ["a", "b"]}, "nor the position or letter"),
        ({"q": "?", "a": "a", "options": []}, "there must be some"),
        ({"q": "?", "a": "a", "options": ["a", ""]}, "none may be empty"),
        ({"q": "?", "a": [], "options": ["a"]}, "empty list"),
        ({"q": "?", "options": ["a"]}, "no field 'a'"),
        ({"a": "a", "options": ["a"]}, "no field 'q'"),
    ],
)
def test_an_item_that_cannot_be_asked_is_named(item: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        build_questions(task(items=[item], **CHOICE))


def test_choices_may_be_templates_each() -> None:
    (question, *_) = build_questions(task(kind="select", choices=["{a}", "not {a}"]))
    assert question.choices == ("a0", "not a0")


def test_a_limit_takes_the_first_items_and_the_whole_pool() -> None:
    assert [question.idx for question in build_questions(task(num_shots=7), 2)] == [0, 1]
    for limit in (0, -1, True, "3"):
        with pytest.raises(InvalidTaskError, match="limit"):
            build_questions(task(), limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidTaskError, match="has no items"):
        build_questions(task(items=[]))


def test_the_key_knows_what_the_answer_depends_on() -> None:
    base = task()

    def key(changed: Task, model: str = "m") -> str:
        return build_questions(changed, 1)[0].key(changed, model)

    same = [
        dataclasses.replace(base, filters=[*base.filters][:1], name="other"),
        dataclasses.replace(base, target="{q}"),
        dataclasses.replace(base, seed=3),
        dataclasses.replace(base, items=ITEMS[:1]),
    ]
    different = [
        dataclasses.replace(base, prompt="{q}"),
        dataclasses.replace(base, num_shots=1),
        dataclasses.replace(base, max_tokens=7),
        dataclasses.replace(base, stop=["\n"]),
        dataclasses.replace(base, temperature=0.5),
        dataclasses.replace(base, temperature=0.5, seed=3),
        dataclasses.replace(base, chat="turns"),
        dataclasses.replace(base, kind="select", choices="{options}"),
        dataclasses.replace(base, kind="multiple_choice", choices="{options}"),
    ]
    assert {key(each) for each in same} == {key(base)}
    assert len({key(base, "n"), key(base), *(key(each) for each in different)}) == len(different) + 2
