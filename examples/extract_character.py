"""Records out of free text: JSON that is valid against a schema, a line that matches a pattern, a number.

    python examples/extract_character.py ["your text"]

No answer has to be repaired or asked for again: tokens that would leave the schema are never chosen.
"""

from __future__ import annotations

import sys

from ramet import function, gen

TEXTS = [
    "Mira Okafor is a clockmaker of 41 years who lives in Lagos. She owns two parrots and a very old bicycle.",
    "In the north of Norway, Jonas, 12, goes to school by boat. He wants to be a pilot and cannot stand fish.",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "place": {"type": "string", "minLength": 1, "maxLength": 30},
        "is_adult": {"type": "boolean"},
        "role": {"enum": ["craft", "school", "office", "none"]},
        "owns": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 2},
    },
    "required": ["name", "age", "place", "is_adult", "role", "owns"],
    "additionalProperties": False,
}
SHOT = """\
Text: Ann Lee, 30, bakes bread in Dublin. She has a cat.
Record: {"name": "Ann Lee", "age": 30, "place": "Dublin", "is_adult": true, "role": "craft", "owns": ["cat"]}
In short: Ann Lee, 30, of Dublin
Age: 30

"""


@function
def extract(s, text):
    s += f"{SHOT}Text: {text}\nRecord: "
    s += gen("record", json_schema=SCHEMA, parse=True, max_tokens=120, on_incomplete="close", temperature=0)
    s += "\nIn short: " + gen("short", regex=r"[A-Z][A-Za-z ]{1,30}, [0-9]{1,3}, of [A-Z][a-z]{2,20}", temperature=0)
    s += "\nAge: " + gen("age", dtype=int, max_tokens=3, temperature=0)


if __name__ == "__main__":
    texts = sys.argv[1:] or TEXTS
    for text, state in zip(texts, extract.run_batch([{"text": text} for text in texts]), strict=True):
        print(text)
        for field, value in state["record"].items():
            print(f"{field:>10}: {value!r}")
        print(f"{'in short':>10}: {state['short']}")
        print(f"{'next year':>10}: {state['age'] + 1}")
        metas = [state.meta(name) for name in ("record", "short", "age")]
        assert all(meta.complete for meta in metas)
        num_generated = sum(meta.num_generated_tokens for meta in metas)
        num_cached, num_prompt = metas[0].num_cached_tokens, metas[0].num_prompt_tokens
        print(f"[{num_generated} tokens generated; {num_cached} of {num_prompt} before the record were cached]")
