"""A conversation of several turns: each one computes only what was said since the last.

python examples/multi_turn_chat.py
"""

from __future__ import annotations

from ramet import assistant, function, gen, system, user

QUESTIONS = [
    "What is the capital of France?",
    "Which river runs through it?",
    "Name one museum there.",
    "Thank you! How do I say that in French?",
]


@function
def chat(s, questions):
    s += system("You are a travel guide. Answer in one short sentence.")
    for turn, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer {turn}", max_tokens=24, temperature=0))


if __name__ == "__main__":
    state = chat.stream(questions=QUESTIONS)
    for turn, question in enumerate(QUESTIONS):
        print(f"\n> {question}")
        for piece in state.text_iter(f"answer {turn}"):
            print(piece, end="", flush=True)
        meta = state.meta(f"answer {turn}")
        print(f"\n[{meta.num_cached_tokens} tokens from the cache, {meta.num_computed_tokens} computed]")
