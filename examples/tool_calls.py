"""A model that calls Python functions: the call is held to their types by a grammar, the results go back to the model.

python examples/tool_calls.py
"""

from __future__ import annotations

from typing import Literal

from ramet import Conversation

TEMPERATURES = {"Paris": 18, "Cairo": 34, "Oslo": 7}


def get_temperature(city: Literal["Paris", "Cairo", "Oslo"]) -> str:
    """Current temperature of a city."""
    return f"It is {TEMPERATURES[city]} degrees Celsius in {city}."


def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return f"{a} times {b} is {a * b}."


QUESTIONS = [
    ("How warm is it in Cairo?", "get_temperature"),
    ("And what about Oslo?", "get_temperature"),
    ("What is 127 times 45?", "multiply"),
]

if __name__ == "__main__":
    chat = Conversation(tools=[get_temperature, multiply], temperature=0, max_tokens=32)
    for question, tool in QUESTIONS:
        print(f"\n> {question}")
        reply = chat.ask(question, tool_choice=tool)  # "required" or "auto" let the model choose: a larger one can
        for call in reply.tool_calls:
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            print(f"  {call.name}({arguments})")
        reply = chat.run_tools(tool_choice="none")
        print(reply)
        print(f"[{reply.meta.num_cached_tokens} tokens from the cache, {reply.meta.num_computed_tokens} computed]")
