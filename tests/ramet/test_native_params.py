"""SGLang's names for sampling parameters, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.native_params import from_native, to_native
from ramet.sampling_params import InvalidSamplingParamsError, SamplingParams

params = st.builds(
    SamplingParams,
    n=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 7]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.1]),
    presence_penalty=st.sampled_from([0.0, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    seed=st.none() | st.integers(0, 9),
    max_tokens=st.none() | st.integers(2, 9),
    min_tokens=st.integers(0, 2),
    stop=st.lists(st.text(min_size=1), max_size=2),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2),
    ignore_eos=st.booleans(),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 9), st.sampled_from([-1.0, 2.0]), min_size=1),
    skip_special_tokens=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    regex=st.none() | st.just("[0-9]+"),
)


@given(params)
def test_what_is_sent_is_what_is_read(given: SamplingParams) -> None:
    assert from_native(json.loads(json.dumps(to_native(given)))).sampling == given


def test_the_defaults_are_sglangs() -> None:
    for empty in (None, {}):
        assert from_native(empty).sampling == SamplingParams(max_tokens=128)


def test_a_tiny_temperature_is_greedy() -> None:
    assert from_native({"temperature": 1e-7}).sampling.temperature == 0.0


def test_no_new_tokens_only_bring_in_the_prompt() -> None:
    native = from_native({"max_new_tokens": 0, "n": 3, "min_new_tokens": 0})
    assert native.is_prefill_only
    assert (native.sampling.max_tokens, native.sampling.n) == (1, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_token": 3}, "has no 'max_new_token'; did you mean 'max_new_tokens'"),
        ({"max_tokens": 3}, "here it is called 'max_new_tokens'"),
        ({"max_new_tokens": -1}, "^max_new_tokens=-1 is not allowed"),
        ({"max_new_tokens": False}, "^max_new_tokens=False is not allowed"),
        ({"sampling_seed": -1}, "^sampling_seed=-1 is not allowed"),
        ({"temperature": "hot"}, "^temperature='hot' is not allowed"),
        ({"logit_bias": {"x": 1.0}}, "^logit_bias='x' is not allowed"),
        ({"structural_tag": "{}"}, "structural_tag='{}' is not supported: use regex"),
        ("hot", "must be a dictionary"),
    ],
)
def test_bad_values_are_refused_by_sglangs_name(values: Any, message: str) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=message):
        from_native(values)


def test_what_asks_for_nothing_is_accepted() -> None:
    values = {"structural_tag": None, "spaces_between_special_tokens": True, "top_p": None}
    assert from_native(values).sampling == SamplingParams(max_tokens=128)
