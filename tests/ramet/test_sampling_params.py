"""SamplingParams: every bad value is refused where it is written, with its name, itself and the limit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ramet import InvalidSamplingParamsError, SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": math.nan}, r"temperature=nan is not allowed: it must be a number in \[0, 100\]"),
        ({"temperature": -0.1}, r"temperature=-0\.1"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"temperature": True}, "temperature=True"),
        ({"top_p": 0.0}, r"top_p=0\.0 is not allowed: it must be a number in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_k": 0.5}, r"top_k=0\.5 is not allowed: it must be an integer of at least -1"),
        ({"top_k": -2}, "top_k=-2"),
        ({"min_p": -1}, "min_p=-1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5"),
        ({"frequency_penalty": -2.5}, "frequency_penalty=-2.5"),
        ({"max_tokens": 0}, "max_tokens=0 is not allowed: it must be an integer of at least 1"),
        ({"max_tokens": -5}, "max_tokens=-5"),
        ({"max_tokens": 1.5}, "max_tokens=1.5"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is not allowed: it must not exceed max_tokens=8"),
        ({"n": 0}, "n=0"),
        ({"n": 129}, "n=129 is not allowed: it must be an integer of at least 1 and at most 128"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.0}, "seed=1.0"),
        ({"stop": [""]}, r"stop=\[''\] is not allowed: a stop string must not be empty"),
        ({"stop": ""}, "must not be empty"),
        ({"stop": [1]}, "every item must be of type str, 1 is not"),
        ({"stop": 3}, "it must be a list of str"),
        ({"stop": ["x"] * 33}, "at most 32 stop strings"),
        ({"stop_token_ids": [-1]}, "stop_token_ids=-1"),
        ({"stop_token_ids": ["a"]}, "'a' is not"),
        ({"logprobs": -1}, "logprobs=-1"),
        ({"prompt_logprobs": 5000}, "prompt_logprobs=5000"),
        ({"logit_bias": {1: 101.0}}, r"logit_bias\[1\]=101\.0"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias=-1"),
        ({"logit_bias": [1]}, "must map token ids to numbers"),
        ({"ignore_eos": 1}, "ignore_eos=1 is not allowed: it must be True or False"),
    ],
)
def test_a_bad_value_is_refused_by_name(fields, message):
    with pytest.raises(InvalidSamplingParamsError, match=message):
        SamplingParams(**fields)


BEAMS = {"use_beam_search": True, "temperature": 0.0}
REFUSED_BY_BEAM_SEARCH = [
    ({"top_p": 0.9}, r"top_p=0\.9 .*: use_beam_search=True does not support it, leave it at 1\.0"),
    ({"top_k": 5}, "top_k=5"),
    ({"min_p": 0.1}, r"min_p=0\.1"),
    ({"repetition_penalty": 1.1}, r"repetition_penalty=1\.1"),
    ({"presence_penalty": 1.0}, r"presence_penalty=1\.0"),
    ({"frequency_penalty": -1}, "frequency_penalty=-1"),
    ({"logit_bias": {3: 1.0}}, "logit_bias={3: 1.0}"),
    ({"min_tokens": 1}, "min_tokens=1"),
    ({"stop": "x"}, r"stop=\('x',\)"),
    ({"stop_regex": "x"}, r"stop_regex=\('x',\)"),
    ({"logprobs": 0}, "logprobs=0"),
    ({"prompt_logprobs": 0}, "prompt_logprobs=0"),
]
WITH_BEAM_SEARCH = {
    "n",
    "best_of",
    "temperature",
    "seed",
    "max_tokens",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "regex",
    "json_schema",
    "ebnf",
    "choices",
    "json_whitespace",
    "on_incomplete",
    "grammar_backend",
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 0}, "best_of=0 is not allowed: it must be an integer of at least 1 and at most 128"),
        ({"best_of": 129}, "best_of=129"),
        ({"best_of": 2.0}, r"best_of=2\.0"),
        ({"best_of": True}, "best_of=True"),
        ({"n": 3, "best_of": 2}, "best_of=2 is not allowed: it must not be less than n=3"),
        (BEAMS | {"n": 3, "best_of": 2}, "best_of=2"),
        (
            {"best_of": 2, "temperature": 0},
            "best_of=2 is not allowed: with temperature 0 all samples are equal, .* n=1",
        ),
        ({"use_beam_search": 1}, "use_beam_search=1 is not allowed: it must be True or False"),
        ({"length_penalty": 0.5}, r"length_penalty=0\.5 .* without use_beam_search=True it must be 1\.0"),
        ({"early_stopping": True}, "early_stopping=True .* without use_beam_search=True it must be False"),
        ({"early_stopping": "never"}, "early_stopping='never' .* without use_beam_search=True"),
        (BEAMS | {"early_stopping": "always"}, "early_stopping='always' .* must be True, False or 'never'"),
        (BEAMS | {"early_stopping": 0}, "early_stopping=0 "),
        (BEAMS | {"early_stopping": None}, "early_stopping=None"),
        (BEAMS | {"length_penalty": math.nan}, r"length_penalty=nan is not allowed: .* in \[-5, 5\]"),
        (BEAMS | {"length_penalty": -math.inf}, "length_penalty=-inf"),
        (BEAMS | {"length_penalty": 5.1}, r"length_penalty=5\.1"),
        (BEAMS | {"length_penalty": None}, "length_penalty=None"),
        ({"use_beam_search": True}, r"temperature=1\.0 .* with use_beam_search=True it must be 0"),
    ],
)
def test_what_best_of_and_beam_search_cannot_do_is_refused_by_name(fields, message):
    with pytest.raises(InvalidSamplingParamsError, match=message):
        SamplingParams(**fields)


@pytest.mark.parametrize(("fields", "message"), REFUSED_BY_BEAM_SEARCH)
def test_what_beam_search_would_not_honour_is_refused(fields, message):
    SamplingParams(**fields)
    with pytest.raises(InvalidSamplingParamsError, match=message):
        SamplingParams(**(BEAMS | fields))


def test_every_field_is_honoured_or_refused_by_beam_search():
    refused = {name for fields, _ in REFUSED_BY_BEAM_SEARCH for name in fields}
    assert WITH_BEAM_SEARCH | refused == {field.name for field in dataclasses.fields(SamplingParams)}
    assert not WITH_BEAM_SEARCH & refused


@pytest.mark.parametrize(
    "fields",
    [
        {"early_stopping": "never", "length_penalty": -5},
        {"early_stopping": True, "length_penalty": 0},
        {"stop_token_ids": [1, 2], "ignore_eos": True, "seed": 3, "max_tokens": None},
        {"top_k": -1, "stop": [], "logit_bias": {}, "temperature": 0, "skip_special_tokens": False},
    ],
)
def test_beam_search_takes_what_it_honours(fields):
    assert SamplingParams(**(BEAMS | fields)).use_beam_search


@pytest.mark.parametrize(
    ("fields", "num_sequences", "beam_width"),
    [
        ({}, 1, 1),
        ({"n": 3}, 3, 3),
        ({"n": 2, "best_of": 5}, 5, 5),
        ({"n": 2, "best_of": 2, "temperature": 0}, 2, 2),
        (BEAMS, 1, 1),
        (BEAMS | {"n": 4}, 1, 4),
        (BEAMS | {"n": 2, "best_of": 8}, 1, 8),
        (BEAMS | {"best_of": 128}, 1, 128),
    ],
)
def test_number_of_sequences_and_beams(fields, num_sequences, beam_width):
    params = SamplingParams(**fields)
    assert (params.num_sequences, params.beam_width) == (num_sequences, beam_width)


def test_errors_are_value_errors():
    assert issubclass(InvalidSamplingParamsError, ValueError)


def test_lists_and_single_values_are_normalised():
    params = SamplingParams(stop="\n", stop_token_ids=[1, 2])
    assert params.stop_strings == ("\n",)
    assert params.stop_ids == (1, 2)
    assert SamplingParams(stop=None, stop_token_ids=None).stop_strings == ()
    assert SamplingParams(stop=iter(["a", "b"])).stop_strings == ("a", "b")


def test_replace_checks_again_and_leaves_the_original_alone():
    params = SamplingParams(temperature=0.5)
    assert params.replace(top_k=5) == SamplingParams(temperature=0.5, top_k=5)
    with pytest.raises(InvalidSamplingParamsError, match="top_k=-7"):
        params.replace(top_k=-7)
    assert params.top_k == 0


def test_params_can_be_compared_and_hashed():
    assert SamplingParams(stop=["a"]) == SamplingParams(stop="a")
    assert len({SamplingParams(logit_bias={1: 2.0}), SamplingParams(logit_bias={1: 2.0})}) == 1
    assert SamplingParams(temperature=0.0).is_greedy
    assert not SamplingParams().is_greedy


def test_an_unknown_field_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        InvalidSamplingParamsError, match=r"no 'max_token'; did you mean 'max_tokens'\? it takes best_of, "
    ):
        SamplingParams(max_token=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidSamplingParamsError, match="no 'warmth'; it takes"):
        SamplingParams(warmth=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidSamplingParamsError, match="no 'seeds'; did you mean 'seed'"):
        SamplingParams().replace(seeds=3)
    assert SamplingParams.__init__.__name__ == "__init__"
    assert SamplingParams(max_tokens=3) == SamplingParams().replace(max_tokens=3)


def test_numbers_of_numpy_are_taken_as_plain_ones():
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        max_tokens=np.int32(7),
        stop_token_ids=[np.int64(3)],
        logit_bias={np.uint8(5): np.float64(1.5)},
    )
    plain = SamplingParams(n=2, temperature=0.5, max_tokens=7, stop_token_ids=[3], logit_bias={5: 1.5})
    assert params == plain
    assert {type(value) for value in (params.n, params.max_tokens, *params.stop_ids, *params.logit_bias)} == {int}
    assert {type(value) for value in (params.temperature, *params.logit_bias.values())} == {float}
    for bad in (np.bool_(True), np.array([1]), np.float64(3.5)):
        with pytest.raises(InvalidSamplingParamsError, match="max_tokens"):
            SamplingParams(max_tokens=bad)
