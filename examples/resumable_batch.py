"""A batch with a journal: kill it at any time, run it again, and only what is missing runs.

    python examples/resumable_batch.py [JOURNAL.jsonl]

Run it twice with the same journal: the second run asks the model nothing.
"""

from __future__ import annotations

import sys
import tempfile

from ramet import function, select

SHOTS = """\
Review: The staff was friendly and quick.
About: service

Review: It costs too much for what it is.
About: price

Review: The fish was fresh and well cooked.
About: food

"""
REVIEWS = [
    "We waited an hour, and the waiter was rude.",
    "Best pizza in town!",
    "",
    "Ten dollars for a coffee?",
]


@function
def sort(s, review):
    if not review:
        raise ValueError("there is no review")
    s += SHOTS + f"Review: {review}\nAbout: " + select("topic", ["food", "service", "price"])


def run(journal):
    results = sort.run_batch([{"review": review} for review in REVIEWS], journal=journal, progress_bar=True)
    for review, state in zip(REVIEWS, results, strict=True):
        print(f"{state.error() or state['topic']}  {review}")
    print(f"{results.summary.num_resumed} of {len(results)} from the journal")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                run(f"{folder}/topics.jsonl")
