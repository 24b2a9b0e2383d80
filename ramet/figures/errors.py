"""Errors of the figures."""

from __future__ import annotations


class FigureError(Exception):
    """A figure, or its plot, was asked for that cannot be had; the message says what to do instead."""
