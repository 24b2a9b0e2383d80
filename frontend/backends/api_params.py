"""ApiParams: which sampling parameters an API has. Everything else is refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ...sampling_params import SamplingParams
from .errors import UnsupportedByBackendError

_DEFAULTS = SamplingParams()
_NEUTRAL: Mapping[str, tuple[object, ...]] = {"top_k": (0, -1), "logit_bias": (None, {})}
_ADVICE: Mapping[str, str] = {
    "regex": "use json_schema, or check the text afterwards",
    "ebnf": "use json_schema, or check the text afterwards",
    "json_whitespace": "the API decides on it",
    "stop_token_ids": "use stop strings",
    "n": "use s.fork(n), with one gen in each branch",
    "prompt_logprobs": "give no return_logprob with a logprob_start_len",
}


@dataclass(frozen=True, slots=True)
class ApiParams:
    """What one API takes.

    Attributes:
        backend: its name, in messages.
        supported: the fields of SamplingParams that it has a counterpart of, or that are carried out here.
        limits: for some of these, the largest value (for `stop`, the largest number of strings).
        advice: what to do instead of something it lacks, where that is not obvious.
    """

    backend: str
    supported: frozenset[str]
    limits: Mapping[str, float] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)

    def check(self, params: SamplingParams) -> None:
        """
        Raises:
            UnsupportedByBackendError: something is asked for that the API cannot do.
        """
        for item in fields(SamplingParams):
            value = getattr(params, item.name)
            if item.name not in self.supported and value not in _neutral_values(item.name):
                advice = self.advice.get(item.name) or _ADVICE.get(item.name) or "leave it out"
                raise UnsupportedByBackendError(
                    f"the {self.backend} backend cannot do {item.name}={value!r}: {advice}, or run this on a local "
                    f"model (Runtime); it has {', '.join(sorted(self.supported))}"
                )
        for name, limit in self.limits.items():
            value = getattr(params, name)
            size = len(value) if isinstance(value, tuple) else value
            if size is not None and size > limit:
                what = f"{size} strings" if isinstance(value, tuple) else repr(value)
                raise UnsupportedByBackendError(
                    f"the {self.backend} backend cannot do {name} with {what}: at most {limit:g} are allowed there"
                )
        if params.on_incomplete == "close":
            raise UnsupportedByBackendError(
                f"the {self.backend} backend cannot do on_incomplete='close': nothing here steers the model to an end; "
                "use 'raise' or 'return', and a max_tokens that is large enough"
            )


def _neutral_values(name: str) -> tuple[object, ...]:
    """What asks for nothing."""
    return _NEUTRAL.get(name, (getattr(_DEFAULTS, name),))
