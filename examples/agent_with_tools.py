"""An agent in the style of ReAct: think, choose a tool, run it, read what it says, and so on until an answer.

    python examples/agent_with_tools.py ["your question"]

Every step continues the same text, so the model reads only what the last step added.
"""

from __future__ import annotations

import operator
import re
import sys

from ramet import function, gen, select

HEIGHTS = {"eiffel tower": "330 metres", "big ben": "96 metres", "mount everest": "8849 metres"}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}

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
Thought: I need to calculate 12 * 34.
Action: calculate(12 * 34)
Observation: 408
Thought: I know the result now.
Action: finish
Answer: 408

Question: How tall is Everest?
Thought: I need the height of Mount Everest.
Action: height(Mount Everest)
Observation: 8849 metres
Thought: I know the height now.
Action: finish
Answer: 8849 metres"""


def height(name: str) -> str:
    return HEIGHTS.get(name.strip().lower(), "unknown")


def calculate(text: str) -> str:
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([-+*])\s*(-?\d+(?:\.\d+)?)\s*", text)
    if match is None:
        return "write two numbers with + - or * between them"
    return f"{OPERATIONS[match[2]](float(match[1]), float(match[3])):g}"


TOOLS = {"height": height, "calculate": calculate}


@function
def agent(s, question, max_steps=3):
    s += f"{INSTRUCTIONS}\n\nQuestion: {question}\n"
    for _ in range(max_steps):
        s += "Thought: " + gen("thought", max_tokens=24, stop="\n", temperature=0) + "\nAction: "
        s += select("action", choices=[*TOOLS, "finish"])
        if s["action"] == "finish":
            break
        s += "(" + gen("argument", max_tokens=12, stop=[")", "\n"], temperature=0) + ")\n"
        s += f"Observation: {TOOLS[s['action']](s['argument'])}\n"
    s += "\nAnswer: " + gen("answer", max_tokens=16, stop="\n", temperature=0)


if __name__ == "__main__":
    state = agent.run(question=" ".join(sys.argv[1:]) or "How tall is the Eiffel Tower?")
    print(state.text().removeprefix(INSTRUCTIONS).strip())
    for call in state.calls():
        if call.kind in ("gen", "select"):
            print(f"{call.name:>9}: {call.meta.num_cached_tokens} of {call.meta.num_prompt_tokens} tokens cached")
