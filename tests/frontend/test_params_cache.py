"""Parameters seen before are not checked again, but what is refused once is refused always."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.frontend.params_cache import params_of
from ramet.sampling_params import InvalidSamplingParamsError, SamplingParams


def test_equal_options_share_their_parameters() -> None:
    options: dict[str, Any] = {"max_tokens": 7, "stop": ("a", "b"), "temperature": 0.5}
    assert params_of(options) is params_of(dict(options))
    assert params_of(options) == SamplingParams(**options)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"n": 1}, {"n": True}),
        ({"n": 1}, {"n": 1.0}),
        ({"stop_token_ids": (1,)}, {"stop_token_ids": (True,)}),
        ({"temperature": 1.0}, {"temperature": True}),
    ],
)
def test_what_is_equal_but_of_another_type_is_still_refused(good: dict[str, Any], bad: dict[str, Any]) -> None:
    assert params_of(good) == SamplingParams(**good)
    for _ in range(2):
        with pytest.raises(InvalidSamplingParamsError):
            params_of(bad)


def test_what_can_change_is_read_anew() -> None:
    bias = {3: 1.0}
    params_of({"logit_bias": bias})
    bias[4] = 2.0
    assert params_of({"logit_bias": bias}).logit_bias == {3: 1.0, 4: 2.0}
