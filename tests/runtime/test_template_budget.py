"""What templates may use."""

from __future__ import annotations

import pytest

from ramet.runtime import template_budget
from ramet.runtime.template_budget import TemplateBudget, TemplateRefusedError


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(template_budget, "thread_time", clock)
    return clock


def spend_while_it_runs(budget: TemplateBudget, clock: Clock, seconds_each: float, times: int) -> None:
    for _ in range(times):
        clock.seconds += seconds_each
        budget.spend(1)


def test_a_thread_that_was_held_up_is_not_the_templates_doing(clock: Clock) -> None:
    budget = TemplateBudget(max_seconds=1.0)
    for _ in range(5):
        clock.seconds += 60.0
        spend_while_it_runs(budget, clock, 0.001, 50)


def test_many_short_steps_use_up_the_time(clock: Clock) -> None:
    budget = TemplateBudget(max_seconds=1.0)
    spend_while_it_runs(budget, clock, 0.001, 900)
    with pytest.raises(TemplateRefusedError, match="more than 1 s of the processor"):
        spend_while_it_runs(budget, clock, 0.001, 200)


def test_many_long_steps_use_it_up_too(clock: Clock) -> None:
    budget = TemplateBudget(max_seconds=1.0)
    with pytest.raises(TemplateRefusedError, match="more than 1 s of the processor"):
        spend_while_it_runs(budget, clock, 1.0, 200)


def test_steps_are_bounded_whatever_the_time(clock: Clock) -> None:
    budget = TemplateBudget(max_steps=100)
    budget.spend(100)
    with pytest.raises(TemplateRefusedError, match="more than 100 steps"):
        budget.spend(1)
