"""A conversation of several turns: each one computes only what was said since the last.

python examples/multi_turn_chat.py
"""

from __future__ import annotations

from ramet import Conversation

QUESTIONS = [
    "What is the capital of France?",
    "Which river runs through it?",
    "Name one museum there.",
    "Thank you! How do I say that in French?",
]

if __name__ == "__main__":
    chat = Conversation("You are a travel guide. Answer in one short sentence.", temperature=0, max_tokens=24)
    for question in QUESTIONS:
        print(f"\n> {question}")
        for piece in chat.stream(question):
            print(piece, end="", flush=True)
        meta = chat.last_reply.meta
        print(f"\n[{meta.num_cached_tokens} tokens from the cache, {meta.num_computed_tokens} computed]")
