"""Errors of evaluation: a task that cannot be asked, a results file that cannot be gone on with."""

from __future__ import annotations


class InvalidTaskError(ValueError):
    """A task, its data or an option of a run does not work; the message names the value and what to do."""


class ResultsFileError(ValueError):
    """A file of results holds something else, or results of something else."""


class ScorerError(RuntimeError):
    """A scorer of the user's own failed on an item."""
