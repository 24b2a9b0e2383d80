"""Figures and texts of a trace in words, as the text form and the page both show them."""

from __future__ import annotations

from collections.abc import Mapping

from .program_trace import CallTrace, ProgramTrace


def seconds(value: float | None) -> str:
    """A duration with as many digits as are worth reading."""
    if value is None:
        return "unknown"
    if value < 0.0095:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:,.1f} s"


def percent(share: float) -> str:
    """A share in [0, 1]; never rounded to all or nothing that it is not."""
    if 0.999 < share < 1.0:
        return f"{min(share * 100, 99.99):.2f} %"
    return f"{share * 100:.1f} %" if 0.0 < share < 0.1 or 0.9 < share < 1.0 else f"{share * 100:.0f} %"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(text: str) -> str:
    """With its line ends as signs."""
    return text.replace("\r", "").replace("\n", "⏎")


def shortened(text: str, max_len: int) -> str:
    """On one line, with its middle left out if it is too long."""
    text = one_line(text)
    if len(text) <= max_len:
        return text
    end_len = max_len // 3
    return f"{text[: max_len - end_len - 1]}…{text[len(text) - end_len :]}"


def cached_share(num_cached: int, num_prompt: int) -> float:
    return num_cached / num_prompt if num_prompt else 0.0


def summary(trace: ProgramTrace) -> str:
    """What the calls of a run came to, on one line."""
    if not trace.model_calls:
        return "no calls of the model"
    share = cached_share(trace.num_cached_tokens, trace.num_prompt_tokens)
    return (
        f"{counted(len(trace.model_calls), 'call')}: {trace.num_prompt_tokens:,} prompt tokens, "
        f"{trace.num_cached_tokens:,} from the cache ({percent(share)}); {trace.num_generated_tokens:,} generated"
    )


def arguments(trace: ProgramTrace, max_len: int = 60) -> str:
    """Of the run, as in a call."""
    return ", ".join(f"{name}={shortened(repr(value), max_len)}" for name, value in trace.arguments.items())


def params(values: Mapping[str, object], max_len: int = 60) -> str:
    return ", ".join(f"{name}={shortened(repr(value), max_len)}" for name, value in values.items())


def ending(call: CallTrace) -> str:
    """How the text of a call ended."""
    if call.meta is None:
        return call.status
    parts = [call.meta.finish_reason]
    if call.meta.stop_reason is not None:
        parts.append(repr(call.meta.stop_reason))
    if call.meta.complete is not None:
        parts.append("complete" if call.meta.complete else "incomplete")
    return " ".join(parts)
