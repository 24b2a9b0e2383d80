"""What a gen reports of log-probabilities, in SGLang's four arguments and in ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plain_numbers import plain_number
from ..sampling_params import InvalidSamplingParamsError

LOGPROB_ARGUMENTS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")

PROMPT_START = "prompt_logprobs_start"
"""An option of a gen beside the fields of SamplingParams: the first token of the prompt whose logprob is wanted."""


def take_logprob_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take SGLang's arguments out of `options` and return what they mean; those at None are as if they were not given.

    `return_logprob` reports the log-probability of every generated token, and of the `top_logprobs_num` likeliest.
    `logprob_start_len` from 0 on adds those of the prompt's tokens from there; -1 leaves them out. The texts of tokens
    are always reported, so `return_text_in_logprobs` changes nothing.

    Raises:
        InvalidSamplingParamsError: a value is out of range, or they contradict each other or `logprobs`.
    """
    given = {name: options.pop(name) for name in LOGPROB_ARGUMENTS if name in options}
    given = {name: plain_number(value) for name, value in given.items() if value is not None}
    for name in ("return_logprob", "return_text_in_logprobs"):
        if not isinstance(given.get(name, True), bool):
            raise InvalidSamplingParamsError(f"{name}={given[name]!r} is not allowed: it must be True or False")
    num_top = _integer(given, "top_logprobs_num", 0, at_least=0)
    start = _integer(given, "logprob_start_len", -1, at_least=-1)
    if not given or given.keys() == {"return_text_in_logprobs"}:
        return {}
    if options.get("logprobs") is not None:
        raise InvalidSamplingParamsError(
            f"logprobs={options['logprobs']!r} is not allowed: {next(iter(given))} is given too, and both say what to "
            "report; leave out one of them"
        )
    if given.get("return_logprob") is False:
        if num_top > 0 or start >= 0:
            raise InvalidSamplingParamsError(
                "return_logprob=False is not allowed: top_logprobs_num or logprob_start_len asks for logprobs"
            )
        return {"logprobs": None, "prompt_logprobs": None}
    prompt = {} if start < 0 else {"prompt_logprobs": num_top, PROMPT_START: start}
    return {"logprobs": num_top, **prompt}


def sampling_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a gen that are fields of SamplingParams."""
    return {name: value for name, value in options.items() if name != PROMPT_START}


def _integer(given: Mapping[str, Any], name: str, default: int, *, at_least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidSamplingParamsError(
            f"{name}={value!r} is not allowed: it must be an integer of at least {at_least}"
        )
    return value
