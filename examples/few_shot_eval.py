"""Few-shot evaluation: many questions behind the same worked examples, which are computed once.

    python examples/few_shot_eval.py [FILE.jsonl] [--limit N] [--max-tokens N]

FILE holds one {"question": ..., "answer": "... #### 42"} a line, as GSM8K does. Without it, four sums are asked.
"""

from __future__ import annotations

import argparse
import json
import re

from ramet import function, gen

SHOTS = [
    ("Ann has 3 apples and buys 4 more. How many has she?", "She has 3 + 4 = 7 apples. #### 7"),
    ("A box holds 6 eggs. How many eggs are in 5 boxes?", "There are 5 * 6 = 30 eggs. #### 30"),
    ("Tom had 20 dollars and spent 8. How many are left?", "He has 20 - 8 = 12 dollars left. #### 12"),
    ("12 sweets are shared by 4 children. How many does each get?", "Each gets 12 / 4 = 3 sweets. #### 3"),
]
ITEMS = [
    {"question": "Sue has 5 pens and buys 2 more. How many has she?", "answer": "#### 7"},
    {"question": "A bag holds 3 balls. How many balls are in 4 bags?", "answer": "#### 12"},
    {"question": "Bob had 10 dollars and spent 3. How many are left?", "answer": "#### 7"},
    {"question": "8 cakes are shared by 2 children. How many does each get?", "answer": "#### 4"},
]
EXAMPLES = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in SHOTS)


@function
def solve(s, question):
    s += EXAMPLES
    s += f"Question: {question}\nAnswer:" + gen("answer", stop="\n\n", temperature=0)


def final_number(text):
    """The number after ####, else the last one in the text."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text.split("####")[-1])
    return float(numbers[-1].replace(",", "")) if numbers else None


def read_items(path, limit):
    if path is None:
        return ITEMS
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file][:limit]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=40)
    args = parser.parse_args()

    items = read_items(args.file, args.limit)
    states = solve.run_batch(
        [{"question": item["question"]} for item in items], max_tokens=args.max_tokens, progress_bar=True
    )
    num_right = 0
    for item, state in zip(items, states, strict=True):
        is_right = final_number(state["answer"]) == final_number(item["answer"])
        num_right += is_right
        print(f"{'right' if is_right else 'wrong'}: {item['question']} -> {state['answer'].strip()}")
    metas = [state.meta("answer") for state in states]
    num_prompt, num_cached = sum(m.num_prompt_tokens for m in metas), sum(m.num_cached_tokens for m in metas)
    print(f"accuracy {num_right / len(items):.0%} of {len(items)}")
    print(f"{num_cached:,} of {num_prompt:,} prompt tokens from the cache ({num_cached / num_prompt:.0%})")
