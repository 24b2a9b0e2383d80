"""An LLM in a process that was forked from one that has an LLM already."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
from ramet import LLM, SamplingParams

def text():
    with LLM("smollm2", num_threads=2, num_blocks=50) as llm:
        return llm.generate(["The sea is"], SamplingParams(temperature=0.0, max_tokens=4))[0].outputs[0].text

mine = text()
child = os.fork()
if child == 0:
    os._exit(0 if text() == mine else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.model
@pytest.mark.compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_can_make_its_own() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert result.stdout.strip() == "0", result.stderr
