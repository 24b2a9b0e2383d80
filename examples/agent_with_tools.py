"""An agent in the style of ReAct: think, choose a tool, run it, read what it says, and so on until an answer.

    python examples/agent_with_tools.py ["your question"]

Every step continues the same text, so the model reads only what the last step added.
"""

from __future__ import annotations

import re
import sys

from ramet import assistant_begin, assistant_end, function, gen, select, system, user

HEIGHTS = {"eiffel tower": 330, "big ben": 96, "mount everest": 8849}

INSTRUCTIONS = """\
Answer the question with the help of tools, as in these examples.

Question: How tall is Big Ben?
Thought: I need the height of Big Ben.
Action: height(Big Ben)
Observation: 96 metres
Thought: I know the height now.
Action: finish
Answer: 96 metres

Question: What is 12 times 34?
Thought: I need to multiply.
Action: calculate(12 * 34)
Observation: 408
Thought: I have the result.
Action: finish
Answer: 408"""


def height(name: str) -> str:
    metres = HEIGHTS.get(name.strip().lower())
    return f"{metres} metres" if metres else f"nothing is known about {name!r}"


def calculate(text: str) -> str:
    match = re.fullmatch(r"\s*(-?[\d.]+)\s*([-+*/])\s*(-?[\d.]+)\s*", text)
    if match is None:
        return "write two numbers with + - * or / between them"
    left, operator, right = float(match[1]), match[2], float(match[3])
    if operator == "/" and right == 0:
        return "division by zero"
    results = {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}
    return f"{results[operator]:g}"


TOOLS = {"height": height, "calculate": calculate}


@function
def agent(s, question, max_steps=3):
    s += system(INSTRUCTIONS) + user(f"Question: {question}") + assistant_begin()
    for _ in range(max_steps):
        s += "Thought: " + gen("thought", max_tokens=24, stop="\n", temperature=0) + "\nAction: "
        s += select("action", choices=[*TOOLS, "finish"])
        if s["action"] == "finish":
            break
        s += "(" + gen("argument", max_tokens=12, stop=[")", "\n"], temperature=0) + ")\n"
        s += f"Observation: {TOOLS[s['action']](s['argument'])}\n"
    s += "\nAnswer: " + gen("answer", max_tokens=16, stop="\n", temperature=0) + assistant_end()


if __name__ == "__main__":
    state = agent.run(question=" ".join(sys.argv[1:]) or "How tall is the Eiffel Tower?")
    print(state.messages()[-1]["content"])
    for call in state.calls():
        if call.kind in ("gen", "select"):
            print(f"{call.name:>9}: {call.meta.num_cached_tokens} of {call.meta.num_prompt_tokens} tokens cached")
