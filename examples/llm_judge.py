"""A judge in the style of branch-solve-merge: one branch for each criterion, merged into a verdict.

    python examples/llm_judge.py [FILE.txt]

The essay is read once, however many criteria there are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ramet import assistant, function, gen, select, system, user

ESSAY = """\
Cities should plant more trees. Trees cool the streets in summer and clean the air.
They also make people happy: in a survey, most people said that they like to walk under trees.
Planting is cheap, and a tree lives for many years. So every street should have trees."""

CRITERIA = ["clarity", "evidence", "style"]
GRADES = ["poor", "fair", "good", "excellent"]


@function
def judge(s, essay):
    s += system("You review essays. You are brief and fair.")
    s += user(f"This is the essay:\n\n{essay}")

    branches = s.fork(len(CRITERIA))
    for criterion, branch in zip(CRITERIA, branches, strict=True):
        branch += user(f"Judge only its {criterion}, in one sentence.")
        branch += assistant(gen("comment", max_tokens=32, stop="\n", temperature=0, repetition_penalty=1.1))
        branch += user(f"Grade its {criterion}: {', '.join(GRADES)}?") + assistant(select("grade", GRADES))
    reviews = branches.join()

    listing = "\n".join(
        f"- {criterion}: {grade}. {comment.strip()}"
        for criterion, grade, comment in zip(CRITERIA, reviews["grade"], reviews["comment"], strict=True)
    )
    s += user(f"Three reviewers wrote:\n{listing}\nWhat is the overall grade?")
    s += assistant("Overall the essay is " + select("overall", GRADES))
    return listing


if __name__ == "__main__":
    essay = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else ESSAY
    state = judge.run(essay=essay)
    print(state.return_value)
    print("overall:", state["overall"])
    for call in state.calls():
        if call.kind in ("gen", "select"):
            print(f"{call.name:>8}: {call.meta.num_cached_tokens} of {call.meta.num_prompt_tokens} tokens cached")
