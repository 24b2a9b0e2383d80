"""The JSON-Schema-Test-Suite of draft 2020-12: nothing invalid is accepted, and what passes never becomes less.

`official_suite.json` beside this file says what became of each group: `pass`, `refused: <keyword>`, or how many of its
valid instances are not generated. Run `RAMET_WRITE_RATCHET=1 pytest <this file>` to write it anew after an improvement.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.grammar.errors import UnsupportedSchemaError

SUITE = Path(__file__).resolve().parents[5] / "shared" / "data" / "json-schema-test-suite" / "draft2020-12"
RATCHET = Path(__file__).with_name("official_suite.json")
MIN_PASSED = 140


def outcome(group: dict[str, Any], compile_schema: Callable[..., Any], accepted_invalid: list[str]) -> str:
    """What became of one group; invalid instances that are accepted are appended."""
    try:
        compiled = compile_schema(group["schema"])
    except UnsupportedSchemaError as error:
        return f"refused: {error.keyword}"
    num_missed = 0
    for test in group["tests"]:
        is_accepted = compiled.accepts(json.dumps(test["data"], ensure_ascii=False))
        if is_accepted and not test["valid"]:
            accepted_invalid.append(f"{group['description']}: {test['description']}")
        num_missed += test["valid"] and not is_accepted
    return "pass" if not num_missed else f"valid ones not generated: {num_missed}"


@pytest.mark.skipif(not SUITE.is_dir(), reason="the JSON-Schema-Test-Suite is not here")
def test_nothing_invalid_is_accepted_and_no_group_falls_back(compile_schema: Callable[..., Any]) -> None:
    found: dict[str, str] = {}
    accepted_invalid: list[str] = []
    for path in sorted(SUITE.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            found[f"{path.stem}: {group['description']}"] = outcome(group, compile_schema, accepted_invalid)
    print(Counter(result.split(":")[0] for result in found.values()))
    print(Counter(result for result in found.values() if result.startswith("refused")))
    assert accepted_invalid == []
    if os.environ.get("RAMET_WRITE_RATCHET") == "1":
        RATCHET.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    known = json.loads(RATCHET.read_text(encoding="utf-8"))
    passed = [name for name, result in found.items() if result == "pass"]
    assert [name for name, result in known.items() if result == "pass" and name not in passed] == []
    assert len(passed) >= MIN_PASSED
    refused = [name for name, result in found.items() if result.startswith("refused")]
    assert [name for name in refused if not known[name].startswith("refused")] == []
