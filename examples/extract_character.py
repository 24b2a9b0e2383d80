"""Records out of free text: JSON that is valid against a schema, and a code that matches a pattern.

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
Code: AL-30
Pages: 1

"""


@function
def extract(s, text):
    s += f"{SHOT}Text: {text}\nRecord: "
    s += gen("record", json_schema=SCHEMA, parse=True, max_tokens=120, on_incomplete="close", temperature=0)
    s += "\nCode: " + gen("code", regex=r"[A-Z]{2}-[0-9]{1,3}", temperature=0)
    s += "\nPages: " + gen("pages", dtype=int, max_tokens=3, temperature=0)


if __name__ == "__main__":
    texts = sys.argv[1:] or TEXTS
    for text, state in zip(texts, extract.run_batch([{"text": text} for text in texts]), strict=True):
        print(text)
        for field, value in state["record"].items():
            print(f"{field:>10}: {value!r}")
        print(f"{'code':>10}: {state['code']}")
        print(f"{'pages':>10}: {state['pages']}")
        metas = [state.meta(name) for name in ("record", "code", "pages")]
        assert all(meta.complete for meta in metas)
        num_generated = sum(meta.num_generated_tokens for meta in metas)
        num_cached, num_prompt = metas[0].num_cached_tokens, metas[0].num_prompt_tokens
        print(f"[{num_generated} tokens generated; {num_cached} of {num_prompt} before the record were cached]")
