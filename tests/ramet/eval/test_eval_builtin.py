"""The built-in tasks, on files like the public ones, and on those themselves where they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ramet import LLM, MockBackend
from ramet.eval import InvalidTaskError, build_questions, evaluate, load_task
from ramet.eval.task_file import BUILTIN_TASKS

PUBLIC_DATA = Path(os.environ.get("RAMET_EVAL_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))

GSM = [
    {"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
    {"question": "A thousand and one?", "answer": "#### 1,001"},
]
COT = """canary
-----
Say whether it is so.

Q: Is a cat an animal?
Options:
- Yes
- No
A: Let's think step by step.
A cat lives.

It breathes. So the answer is Yes.

Q: Is a stone an animal?
Options:
- Yes
- No
A: Let's think step by step.
It does not live. So the answer is No."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for folder in ("gsm8k", "bbh"):
        (tmp_path / folder).mkdir()
    for name in ("test.jsonl", "train-2.jsonl"):
        (tmp_path / "gsm8k" / name).write_text("".join(json.dumps(item) + "\n" for item in GSM), encoding="utf-8")
    examples = [
        {"input": "Is a dog an animal?\nOptions:\n- Yes\n- No", "target": "Yes"},
        {"input": "Is a rock an animal?\nOptions:\n- Yes\n- No", "target": "No"},
        {"input": "Which?\nOptions:\n(A) one\n(B) two", "target": "two"},
    ]
    (tmp_path / "bbh" / "animals.json").write_text(json.dumps({"examples": examples}), encoding="utf-8")
    (tmp_path / "bbh" / "animals.cot.txt").write_text(COT, encoding="utf-8")
    return tmp_path


def test_gsm8k(data: Path) -> None:
    task = load_task("gsm8k", data, num_shots=1)
    replies = ["4 it is.\n#### 4", "so $1,001."]
    result = evaluate(task, MockBackend(replies), max_concurrency=1)
    assert {name: metric.value for name, metric in result.metrics.items()} == {
        "strict_match": 0.5,
        "flexible_extract": 1.0,
    }
    (question, _) = build_questions(task)
    assert question.parts[0][1] == (
        "Question: A thousand and one?\nAnswer: #### 1,001\n\nQuestion: Two and two?\nAnswer:"
    )


def test_bbh_reasons_and_answers(data: Path) -> None:
    task = load_task("bbh:animals", data)
    (question, *_) = build_questions(task)
    prompt = question.parts[0][1]
    assert prompt == COT.partition("-----\n")[2] + (
        "\n\nQ: Is a dog an animal?\nOptions:\n- Yes\n- No\nA: Let's think step by step."
    )
    replies = ["It barks. So the answer is Yes.", "So the answer is Yes.", "So the answer is (B)."]
    backend = MockBackend(replies)
    result = evaluate(task, backend, max_concurrency=1)
    assert [item.scores["exact_match"] for item in result.items] == [1.0, 0.0, 0.0]
    assert backend.requests[0].prompt == prompt + "\n"


def test_bbh_as_multiple_choice(data: Path) -> None:
    task = load_task("bbh_choices:animals", data)
    assert len(task.items) == 2  # the third has no option for its target
    (question, *_) = build_questions(task)
    assert question.parts[0][1].endswith(
        "A: Yes\n\nQ: Is a stone an animal?\nOptions:\n- Yes\n- No\nA: No\n\n"
        "Q: Is a dog an animal?\nOptions:\n- Yes\n- No\nA:"
    )
    assert (question.choices, question.target_idx) == (("Yes", "No"), 0)


def test_the_data_may_lie_in_the_directory_itself(data: Path) -> None:
    assert load_task("gsm8k", data / "gsm8k").items == load_task("gsm8k", data).items


def test_shots_of_a_built_in_task_may_be_another_file(data: Path) -> None:
    task = load_task("gsm8k", data, shots=str(data / "gsm8k" / "test.jsonl"))
    assert task.shots == tuple(GSM)


def test_files_that_are_something_else(data: Path) -> None:
    (data / "bbh" / "animals.json").write_text('{"examples": [{"input": 1}]}', encoding="utf-8")
    with pytest.raises(InvalidTaskError, match="is no BIG-Bench-Hard file"):
        load_task("bbh:animals", data)
    (data / "bbh" / "animals.cot.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(InvalidTaskError, match="has no worked examples"):
        load_task("bbh:animals", data)
    (data / "gsm8k" / "test.jsonl").unlink()
    with pytest.raises(InvalidTaskError, match=r"neither gsm8k/test\.jsonl nor test\.jsonl is there"):
        load_task("gsm8k", data)
    with pytest.raises(InvalidTaskError, match="did you mean 'animals'"):
        load_task("bbh:animal", data)
    assert len(BUILTIN_TASKS) == 3


def test_a_family_alone_says_what_it_has(data: Path) -> None:
    for family in ("bbh", "bbh_choices"):
        with pytest.raises(
            InvalidTaskError, match=f"is several tasks: give {family}:SUBTASK, such as {family}:animals$"
        ):
            load_task(family, data)


needs_public_data = pytest.mark.skipif(
    not (PUBLIC_DATA / "gsm8k" / "test.jsonl").is_file() or not (PUBLIC_DATA / "bbh").is_dir(),
    reason=f"no public data in {PUBLIC_DATA}",
)


@needs_public_data
def test_every_public_file_becomes_questions() -> None:
    gsm = build_questions(load_task("gsm8k", PUBLIC_DATA), 50)
    assert all(question.parts[0][1].count("Question:") == 6 for question in gsm)
    subtasks = sorted(path.stem for path in (PUBLIC_DATA / "bbh").glob("*.json"))
    assert len(subtasks) == 10
    for subtask in subtasks:
        reasoning = build_questions(load_task(f"bbh:{subtask}", PUBLIC_DATA))
        cot = (PUBLIC_DATA / "bbh" / f"{subtask}.cot.txt").read_text(encoding="utf-8").partition("-----\n")[2]
        assert reasoning[0].parts[0][1].startswith(cot.rstrip())
        choices = build_questions(load_task(f"bbh_choices:{subtask}", PUBLIC_DATA))
        assert len(reasoning) - len(choices) == (2 if subtask == "ruin_names" else 0)


@pytest.mark.slow
@pytest.mark.model
@needs_public_data
@pytest.mark.parametrize(
    ("name", "limit", "options"),
    [
        ("gsm8k", 8, {"max_tokens": 120}),
        ("bbh:boolean_expressions", 8, {"max_tokens": 160}),
        ("bbh:navigate", 4, {"max_tokens": 160}),
        ("bbh:sports_understanding", 8, {"max_tokens": 60}),
        ("bbh_choices:boolean_expressions", 60, {}),
        ("bbh_choices:navigate", 60, {}),
        ("bbh_choices:date_understanding", 60, {}),
    ],
)
def test_public_tasks_run(name: str, limit: int, options: dict[str, int], smollm2: LLM) -> None:
    smollm2.reset_prefix_cache()
    result = evaluate(load_task(name, PUBLIC_DATA, **options), smollm2, limit=limit)
    assert not result.failed
    assert len(result.items) == limit
    assert result.tokens.hit_rate > 0.6
    assert all(0.0 <= metric.low <= metric.value <= metric.high <= 1.0 for metric in result.metrics.values())
