"""The program that `ramet demo` runs: it sorts a support ticket, drafts three answers and settles on one."""

from __future__ import annotations

from collections.abc import Callable

from .. import ProgramState, function, gen, select, system, user

CATEGORIES = ("payment", "delivery", "advice")

DESK = """\
You answer the mail of Larch & Loam, a shop for garden tools. Follow these examples.

Customer: Which spade is best for clay?
Category: advice
Answer: We recommend a spade with a pointed blade and a long handle.

Customer: My parcel has not come yet. Is it lost?
Category: delivery
Answer: I am sorry for the delay. Please follow the tracking number that we sent you by e-mail.

Customer: There are two payments on my bill for one rake.
Category: payment
Answer: I am sorry for this mistake. We will refund the second payment within five working days."""

TICKETS = (
    "I bought one spade, but my credit card was charged twice. Please help!",
    "My new watering can should have been here on Monday. Where is it?",
)

Show = Callable[[str, ProgramState, str], None]
"""Follows a variable of a state on the screen: label, state, name."""


@function
def triage(s: ProgramState, ticket: str, show: Show) -> None:
    s += system(DESK)
    s += user(f"Customer: {ticket}")
    with s.assistant():
        s += "Category: " + select("category", choices=CATEGORIES)
        show("category", s, "category")

        drafts = s.fork(3)
        drafts += lambda idx: "\nAnswer:" + gen("draft", max_tokens=40, stop="\n", temperature=0.5, seed=idx)
        for idx, draft in enumerate(drafts):
            show(f"draft {idx + 1}", draft, "draft")
        texts = drafts.join()["draft"]

    listing = "\n".join(f"Draft {idx + 1}:{text}" for idx, text in enumerate(texts))
    s += user(f"{listing}\nWhich draft helps the customer most?")
    with s.assistant():
        s += "The best is draft " + select("best", choices=["1", "2", "3"])
        show("best", s, "best")
    s += user("Write a short subject line for the e-mail to the customer.")
    with s.assistant():
        s += "Subject:" + gen("subject", max_tokens=12, stop="\n", temperature=0.0)
    show("subject", s, "subject")
