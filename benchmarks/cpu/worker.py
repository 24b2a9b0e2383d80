"""Runs one job in this process: `worker MODULE OPTIONS.json RESULT.json`. Started by `process.py` only.

A job module has `run(options) -> result`; both are plain JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    module_name, options_path, result_path = sys.argv[1:]
    module = importlib.import_module(f".{module_name}", __package__)
    result = module.run(json.loads(Path(options_path).read_text(encoding="utf-8")))
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
