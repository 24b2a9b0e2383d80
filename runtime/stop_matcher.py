"""Finds stop strings in a text that arrives piece by piece.

An Aho-Corasick automaton (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975): one state per prefix of a
stop string, and for each state the longest other prefix that is a suffix of it. Its current depth is exactly how much
of the text's tail may still become a stop string, and the work is linear in the text whatever the number of stop
strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Follows one text, character by character.

    Args:
        stop_strings: none of them empty. Of several that end at the same character the longest counts.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        assert all(stop_strings)
        self._edges: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._ends: list[str | None] = [None]
        for stop in stop_strings:
            self._add(stop)
        self._fallbacks = [0] * len(self._edges)
        self._link()
        self._state = 0

    @property
    def num_held_chars(self) -> int:
        """Length of the longest tail of the text so far that is a prefix of a stop string."""
        return self._depths[self._state]

    def feed(self, char: str) -> str | None:
        """Take in one more character. Returns the stop string that ends with it, if any."""
        edges, state = self._edges, self._state
        while state and char not in edges[state]:
            state = self._fallbacks[state]
        self._state = edges[state].get(char, 0)
        return self._ends[self._state]

    def reset(self) -> None:
        """Another text begins."""
        self._state = 0

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._edges[state]:
                self._edges[state][char] = len(self._edges)
                self._edges.append({})
                self._depths.append(self._depths[state] + 1)
                self._ends.append(None)
            state = self._edges[state][char]
        self._ends[state] = stop

    def _link(self) -> None:
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._edges[state].items():
                queue.append(child)
                fallback = self._fallbacks[state]
                while fallback and char not in self._edges[fallback]:
                    fallback = self._fallbacks[fallback]
                self._fallbacks[child] = self._edges[fallback].get(char, 0)
                if self._ends[child] is None:
                    self._ends[child] = self._ends[self._fallbacks[child]]
