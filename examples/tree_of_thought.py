"""Tree of thought: several first steps, each judged in a side branch; the best one is continued several times.

    python examples/tree_of_thought.py ["your problem"]

All branches share what is above them, at every level of the tree.
"""

from __future__ import annotations

import sys
from collections import Counter

from ramet import assistant, function, gen, select, system, user

NUM_PLANS, NUM_ANSWERS = 3, 3
VERDICTS = ["good", "bad"]


def score_of(judge):
    """How much likelier the judge found "good" than "bad", as a difference of log-probabilities."""
    good, bad = (choice.score for choice in judge.meta("verdict").choices)
    return good - bad


@function
def solve(s, problem):
    s += system("You solve small problems step by step.")
    s += user(f"{problem}\nWrite one sentence that says how to begin.")

    plans = s.fork(NUM_PLANS)
    judges = []
    for idx, plan in enumerate(plans):
        plan += assistant(gen("plan", max_tokens=32, stop="\n", temperature=0.9, seed=idx))
        judge = plan.fork(1)[0]
        judge += user("Is this a good or a bad way to begin?") + assistant("It is " + select("verdict", VERDICTS))
        judges.append(judge)
    for plan, judge in zip(plans, judges, strict=True):
        print(f"plan ({judge['verdict']}, {score_of(judge):+.2f}): {plan['plan'].strip()}")

    best = max(range(NUM_PLANS), key=lambda idx: score_of(judges[idx]))
    answers = plans[best].fork(NUM_ANSWERS)
    for idx, answer in enumerate(answers):
        answer += user("Now give only the final result.")
        answer += assistant("The result is" + gen("answer", max_tokens=12, stop=["\n", "."], temperature=0.5, seed=idx))
    return answers.join()["answer"]


if __name__ == "__main__":
    state = solve.run(problem=" ".join(sys.argv[1:]) or "A train covers 60 km in 30 minutes. How fast is it in km/h?")
    print("answers:", state.return_value)
    print("chosen: ", Counter(answer.strip() for answer in state.return_value).most_common(1)[0][0])
    metas = [call.meta for call in state.calls() if call.kind in ("gen", "select")]
    print(f"{sum(m.num_cached_tokens for m in metas)} of {sum(m.num_prompt_tokens for m in metas)} tokens cached")
