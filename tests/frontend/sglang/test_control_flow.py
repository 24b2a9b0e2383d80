"""Scripts that branch, call each other and use tools: the shapes of SGLang's examples."""

from __future__ import annotations

import json
import operator
from typing import Any

import ramet as sgl
from ramet.frontend.backend import GenerateCall


def test_tool_use_by_select_and_plain_python() -> None:
    @sgl.function
    def tool_use(s: Any, question: str) -> None:
        s += "To answer this question: " + question + ". "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
        if s["tool"] == "calculator":
            s += "The math expression is " + sgl.gen("expression", stop=";")
            left, sign, right = s["expression"].split()
            s += " = " + str({"*": operator.mul, "+": operator.add}[sign](int(left), int(right)))
        elif s["tool"] == "search engine":
            s += "The key word to search is " + sgl.gen("word")

    backend = sgl.MockBackend(["6 * 7; and so on"])
    state = tool_use.run("What is 6 times 7?", backend=backend)
    assert state.text() == (
        "To answer this question: What is 6 times 7?. I need to use a calculator. The math expression is 6 * 7 = 42"
    )
    searching = sgl.MockBackend("capitals", scores=lambda prompt, choice: -1.0 if "search" in choice else -2.0)
    assert tool_use.run("Capital?", backend=searching)["word"] == "capitals"


def test_parallel_tips() -> None:
    def answer(call: GenerateCall, prompt: str) -> str:
        if call.name == "paragraph":
            return "Text " + prompt[prompt.rindex("tip ") + 4]
        return "the end"

    @sgl.function
    def tip_suggestion(s: Any, topic: str) -> None:
        s += "Here are two concise tips for " + topic + ".\n1. Balanced diet.\n2. Regular exercise.\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Now, expand tip {i + 1} into a paragraph:\n" + sgl.gen("paragraph", max_tokens=256, stop="\n\n")
        for i, f in enumerate(forks):
            s += f"Tip {i + 1}: " + f["paragraph"] + "\n"
        s += "In summary, " + sgl.gen("summary")

    state = tip_suggestion.run(topic="staying healthy", backend=sgl.MockBackend(answer))
    assert state.text().endswith("Tip 1: Text 1\nTip 2: Text 2\nIn summary, the end")


def test_a_judge_merges_what_several_dimensions_say() -> None:
    dimensions = ["Clarity", "Originality", "Evidence"]
    summary_prompts: list[str] = []

    def answer(call: GenerateCall, prompt: str) -> str:
        if call.name == "judgment":
            return "8 for " + prompt.rpartition("dimension: ")[2].partition(".")[0]
        summary_prompts.append(prompt)
        return "Good."

    @sgl.function
    def multi_dimensional_judge(s: Any, article: str) -> None:
        s += sgl.system("Evaluate the article.")
        s += sgl.user_begin() + "Article: " + article + "\n"
        forks = s.fork(len(dimensions))
        forks += lambda i: f"Judge the dimension: {dimensions[i]}."
        forks += sgl.user_end()
        forks += sgl.assistant(sgl.gen("judgment", max_tokens=256))
        forks.join()
        s += "Judgments: " + "; ".join(s["judgment"]) + sgl.user_end()
        s += sgl.assistant(sgl.gen("summary"))

    state = multi_dimensional_judge.run("Ice.", backend=sgl.MockBackend(answer))
    assert state["judgment"] == ["8 for Clarity", "8 for Originality", "8 for Evidence"]
    assert "Judgments: 8 for Clarity; 8 for Originality; 8 for Evidence<|end|>" in summary_prompts[0]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant"]


def test_a_tree_of_thoughts_forks_under_forks() -> None:
    """Two plans, each carried out twice: fork under fork, joined level by level."""
    numbers = iter(range(100))

    @sgl.function
    def execute(s: Any) -> None:
        s += sgl.user("Carry out this plan.")
        s += sgl.assistant(sgl.gen("result"))

    @sgl.function
    def tree_search(s: Any, question: str, width: int) -> None:
        s += sgl.user(question)
        plans = s.fork(width)
        for plan in plans:
            plan += sgl.assistant(sgl.gen("plan", temperature=0.5))
            results = plan.fork(width)
            for result in results:
                execute(result)
            results.join()
        plans.join()

    backend = sgl.MockBackend(lambda call, prompt: f"{call.name}{next(numbers)}")
    state = tree_search.run("How?", 2, backend=backend)
    assert state["plan"] == ["plan0", "plan3"]
    assert state["result"] == [["result1", "result2"], ["result4", "result5"]]
    for request in backend.requests[1:3]:
        assert "plan0<|end|>\n<|start|>user\nCarry out this plan." in request.prompt


def test_functions_call_functions_on_their_state() -> None:
    @sgl.function
    def expand(s: Any, tip: str, *, limit: int = 8) -> str:
        s += f"Expand {tip}: " + sgl.gen("detail", max_tokens=limit) + "\n"
        return f"{tip}!"

    @sgl.function
    def outer(s: Any) -> str:
        s += "Tips.\n"
        first = expand(s, "one")
        second: str = expand(s, tip="two", limit=3)
        return first + second

    state = outer.run(backend=sgl.MockBackend(["more words", "again"]))
    assert state.ret_value == "one!two!"
    assert state.text() == "Tips.\nExpand one: more wor\nExpand two: aga\n"
    assert state["detail"] == "aga"


def test_a_function_run_by_itself_inside_another() -> None:
    @sgl.function
    def inner(s: Any, word: str) -> None:
        s += f"{word}:" + sgl.gen("x")

    @sgl.function
    def outer(s: Any) -> None:
        s += "got " + inner.run(word="w")["x"]

    backend = sgl.MockBackend("ok")
    sgl.set_default_backend(backend)
    try:
        assert outer.run().text() == "got ok"
    finally:
        sgl.set_default_backend(None)


def test_a_react_loop_forks_for_each_thought() -> None:
    script = ["find it. Action 1: Search[it]", "know. Action 2: Finish[42]"]

    @sgl.function
    def react(s: Any, question: str) -> None:
        s += "Question: " + question + "\n"
        for step in (1, 2):
            s += f"Thought {step}: " + sgl.gen(f"thought_{step}", stop=[f"Observation {step}:"])
            action = s[f"thought_{step}"].rsplit(": ", 1)[1]
            if action.startswith("Finish"):
                s.set_var("answer", action[len("Finish[") : -1])
                return
            s += f"\nObservation {step}: found\n"

    state = react.run("?", backend=sgl.MockBackend(script))
    assert state["answer"] == "42"
    assert state.text().count("Observation") == 1


def test_json_by_schema_and_by_fields() -> None:
    schema = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})

    @sgl.function
    def by_schema(s: Any) -> None:
        s += "Character: " + sgl.gen("json", max_tokens=64, json_schema=schema)

    @sgl.function
    def by_fields(s: Any, name: str) -> None:
        s += f'{{"name": "{name}", "house": "' + sgl.select("house", choices=["Gryffindor", "Ravenclaw"])
        s += '", "age": ' + sgl.gen_int("age", max_tokens=4) + ', "alive": ' + sgl.gen("alive", dtype=bool) + "}"

    state = by_schema.run(backend=sgl.MockBackend('{"name": "Harry"}'))
    assert json.loads(state["json"]) == {"name": "Harry"}
    state = by_fields.run(name="Harry", backend=sgl.MockBackend(["15", "True"]))
    assert (state["age"], state["alive"], state["house"]) == (15, True, "Ravenclaw")
    assert json.loads(state.text().replace("True", "true")) == {
        "name": "Harry",
        "house": "Ravenclaw",
        "age": 15,
        "alive": True,
    }
