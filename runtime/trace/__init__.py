"""What the scheduler did, step by step: recorded, kept in a file, summed up, and drawn."""

from .jsonl import TraceFormatError
from .record import FinishedSequence, MemoryRecord, SequenceName, StepRecord, TracedPart, TraceMetadata, WaitingSequence
from .recorder import TraceRecorder
from .trace import Trace

__all__ = [
    "FinishedSequence",
    "MemoryRecord",
    "SequenceName",
    "StepRecord",
    "Trace",
    "TraceFormatError",
    "TraceMetadata",
    "TraceRecorder",
    "TracedPart",
    "WaitingSequence",
]
