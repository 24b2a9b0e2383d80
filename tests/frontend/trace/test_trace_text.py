"""The text form of a trace, whole."""

from __future__ import annotations

from dataclasses import replace

from ramet import MockBackend, ProgramState, ProgramTrace, function, gen, select


@function
def triage(s: ProgramState, ticket: str) -> None:
    s += "Sort\n" + ticket + ": "
    s += select("queue", choices=["a", "bb"])
    for fork in s.fork(2):
        fork += gen("reply", max_tokens=3)
    s += gen("last", dtype=int)


def timeless(trace: ProgramTrace) -> ProgramTrace:
    calls = tuple(
        call if call.meta is None else replace(call, meta=replace(call.meta, duration_s=0.5)) for call in trace.calls
    )
    return replace(trace, duration_s=1.25, calls=calls)


def test_a_line_for_every_call() -> None:
    trace = triage.run(ticket="Hi", backend=MockBackend(["one", "two", ValueError("no\nluck")])).trace()
    text = str(timeless(trace))
    lines = [line.split("  [test_trace_text")[0] for line in text.splitlines()]
    assert lines[:-2] == [
        "triage(ticket='Hi')  failed after 1.25 s",
        "  4 calls: 28 prompt tokens, 17 from the cache (61 %); 6 generated",
        "  #0 text 'Sort⏎Hi: '",
        "  #1 select 'queue' 'a'",
        "      8 prompt = 0 cached + 8 computed, 0 generated, select, 500 ms",
        "      'a' 99.3 %, 'bb' 0.7 %",
        "  #2 fork of 2 branches",
        "    branch 0",
        "      #3 gen 'reply' 'one'",
        "          10 prompt = 8 cached + 2 computed, 3 generated, stop, 500 ms",
        "    branch 1",
        "      #4 gen 'reply' 'two'",
        "          10 prompt = 9 cached + 1 computed, 3 generated, stop, 500 ms",
        "  #5 gen 'last'",
        "      failed, prompt of 10 tokens",
    ]
    assert lines[-1] == "        because of ValueError: no⏎luck"
    assert "\n--- prompt of #1 select 'queue'" in trace.text(has_prompts=True)
    assert "\nSort\nHi:" in trace.text(has_prompts=True)
