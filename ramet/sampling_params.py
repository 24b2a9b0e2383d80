"""SamplingParams: how one request wants its tokens chosen. The one module both the language and the engine import.

Field names and meanings are those of vLLM's class of the same name. A value is checked when the object is built,
so a bad one is reported where the user wrote it and never reaches the engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as _replace
from typing import Any, Literal

from .grammar_spec import (
    MAX_SOURCE_CHARS,
    GrammarSpec,
    InvalidGrammarSpecError,
    JsonModel,
    JsonWhitespace,
    OnIncomplete,
    choices_tuple,
    schema_text,
)
from .plain_numbers import plain_number
from .regex_outline import RegexSyntaxError, outline
from .suggestions import refuses_unknown_fields

MAX_SAMPLES = 128
MAX_STOP_STRINGS = 32
MAX_STOP_REGEXES = 32
MAX_STOP_REGEX_CHARS = 256
MAX_LOGPROBS = 1024
MAX_LENGTH_PENALTY = 5.0  # the length of any context to this power is a number in single precision

# What beam search does not do, with the values that ask for nothing.
_NOT_IN_BEAM_SEARCH: Mapping[str, tuple[object, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": (None, {}),
    "min_tokens": (0,),
    "stop": ((),),
    "stop_regex": ((),),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
}


_NUMBERS = (
    *("n", "best_of", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "length_penalty"),
)

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "choices")


class InvalidSamplingParamsError(ValueError):
    """A sampling parameter is out of its range. The message names the field, the value and the limit."""


def _fail(name: str, value: object, limit: str) -> None:
    raise InvalidSamplingParamsError(f"{name}={value!r} is not allowed: {limit}")


def _check_float(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    limit = f"it must be a number in {'(' if open_low else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _fail(name, value, limit)
    if value > high or value < low or (open_low and value == low):
        _fail(name, value, limit)
    return None


def _check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    limit = f"it must be an integer of at least {low}" + (f" and at most {high}" if high is not None else "")
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        _fail(name, value, limit)


def _as_tuple(name: str, value: object, kind: type) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable):
        _fail(name, value, f"it must be a list of {kind.__name__}")
        return ()
    items = tuple(map(plain_number, value))
    for item in items:
        if not isinstance(item, kind) or isinstance(item, bool):
            _fail(name, value, f"every item must be of type {kind.__name__}, {item!r} is not")
    return items


def _checked_stop_regexes(value: object) -> tuple[str, ...]:
    patterns = _as_tuple("stop_regex", value, str)
    if len(patterns) > MAX_STOP_REGEXES:
        _fail("stop_regex", f"{len(patterns)} patterns", f"at most {MAX_STOP_REGEXES} are allowed")
    for pattern in patterns:
        if len(pattern) > MAX_STOP_REGEX_CHARS:
            _fail("stop_regex", pattern, f"it must have at most {MAX_STOP_REGEX_CHARS} characters")
        try:
            is_nullable = outline(pattern).is_nullable
        except RegexSyntaxError as error:
            raise InvalidSamplingParamsError(f"stop_regex={pattern!r} is not allowed: {error}") from error
        if is_nullable:
            _fail("stop_regex", pattern, "it matches the empty text, so it would end every text before it begins")
    return patterns


@refuses_unknown_fields(InvalidSamplingParamsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request wants its tokens chosen.

    With use_beam_search the request is a search for likely token lists instead of samples. Its results are those of
    `generate(num_beams=beam_width, num_return_sequences=n, do_sample=False)` in transformers, with the same
    length_penalty and early_stopping. It needs temperature 0. Fields that it would not honour are refused: filters,
    penalties, logit_bias, min_tokens, stop, stop_regex, logprobs and prompt_logprobs. stop_token_ids and ignore_eos
    hold.

    Attributes:
        n: number of independent samples, each with its own random stream; the number of results of a beam search.
        best_of: start this many samples and return the n of the highest cumulative logprob, best first; the number of
            beams of a beam search. None stands for n.
        temperature: 0 is greedy; the logits are divided by it otherwise.
        top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: keep this many of the most likely tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or output.
        presence_penalty: subtracted once from the logit of every token already generated, in [-2, 2].
        frequency_penalty: subtracted per occurrence in what was generated, in [-2, 2].
        seed: makes the samples repeatable whatever else runs; None draws a fresh one per request.
        max_tokens: most tokens to generate; None means up to the model's context limit.
        min_tokens: end-of-sequence and stop tokens are not sampled before this many tokens.
        stop: strings that end the generation; they are not part of the text unless include_stop_str_in_output.
        stop_token_ids: token ids that end the generation.
        stop_regex: regular expressions (Python's syntax, without anchors and look-around) that end the generation as
            soon as some text that one of them matches is complete. That text is no part of the result, as with stop.
            While text may still become such a match, a stream holds it back.
        ignore_eos: go on past the model's own end-of-sequence tokens.
        logit_bias: token id to a value in [-100, 100] added to its logit.
        logprobs: how many of the most likely tokens to report per generated token (0: the sampled one only).
        prompt_logprobs: the same for the prompt's tokens; right for cached positions too.
        skip_special_tokens: leave special tokens out of the text (their ids stay in token_ids).
        include_stop_str_in_output: keep the stop string at the end of the text.
        use_beam_search: search for the token lists with the highest score. A score is the cumulative logprob divided by
            length ** length_penalty; the length counts the generated tokens, the stop token included.
        length_penalty: above 0 favours long results of a beam search, below 0 short ones; in [-5, 5].
        early_stopping: when a beam search with beam_width complete results ends: True at once; False when no beam would
            beat the worst of them if it were complete now; "never" when no beam can beat it any more.
        regex: the text must match this regular expression (Python's syntax) as by re.fullmatch.
        json_schema: the text must be JSON that is valid against this schema (2020-12): a dict, JSON text, or a pydantic
            model class. It is kept as JSON text.
        ebnf: the text must belong to this grammar, in GBNF ("root ::= ...") or Lark ("start: ...") notation.
        choices: the text must be one of these.
        json_whitespace: between the parts of JSON: "fixed" puts one space after "," and ":", "compact" none, "flexible"
            leaves it to the model, up to a bound.
        on_incomplete: what a constrained text that max_tokens cuts off becomes. "return" hands it back with complete
            False, "raise" fails the request, "close" steers it so that it ends within max_tokens. The last two refuse
            a max_tokens that no text of the grammar fits in.
        grammar_backend: "llguidance" (None) or "outlines" enforces the constraint.

    Raises:
        InvalidSamplingParamsError: a value is out of range, or values contradict each other.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Iterable[str] | None = ()
    stop_token_ids: Iterable[int] | None = ()
    stop_regex: str | Iterable[str] | None = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    regex: str | None = None
    json_schema: Mapping[str, Any] | bool | str | type[JsonModel] | None = None
    ebnf: str | None = None
    choices: Iterable[str] | None = None
    json_whitespace: JsonWhitespace = "fixed"
    on_incomplete: OnIncomplete = "return"
    grammar_backend: str | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            object.__setattr__(self, name, plain_number(getattr(self, name)))
        self._check_sampling()
        self._check_lengths()
        self._check_flags()
        self._check_stops()
        self._check_logit_bias()
        self._check_best_of()
        self._check_beam_search()
        self._check_constraint()

    def _check_sampling(self) -> None:
        _check_int("n", self.n, 1, MAX_SAMPLES)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_int("top_k", self.top_k, -1)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**63 - 1)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1)
        _check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _fail("min_tokens", self.min_tokens, f"it must not exceed max_tokens={self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_int(name, value, 0, MAX_LOGPROBS)

    def _check_flags(self) -> None:
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "use_beam_search"):
            if not isinstance(getattr(self, name), bool):
                _fail(name, getattr(self, name), "it must be True or False")

    def _check_stops(self) -> None:
        stop = _as_tuple("stop", self.stop, str)
        if len(stop) > MAX_STOP_STRINGS:
            _fail("stop", f"{len(stop)} strings", f"at most {MAX_STOP_STRINGS} stop strings are allowed")
        if "" in stop:
            _fail("stop", list(stop), "a stop string must not be empty")
        stop_token_ids = _as_tuple("stop_token_ids", self.stop_token_ids, int)
        for token_id in stop_token_ids:
            _check_int("stop_token_ids", token_id, 0)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        object.__setattr__(self, "stop_regex", _checked_stop_regexes(self.stop_regex))

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            _fail("logit_bias", self.logit_bias, "it must map token ids to numbers")
        biases = {plain_number(token_id): plain_number(bias) for token_id, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", biases)
        for token_id, bias in biases.items():
            _check_int("logit_bias", token_id, 0)
            _check_float(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    def _check_best_of(self) -> None:
        if self.best_of is None:
            return
        _check_int("best_of", self.best_of, 1, MAX_SAMPLES)
        if self.best_of < self.n:
            _fail("best_of", self.best_of, f"it must not be less than n={self.n}")
        if self.best_of > self.n and self.is_greedy and not self.use_beam_search:
            _fail("best_of", self.best_of, f"with temperature 0 all samples are equal, so it must be n={self.n}")

    def _check_beam_search(self) -> None:
        _check_float("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            _fail("early_stopping", self.early_stopping, "it must be True, False or 'never'")
        if not self.use_beam_search:
            for name, default in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) != default:
                    _fail(name, getattr(self, name), f"without use_beam_search=True it must be {default}")
            return
        if not self.is_greedy:
            _fail("temperature", self.temperature, "with use_beam_search=True it must be 0: nothing is drawn at random")
        for name, neutral in _NOT_IN_BEAM_SEARCH.items():
            if getattr(self, name) not in neutral:
                _fail(name, getattr(self, name), f"use_beam_search=True does not support it, leave it at {neutral[0]}")

    def _check_constraint(self) -> None:
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            _fail(given[1], getattr(self, given[1]), f"{given[0]} is given too, and a text has one constraint")
        try:
            if self.choices is not None:
                object.__setattr__(self, "choices", choices_tuple(self.choices))
            if self.json_schema is not None:
                object.__setattr__(self, "json_schema", schema_text(self.json_schema))
        except InvalidGrammarSpecError as error:
            raise InvalidSamplingParamsError(str(error)) from error
        for name in ("regex", "ebnf"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                hint = "; of a compiled one give the .pattern" if isinstance(value, re.Pattern) else ""
                _fail(name, value, f"it must be a non-empty string{hint}")
        if self.json_whitespace not in ("fixed", "compact", "flexible"):
            _fail("json_whitespace", self.json_whitespace, "it must be 'fixed', 'compact' or 'flexible'")
        if self.on_incomplete not in ("return", "raise", "close"):
            _fail("on_incomplete", self.on_incomplete, "it must be 'return', 'raise' or 'close'")
        if self.grammar_backend is not None and not isinstance(self.grammar_backend, str):
            _fail("grammar_backend", self.grammar_backend, "it must be the name of a backend, or None")
        self._check_constraint_options(has_constraint=bool(given))
        spec = self.grammar_spec
        if spec is not None and spec.num_source_chars > MAX_SOURCE_CHARS:
            _fail(given[0], f"{spec.num_source_chars} characters", f"it must have at most {MAX_SOURCE_CHARS}")

    def _check_constraint_options(self, *, has_constraint: bool) -> None:
        if not has_constraint:
            for name, default in (("on_incomplete", "return"), ("json_whitespace", "fixed"), ("grammar_backend", None)):
                if getattr(self, name) != default:
                    _fail(name, getattr(self, name), f"nothing is constrained, so it must be {default!r}")
        if self.json_whitespace != "fixed" and self.json_schema is None:
            _fail("json_whitespace", self.json_whitespace, "without json_schema it must be 'fixed'")
        if self.on_incomplete == "close" and (self.stop_strings or self.stop_regexes):
            what = "string" if self.stop_strings else "regex"
            _fail("on_incomplete", "close", f"a stop {what} could cut the text short of its end; leave out one of them")
        if has_constraint and self.use_beam_search:
            for name, neutral in (
                ("on_incomplete", ("return", "raise")),
                ("stop_token_ids", ((),)),
                ("ignore_eos", (False,)),
            ):
                if getattr(self, name) not in neutral:
                    _fail(name, getattr(self, name), "use_beam_search=True with a constraint does not support it")

    @property
    def grammar_spec(self) -> GrammarSpec | None:
        """The constraint on the text, None if it is free."""
        whitespace, backend = self.json_whitespace, self.grammar_backend
        if self.regex is not None:
            return GrammarSpec("regex", self.regex, backend=backend)
        if self.json_schema is not None:
            assert isinstance(self.json_schema, str)
            return GrammarSpec("json_schema", self.json_schema, whitespace, backend)
        if self.ebnf is not None:
            return GrammarSpec("ebnf", self.ebnf, backend=backend)
        if self.choices is not None:
            assert isinstance(self.choices, tuple)
            return GrammarSpec("choices", self.choices, backend=backend)
        return None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def cuts_distribution(self) -> bool:
        """Some tokens are left out because of how likely the others are."""
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)

    @property
    def num_sequences(self) -> int:
        """How many sequences a request starts. A beam search starts one, which forks."""
        return 1 if self.use_beam_search else self.best_of or self.n

    @property
    def is_best_of(self) -> bool:
        """More samples are started than returned, so they must be compared."""
        return self.num_sequences > self.n

    @property
    def beam_width(self) -> int:
        """How many beams a beam search keeps: best_of, or n."""
        return self.best_of or self.n

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` after normalisation."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_regexes(self) -> tuple[str, ...]:
        """`stop_regex` after normalisation."""
        assert isinstance(self.stop_regex, tuple)
        return self.stop_regex

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """`stop_token_ids` after normalisation."""
        assert isinstance(self.stop_token_ids, tuple)
        return self.stop_token_ids

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked again."""
        return _replace(self, **changes)
