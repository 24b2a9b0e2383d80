"""Constrained requests in the engine: the text belongs to the grammar, whatever else happens to the request."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ramet.runtime.engine import Engine
from ramet.runtime.errors import RequestFailedError
from ramet.runtime.grammar.errors import GrammarError
from ramet.runtime.outputs import FinishReason, RequestOutput
from ramet.runtime.request import Request

PROMPT = [3, 1, 4, 1, 5]
EOS = 100
RECORD = r"name: [A-Z][a-z]{1,5}; age: [1-9][0-9]?; end\."
RECORD = RECORD.replace(" ", "_")  # the test vocabulary has no space

Build = Callable[..., Engine]
Ask = Callable[..., Request]
Run = Callable[..., dict[str, RequestOutput]]


@pytest.fixture
def generate(make_engine: Build, request_of: Ask, run: Run) -> Callable[..., tuple[RequestOutput, Engine]]:
    """Run one request on an engine of its own."""

    def generate(engine_options: dict[str, Any] | None = None, **fields: Any) -> tuple[RequestOutput, Engine]:
        engine = make_engine(**(engine_options or {}))
        engine.add_request(request_of("a", PROMPT, **{"max_tokens": 40, **fields}))
        (output,) = run(engine).values()
        return output, engine

    return generate


def spelled(text: str) -> list[int]:
    return [ord(char) - 33 for char in text]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("overlap_schedule", [False, True])
def test_the_text_matches_and_forced_tokens_need_no_pass(generate, temperature, overlap_schedule):
    options = {"overlap_schedule": overlap_schedule}
    output, engine = generate(options, regex=RECORD, temperature=temperature, seed=7)
    (sample,) = output.outputs
    assert re.fullmatch(RECORD, sample.text)
    assert sample.complete is True
    assert sample.finish_reason is FinishReason.STOP
    assert sample.token_ids == spelled(sample.text)
    assert sample.num_text_tokens == len(sample.token_ids)
    assert not sample.has_stop_token
    # "name:_", "; age: ", and "; end." are forced once the digits are over: what is chosen is the rest.
    assert engine.metrics.num_forced_tokens >= len("name:_") + len("_age:_") + len("_end.")
    assert engine.metrics.num_steps == len(sample.token_ids) - engine.metrics.num_forced_tokens
    without, engine = generate({**options, "jump_forward": False}, regex=RECORD, temperature=temperature, seed=7)
    assert without.outputs == output.outputs
    assert engine.metrics.num_forced_tokens == 0
    assert engine.metrics.num_steps == len(sample.token_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "fields", [{}, {"presence_penalty": 1.0}, {"min_tokens": 6}, {"on_incomplete": "close"}], ids=str
)
def test_asking_for_one_token_or_for_all_makes_no_difference(make_engine, request_of, run, temperature, fields):
    """A top_k of the whole vocabulary changes nothing, but its rows are masked before they are sampled."""
    outputs = []
    for top_k in (0, 101):
        engine = make_engine(eos_bias=1.0)
        for seed in range(12):
            own = {"regex": "[a-m]{2,9}(x|yy)?", "temperature": temperature, "seed": seed, "max_tokens": 8} | fields
            engine.add_request(request_of(str(seed), [seed, *PROMPT], top_k=top_k, **own))
        outputs.append(run(engine))
    for request_id, output in outputs[0].items():
        assert output.outputs == outputs[1][request_id].outputs


def test_what_is_forced_at_the_beginning_joins_the_prompt(generate):
    output, engine = generate(regex="abc[d-f]")
    assert output.outputs[0].text[:3] == "abc"
    assert engine.metrics.num_steps == 1
    assert engine.runner.batches == [[("a", 0, len(PROMPT) + 3)]]
    assert engine.metrics.num_prompt_tokens == len(PROMPT)


def test_forced_tokens_found_in_the_cache_are_no_prompt(make_engine, request_of, run):
    engine = make_engine(block_size=4)
    for request_id in "ab":
        engine.add_request(request_of(request_id, PROMPT, regex="abcdefghijk[l-z]", max_tokens=20))
        (output,) = run(engine).values()
    assert output.num_cached_tokens == len(PROMPT)
    assert engine.metrics.num_cached_tokens == len(PROMPT)


def test_a_text_that_is_forced_whole_needs_no_step(generate):
    output, engine = generate(regex="abc")
    assert output.outputs[0].text == "abc"
    assert output.outputs[0].complete is True
    assert output.finished
    assert engine.metrics.num_steps == 0


def test_a_text_that_must_be_empty_is(generate):
    output, _ = generate(regex="a{0}", n=2)
    assert [sample.text for sample in output.outputs] == ["", ""]
    assert output.outputs[0].complete is True
    output, _ = generate(regex="a{0}", use_beam_search=True)
    assert output.outputs[0].text == ""


@pytest.mark.parametrize("max_tokens", range(1, 22))
@pytest.mark.parametrize("jump_forward", [True, False])
def test_cut_at_any_length_it_is_the_beginning_of_a_text(generate, max_tokens, jump_forward):
    whole, _ = generate(regex=RECORD, max_tokens=40)
    output, _ = generate({"jump_forward": jump_forward}, regex=RECORD, max_tokens=max_tokens)
    (sample,) = output.outputs
    text = whole.outputs[0].text
    assert sample.text == text[:max_tokens]
    assert sample.token_ids == whole.outputs[0].token_ids[:max_tokens]
    is_whole = max_tokens >= len(text)
    assert sample.complete is is_whole
    assert sample.finish_reason is (FinishReason.STOP if is_whole else FinishReason.LENGTH)


@pytest.mark.parametrize("overlap_schedule", [False, True, "pipelined"])
@pytest.mark.parametrize("jump_forward", [False, True])
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_inside_a_forced_run_cuts_it(generate, overlap_schedule, jump_forward, include_stop):
    options = {"overlap_schedule": overlap_schedule, "jump_forward": jump_forward}
    output, engine = generate(options, regex=RECORD, stop=["_age"], include_stop_str_in_output=include_stop)
    (sample,) = output.outputs
    assert re.fullmatch(r"name:_[A-Z][a-z]{1,5};" + ("_age" if include_stop else ""), sample.text)
    assert sample.stop_reason == "_age"
    assert sample.complete is False
    assert sample.token_ids == spelled(sample.text + ("" if include_stop else "_age"))
    assert sample.num_text_tokens == len(sample.text)
    assert engine.cache.num_private_blocks == 0


def test_a_stop_string_may_leave_a_complete_text(generate):
    output, _ = generate(regex="x+(END)?", stop="E", max_tokens=30, logit_bias={ord("E") - 33: 50})
    assert output.outputs[0].complete is True
    assert re.fullmatch("x+", output.outputs[0].text)


def test_the_chunks_of_a_stream_make_up_the_output(make_engine, request_of):
    engine = make_engine()
    engine.add_request(request_of("a", PROMPT, regex=RECORD, max_tokens=40))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    (sample,) = chunks[-1].output.outputs
    assert "".join(chunk.text for chunk in chunks) == sample.text
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == sample.token_ids
    assert len(chunks) < len(sample.token_ids)


def test_the_end_token_comes_only_where_the_text_is_complete(make_engine, request_of, run):
    engine = make_engine(eos_bias=100.0)
    for seed in range(20):
        engine.add_request(request_of(str(seed), PROMPT, regex="[ab]{5}[cd]*", temperature=1.0, seed=seed))
    for output in run(engine).values():
        (sample,) = output.outputs
        assert re.fullmatch("[ab]{5}", sample.text)
        assert sample.token_ids[5:] == [EOS]
        assert sample.has_stop_token
        assert sample.complete is True


def test_a_stop_token_that_the_text_needs_is_text(generate):
    """ "b" ends the text where it may end, and is an ordinary letter before."""
    output, _ = generate(regex="abab(b|c)*", stop_token_ids=spelled("b"), logit_bias={spelled("b")[0]: 50})
    (sample,) = output.outputs
    assert sample.text == "abab"
    assert sample.stop_reason == spelled("b")[0]


def test_min_tokens_does_not_forbid_the_only_way_on(generate):
    output, _ = generate(regex="[ab]{3}", min_tokens=9)
    assert re.fullmatch("[ab]{3}", output.outputs[0].text)
    output, _ = generate({}, regex="[ab]+", min_tokens=9, max_tokens=12, logit_bias={EOS: 100})
    assert re.fullmatch("[ab]{9}", output.outputs[0].text)


def test_ignore_eos_goes_on_while_the_grammar_can(make_engine, request_of, run):
    engine = make_engine(eos_bias=100.0)
    engine.add_request(request_of("a", PROMPT, regex="[ab]{1,9}", ignore_eos=True, max_tokens=20))
    (sample,) = run(engine)["a"].outputs
    assert re.fullmatch("[ab]{9}", sample.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3},
        {"n": 2, "best_of": 5},
        {"n": 3, "logprobs": 2},
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 0.5},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 2.0},
        {"logit_bias": {5: 100.0, 6: -100.0, EOS: 100.0}},
        {"prompt_logprobs": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("overlap_schedule", [False, "pipelined"])
def test_with_everything_else_that_can_be_asked_for(generate, fields, overlap_schedule):
    output, _ = generate({"overlap_schedule": overlap_schedule}, regex=RECORD, temperature=1.0, seed=3, **fields)
    assert len(output.outputs) == fields.get("n", 1)
    for sample in output.outputs:
        assert re.fullmatch(RECORD, sample.text)
        assert sample.complete is True
        if "logprobs" in fields:
            assert len(sample.logprobs) == len(sample.token_ids)
            assert all(token_id in entry for token_id, entry in zip(sample.token_ids, sample.logprobs, strict=True))


def test_beams_find_the_likeliest_of_the_texts(generate):
    """With more beams than texts the search is exhaustive: compare with each text scored alone."""
    texts = ["ab", "abc", "xy", "q", "bb"]
    output, _ = generate(choices=texts, use_beam_search=True, n=8, length_penalty=0.0)
    assert {sample.text for sample in output.outputs} == set(texts)
    scores = {}
    for text in texts:
        alone, _ = generate({"jump_forward": False}, choices=[text], logprobs=0, ignore_eos=False)
        scores[text] = alone.outputs[0].cumulative_logprob
    for sample in output.outputs:
        assert sample.complete is True
        assert sample.finish_reason is FinishReason.STOP
        # the beam's score counts the end token too
        assert sample.cumulative_logprob < scores[sample.text]
    ranked = [sample.cumulative_logprob for sample in output.outputs]
    assert ranked == sorted(ranked, reverse=True)


def test_preempted_in_the_middle_of_a_jump_it_goes_on_as_before(make_engine, request_of, run):
    engine = make_engine(num_blocks=11, block_size=4, reserve="none", schedule_conservativeness=0.0)
    alone = {}
    for idx in range(6):
        request = request_of(str(idx), [idx, *PROMPT], regex=RECORD, temperature=1.0, seed=idx, max_tokens=30)
        engine.add_request(request)
        other = make_engine()
        other.add_request(request)
        alone |= run(other)
    outputs = run(engine)
    assert engine.scheduler.num_preemptions > 0
    for request_id, output in outputs.items():
        assert output.outputs == alone[request_id].outputs
        assert output.outputs[0].complete is True


def test_a_mixed_batch_leaves_the_free_alone(make_engine, request_of, run):
    engine, alone = make_engine(), make_engine()
    free = request_of("free", PROMPT, max_tokens=30, ignore_eos=True)
    engine.add_request(free)
    engine.add_request(request_of("a", PROMPT, regex=RECORD, max_tokens=30))
    engine.add_request(request_of("b", PROMPT, choices=["yes", "no"], max_tokens=30))
    alone.add_request(free)
    outputs = run(engine)
    assert outputs["free"].outputs == run(alone)["free"].outputs
    assert outputs["free"].outputs[0].complete is None
    assert outputs["b"].outputs[0].text in ("yes", "no")


@pytest.mark.parametrize("overlap_schedule", [False, "pipelined"])
def test_a_dead_end_fails_only_its_request(make_engine, request_of, run, overlap_schedule):
    """The vocabulary spells "a" but no snowman, so after "a" there is nothing."""
    engine = make_engine(overlap_schedule=overlap_schedule)
    dead = request_of("dead", PROMPT, ebnf='start: "a☃" | "b"', logit_bias={spelled("a")[0]: 100})
    engine.add_request(dead)
    engine.add_request(request_of("fine", PROMPT, regex=RECORD, max_tokens=30))
    outputs = run(engine)
    assert outputs["fine"].outputs[0].complete is True
    assert isinstance(outputs["dead"].error, RequestFailedError)
    assert "dead end" in str(outputs["dead"].error)
    assert engine.cache.num_private_blocks == 0


def test_raise_fails_the_request_that_is_cut(generate):
    output, _ = generate(regex="[ab]{2,}c", max_tokens=6, on_incomplete="raise", logit_bias={spelled("c")[0]: -100})
    assert isinstance(output.error, RequestFailedError)
    assert "max_tokens=6" in str(output.error)
    assert re.fullmatch("[ab]{6}", output.outputs[0].text)
    output, _ = generate(regex="[ab]{2,}c", max_tokens=6, on_incomplete="raise", logit_bias={spelled("c")[0]: 100})
    assert output.error is None


@pytest.mark.parametrize("max_tokens", range(17, 24))
@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_close_ends_within_the_budget(generate, max_tokens, jump_forward, seed):
    pattern = r"name:_[a-z]*;(_[a-z]+)*;_end\."
    output, _ = generate(
        {"jump_forward": jump_forward, "overlap_schedule": "pipelined" if seed else False},
        regex=pattern,
        max_tokens=max_tokens,
        on_incomplete="close",
        temperature=1.0,
        seed=seed,
        logprobs=1 if seed == 2 else None,
    )
    (sample,) = output.outputs
    assert re.fullmatch(pattern, sample.text)
    assert sample.complete is True
    assert sample.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("on_incomplete", ["close", "raise"])
def test_a_budget_that_no_text_fits_in_is_refused(generate, on_incomplete):
    assert generate(regex="[ab]{5}", max_tokens=5, on_incomplete=on_incomplete)[0].outputs[0].complete is True
    with pytest.raises(GrammarError, match="4 tokens"):
        generate(regex="[ab]{5}", max_tokens=4, on_incomplete=on_incomplete)


def test_healing_takes_back_only_what_may_be_spelled_otherwise(make_engine, request_of, run):
    """In this vocabulary every token is one character, so nothing can span the boundary."""
    engine = make_engine()
    engine.add_request(request_of("a", PROMPT, regex="[ab]{3}", num_healable_tokens=3))
    output = run(engine)["a"]
    assert output.num_healed_tokens == 0
    assert output.prompt_token_ids == PROMPT


@pytest.mark.parametrize("jump_forward", [True, False])
def test_a_branch_without_an_end_fails_only_its_request(make_engine, request_of, run, jump_forward):
    engine = make_engine(jump_forward=jump_forward)
    endless = request_of("a", PROMPT, ebnf='start: "c" | "a" x\nx: "a" x', logit_bias={spelled("c")[0]: -50.0})
    engine.add_request(endless)
    engine.add_request(request_of("b", PROMPT, regex=RECORD, max_tokens=30))
    outputs = run(engine)
    assert outputs["b"].outputs[0].complete is True
    assert isinstance(outputs["a"].error, RequestFailedError) or outputs["a"].outputs[0].complete is False
    assert engine.cache.num_private_blocks == 0


def test_beams_that_must_be_complete_fail_if_they_are_not(generate):
    fields = {"regex": "[a-z]{3}(x|[a-z]{9})", "max_tokens": 4, "use_beam_search": True, "n": 3}
    assert any(not sample.complete for sample in generate(**fields)[0].outputs)
    output, _ = generate(**fields, on_incomplete="raise")
    assert isinstance(output.error, RequestFailedError)
    assert "max_tokens=4" in str(output.error)
    assert not any(sample.complete for sample in output.outputs)


def test_a_stop_string_that_cuts_a_text_which_must_be_complete_is_named(generate):
    output, _ = generate(regex=RECORD, stop=["_age"], on_incomplete="raise")
    assert "the stop string '_age' cut its text off" in str(output.error)


def test_prompt_logprobs_are_there_although_the_text_is_forced(generate):
    output, _ = generate(regex="abc", prompt_logprobs=0)
    assert output.outputs[0].text == "abc"
    assert output.prompt_logprobs is not None
    assert all(entry is not None for entry in output.prompt_logprobs[1:])


def test_an_aborted_text_is_not_complete(make_engine, request_of, run):
    engine = make_engine()
    engine.add_request(request_of("a", PROMPT, regex="b+", stop=["bbbb"], n=2, logit_bias={EOS: -100.0}))
    engine.step()
    engine.abort_request("a")
    output = run(engine)["a"]
    assert [sample.complete for sample in output.outputs] == [False, False]
