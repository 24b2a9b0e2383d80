"""Many agents at once in one thread: each asks, waits without blocking the others, and asks again.

    python examples/async_agents.py

The opening instructions are computed once; every agent goes on from them.
"""

from __future__ import annotations

import asyncio

from ramet import CallEnded, function, gen, select

WORDS = ["apple", "hammer", "violin", "salmon", "rose", "truck"]


@function
async def guess(s, word):
    s += "Say what each word is, then use it.\n\nWord: dog\nKind: animal\nThe dog is asleep by the fire.\n\n"
    s += f"Word: {word}\nKind: " + select("kind", ["animal", "plant", "food", "tool", "instrument", "vehicle"])
    kind = await s["kind"]
    s += f"\nThe {word} is" + gen("use", stop=[".", "\n"], max_tokens=12, temperature=0)
    return f"{word} ({kind}): the {word} is{await s['use']}"


async def main():
    states = await asyncio.gather(*(guess.arun(word) for word in WORDS))
    for state in states:
        print(state.return_value)
    async for event in guess.astream("piano"):
        if isinstance(event, CallEnded):
            print(f"{event.name}: {event.meta.num_cached_tokens} of {event.meta.num_prompt_tokens} tokens cached")


if __name__ == "__main__":
    asyncio.run(main())
