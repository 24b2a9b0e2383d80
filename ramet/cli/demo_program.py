"""The program that `ramet demo` runs: it sorts a support ticket, drafts three answers and settles on one."""

from __future__ import annotations

from collections.abc import Callable

from .. import ProgramState, function, gen, select, system, user

CATEGORIES = ("billing", "delivery", "returns", "product question")

DESK = """\
You work at the support desk of Larch & Loam, a shop for garden tools.
Orders ship within two days. Parcels come with a tracking number by e-mail.
Goods can be returned within 30 days; the shop pays the return label.
A payment that was taken twice is refunded within five working days.
You answer in two short, friendly sentences and never promise what is not written here."""

TICKETS = (
    "I ordered one spade last week, but my card was charged two times. Please help!",
    "My watering can should have been here on Monday. Where is it?",
)

Show = Callable[[str, ProgramState, str], None]
"""Follows a variable of a state on the screen: label, state, name."""


@function
def triage(s: ProgramState, ticket: str, show: Show) -> None:
    s += system(DESK)
    s += user(f"A customer writes: {ticket}\nWhat is it about?")
    with s.assistant():
        s += "This is about " + select("category", choices=CATEGORIES)
    show("category", s, "category")

    s += user("Draft an answer to the customer.")
    drafts = s.fork(3)
    for idx, draft in enumerate(drafts):
        with draft.assistant():
            draft += gen("draft", max_tokens=40, temperature=0.8, seed=idx)
    for idx, draft in enumerate(drafts):
        show(f"draft {idx + 1}", draft, "draft")
    texts = drafts.join()["draft"]
    listing = "\n".join(f"{idx + 1}. {text}" for idx, text in enumerate(texts))
    s += user(f"These are three drafts:\n{listing}\nWrite the final answer in two sentences.")
    with s.assistant():
        s += gen("answer", max_tokens=48, temperature=0.0)
    show("answer", s, "answer")
