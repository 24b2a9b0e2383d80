"""FigureContext: what the figures of one run share: their scale, and the real model, loaded once."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, TypeVar

from ..runtime.llm import LLM
from .cost_model import CostModel, measure_cost_model

T = TypeVar("T")

Scale = Literal["full", "quick"]


class FigureContext:
    """Shared by the figures of one run; a context manager that closes the models.

    Args:
        scale: "full" for the numbers, "quick" for the same code over far less work, as tests want it.

    Attributes:
        scale: as given.
    """

    def __init__(self, scale: Scale = "full") -> None:
        self.scale: Scale = scale
        self._llm: LLM | None = None
        self._cost_model: CostModel | None = None

    def pick(self, *, full: T, quick: T) -> T:
        """The value for this run's scale."""
        return full if self.scale == "full" else quick

    @property
    def llm(self) -> LLM:
        """The bundled model with default options, loaded at the first use. Its prefix cache may hold anything."""
        if self._llm is None:
            self._llm = LLM("smollm2", show_progress=False)
        return self._llm

    def new_llm(self, **options: Any) -> LLM:
        """The bundled model with options of its own, as LLM takes them. The caller shuts it down."""
        return LLM("smollm2", show_progress=False, **options)

    @property
    def cost_model(self) -> CostModel:
        """What a step of the bundled model costs on this machine, measured at the first use."""
        if self._cost_model is None:
            self._cost_model = measure_cost_model(self.llm, num_repeats=self.pick(full=5, quick=1))
        return self._cost_model

    def close(self) -> None:
        """Shut the shared model down. Idempotent."""
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None

    def __enter__(self) -> FigureContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
