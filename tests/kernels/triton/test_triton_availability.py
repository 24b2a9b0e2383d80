"""Where the kernels do not run, and what is said about it."""

from __future__ import annotations

import pytest

from ramet.kernels.triton import availability


@pytest.mark.parametrize(
    ("triton_version", "numpy_version", "works"),
    [
        ("3.6.0", "2.3.5", True),
        ("3.6.0", "2.4.6", False),
        ("3.7.0", "2.4.0", True),
        ("3.10.1+git12", "3.0.0", True),
        (None, "2.4.0", True),
        ("3.6.0", None, True),
    ],
)
def test_the_interpreter_of_3_6_needs_an_older_numpy(
    triton_version: str | None, numpy_version: str | None, works: bool
) -> None:
    reason = availability._why_not_interpreted(triton_version, numpy_version)
    assert (reason is None) == works
    if reason is not None:
        assert f"Triton {triton_version} does not work with numpy {numpy_version}" in reason
