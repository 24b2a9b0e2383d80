"""The bar that shows how far loading a model is."""

from __future__ import annotations

import sys

from tqdm import tqdm


class ProgressBar:
    """A tqdm bar that learns its total with the first update."""

    def __init__(self, description: str, is_shown: bool | None) -> None:
        self._bar = tqdm(
            desc=description,
            unit="tensor",
            leave=False,
            disable=not (has_terminal() if is_shown is None else is_shown),
        )

    def update(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def has_terminal() -> bool:
    """A daemon may have no standard error stream at all."""
    return sys.stderr is not None and sys.stderr.isatty()
