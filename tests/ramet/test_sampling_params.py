"""SamplingParams: every bad value is refused where it is written, with its name, itself and the limit."""

from __future__ import annotations

import math

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
