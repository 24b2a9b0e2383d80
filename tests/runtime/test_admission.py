"""Who may start: the three answers, and how the guess learns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ramet.runtime.admission import DECAY_STEPS, INITIAL_RATIO, MAX_ESTIMATED_TOKENS, AdmissionControl


def sequence(num_prompt, max_tokens, num_output=0, num_held_blocks=None, ignore_eos=False, beam_width=None):
    params = SimpleNamespace(ignore_eos=ignore_eos, beam_width=beam_width)
    return SimpleNamespace(
        token_ids=[0] * (num_prompt + num_output),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        max_tokens=max_tokens,
        request=SimpleNamespace(sampling_params=params),
        is_beam=beam_width is not None,
        block_table=None if num_held_blocks is None else SimpleNamespace(block_ids=[0] * num_held_blocks),
    )


def room_needed(admission, newcomer, running=(), num_matched=0, num_newly_locked=0):
    """The smallest number of available blocks with which the newcomer may start."""
    admission.begin_pass(list(running))
    return next(num for num in range(100_000) if admission.has_room(newcomer, num_matched, num_newly_locked, num))


def test_max_counts_the_longest_outcome_of_everybody():
    admission = AdmissionControl(16, "max", 1.0)
    running = [sequence(20, 30, num_output=3, num_held_blocks=2), sequence(5, 10_000, num_held_blocks=1)]
    assert room_needed(admission, sequence(20, 30)) == 4
    assert room_needed(admission, sequence(20, 30), running) == 4 + (4 - 2) + (-(-10_005 // 16) - 1)
    for _ in range(2 * DECAY_STEPS):
        admission.on_step()
    admission.on_preemption(running)
    assert room_needed(admission, sequence(20, 30), running) == 4 + 2 + (-(-10_005 // 16) - 1)


def test_what_the_tree_has_is_not_needed_but_is_room_for_nobody():
    admission = AdmissionControl(16, "max", 1.0)
    assert room_needed(admission, sequence(64, 16), num_matched=4) == 1
    assert room_needed(admission, sequence(64, 16), num_matched=4, num_newly_locked=3) == 4


def test_none_asks_for_the_next_step_only():
    assert room_needed(AdmissionControl(16, "none", 1.0), sequence(500, 500), [sequence(20, 900, 0, 2)]) == 0


def test_estimate_expects_a_share_of_what_is_allowed():
    admission = AdmissionControl(1, "estimate", 1.0)
    assert admission.new_token_ratio == INITIAL_RATIO
    assert room_needed(admission, sequence(20, 1_000)) == pytest.approx(20 + 700, abs=1)
    assert room_needed(admission, sequence(20, 1_000, num_output=500)) == pytest.approx(520 + 350, abs=1)
    assert room_needed(admission, sequence(20, 30_000)) == pytest.approx(20 + 0.7 * MAX_ESTIMATED_TOKENS, abs=1)


def test_who_ignores_the_end_of_sequence_has_a_known_length():
    assert room_needed(AdmissionControl(1, "estimate", 1.0), sequence(20, 9_000, ignore_eos=True)) == 9_020
    assert room_needed(AdmissionControl(1, "estimate", 0.0), sequence(20, 9_000, ignore_eos=True)) == 20


@pytest.mark.parametrize(("conservativeness", "initial"), [(0.0, 0.0), (0.5, 0.35), (1.0, 0.7), (9.0, 1.0)])
def test_the_ratio_decays_to_a_floor_jumps_back_and_begins_anew(conservativeness, initial):
    admission = AdmissionControl(16, "estimate", conservativeness)
    assert admission.new_token_ratio == pytest.approx(initial)
    ratios = []
    for _ in range(DECAY_STEPS + 10):
        admission.on_step()
        ratios.append(admission.new_token_ratio)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] == pytest.approx(0.14 * initial)
    assert ratios[DECAY_STEPS // 2] > ratios[-1] or initial == 0
    admission.on_preemption([sequence(5, 100, num_output=10)])
    assert admission.new_token_ratio == pytest.approx(max(initial, 0.1))
    admission.on_preemption([sequence(5, 100, num_output=90), sequence(5, 100, num_output=100)])
    assert admission.new_token_ratio == pytest.approx(max(initial, 0.95))
    admission.on_idle()
    assert admission.new_token_ratio == pytest.approx(initial)


def test_who_was_admitted_in_this_pass_is_counted_for_the_next():
    admission = AdmissionControl(16, "max", 1.0)
    admission.begin_pass([])
    assert admission.has_room(sequence(16, 48), 0, 0, 8)
    admission.on_admission(sequence(16, 48, num_held_blocks=1))
    assert admission.has_room(sequence(16, 48), 0, 0, 7)
    assert not admission.has_room(sequence(16, 48), 0, 0, 6)


def test_a_beam_search_needs_room_for_all_its_beams():
    admission = AdmissionControl(16, "max", 1.0)
    # Two full blocks of the prompt are shared; each of the four beams has its own from there on.
    assert room_needed(admission, sequence(40, 24, beam_width=4)) == 2 + 4 * 2
    # After the first choice the beams are there and count for themselves.
    assert room_needed(admission, sequence(40, 24, num_output=1, beam_width=4)) == 4
