"""How many are let in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.server.admission import Admission, Place
from ramet.runtime.server.errors import ApiError


def test_no_more_than_run_and_may_wait() -> None:
    admission = Admission(max_running=2, max_waiting=1)
    places = [admission.take(1), admission.take(2)]
    with pytest.raises(ApiError) as caught:
        admission.take(1)
    assert (caught.value.status, caught.value.code) == (429, "server_full")
    assert caught.value.retry_after_s is not None
    places[1].free()
    places[1].free()  # a second time changes nothing
    assert admission.num_live == 1
    admission.take(2)


def test_what_never_fits_is_the_requests_fault() -> None:
    with pytest.raises(ApiError) as caught:
        Admission(2, 1).take(4)
    assert caught.value.status == 400


def test_nobody_comes_in_while_it_drains() -> None:
    admission = Admission(2, 1)
    admission.is_draining = True
    with pytest.raises(ApiError) as caught:
        admission.take(1)
    assert (caught.value.status, admission.num_rejected) == (503, 1)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans())))
def test_the_count_is_that_of_the_places(steps: list[tuple[int, bool]]) -> None:
    admission = Admission(4, 3)
    places: list[Place] = []
    for num_sequences, is_freed in steps:
        if admission.num_live + num_sequences > 7:
            with pytest.raises(ApiError, match="full"):
                admission.take(num_sequences)
        else:
            places.append(admission.take(num_sequences))
        if is_freed and places:
            places.pop(0).free()
        assert admission.num_live == sum(place.num_sequences for place in places) <= 7
