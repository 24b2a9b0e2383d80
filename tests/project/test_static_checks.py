"""What can be checked without running the code: style, types, the direction of imports, the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ramet

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("ramet", "frontend", "runtime", "radix", "kernels")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

CHECKS = {
    "ruff": [sys.executable, "-m", "ruff", "check", "."],
    "mypy": [sys.executable, "-m", "mypy"],
    "import-linter": [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())",
    ],
}


@pytest.mark.parametrize("name", CHECKS)
def test_checker_is_content(name: str) -> None:
    result = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, f"\n{result.stdout[-6000:]}\n{result.stderr[-2000:]}"


def test_every_public_name_resolves() -> None:
    assert len(set(ramet.__all__)) == len(ramet.__all__)
    for name in ramet.__all__:
        assert getattr(ramet, name) is not None
    assert set(ramet.__all__) <= set(dir(ramet))
    with pytest.raises(AttributeError, match="no_such_name"):
        ramet.no_such_name  # noqa: B018


def source_files() -> list[Path]:
    """Every module once: the links inside `ramet/` are not followed."""
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def test_files_and_functions_stay_small() -> None:
    too_long = []
    for path in source_files():
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        if text.count("\n") > MAX_FILE_LINES:
            too_long.append(f"{name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    too_long.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    assert not too_long, "\n".join(too_long)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.stat().st_size > 0 and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent, f"no module docstring: {silent}"
