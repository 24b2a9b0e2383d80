"""Whatever JSON the native endpoints are sent, they say what is wrong with it, and serve the next request."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.model

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.integers(-2, 60_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=6,
)
PARAMS = ("n", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "regex", "json_schema", "ebnf", "logit_bias")
PARAMS += ("choices", "sampling_seed", "stop_regex", "min_p", "ignore_eos", "best_of", "min_new_tokens")
FIELDS = ("text", "input_ids", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream", "rid", "priority")
FIELDS += ("cache_salt", "extra_key", "routing_key", "num_healable_chars", "image_data")
PATHS = {
    "/tokenize": ("prompt", "messages", "tools", "segments", "add_special_tokens", "at_start", "return_token_strs"),
    "/detokenize": ("tokens", "skip_special_tokens"),
    "/abort_request": ("rid", "abort_all"),
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    if draw(st.integers(0, 3)):
        params = draw(st.dictionaries(st.sampled_from(PARAMS), JSON, max_size=2))
        body = {"text": "Hi", "sampling_params": {**params, "max_new_tokens": 1}}
        return "/generate", {**body, **draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2))}
    path = draw(st.sampled_from(sorted(PATHS)))
    return path, draw(JSON | st.dictionaries(st.sampled_from(PATHS[path]), JSON, max_size=3))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies())
def test_no_json_is_too_much(http: httpx2.Client, sent: tuple[str, Any]) -> None:
    path, body = sent
    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
        assert http.get("/health").status_code == 200
