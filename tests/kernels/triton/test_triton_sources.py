"""What the sources of kernels must not do: the interpreter would compute nonsense, silently."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.kernels.triton.launch import KernelCall

KERNELS = Path(__file__).resolve().parents[3] / "kernels" / "triton"
WIDE = {"float32", "float64", "int32", "int64", "uint64"}
"""Types of `tl` that arithmetic is right on, interpreted and compiled."""
PRODUCTS = {"dot", "trans"}
"""What may take a narrow operand."""


def kernels_in(source: str) -> Iterator[ast.FunctionDef]:
    """Functions decorated with triton.jit."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(each) for each in node.decorator_list):
            yield node


def is_tl(node: ast.expr, names: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tl" and node.attr in names


def is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and is_tl(node.func, {"load"})


def cast_of(node: ast.AST) -> ast.expr | None:
    """X of `<something>.to(X)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to" and node.args:
        return node.args[0]
    return None


def mistakes(source: str) -> list[str]:
    """A load that is not cast at once; a value cast to what may be narrow, and then used in more than a product."""
    found = []
    for kernel in kernels_in(source):
        cast_loads = {
            node.func.value
            for node in ast.walk(kernel)
            if cast_of(node) is not None and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        found += [
            f"{kernel.name}:{node.lineno}: a load that is not cast"
            for node in ast.walk(kernel)
            if is_load(node) and node not in cast_loads
        ]
        narrow = {
            target.id
            for node in ast.walk(kernel)
            if isinstance(node, ast.Assign) and (kind := cast_of(node.value)) is not None and not is_tl(kind, WIDE)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(kernel):
            operands: list[ast.expr] = []
            if isinstance(node, ast.BinOp):
                operands = [node.left, node.right]
            elif isinstance(node, ast.UnaryOp):
                operands = [node.operand]
            elif isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
            elif isinstance(node, ast.AugAssign):
                operands = [node.target, node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not is_tl(node.func, PRODUCTS):
                operands = node.args if ast.unparse(node.func.value) == "tl" else []
            found += [
                f"{kernel.name}:{operand.lineno}: {operand.id} may be narrow"
                for operand in operands
                if isinstance(operand, ast.Name) and operand.id in narrow
            ]
    return found


def sources() -> list[Path]:
    return [path for path in sorted(KERNELS.glob("*.py")) if "@triton.jit" in path.read_text(encoding="utf-8")]


def test_the_kernels_are_found() -> None:
    assert {"attention.py", "norm.py", "sampling.py"} <= {path.name for path in sources()}


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_arithmetic_is_on_wide_types_only(path: Path) -> None:
    assert mistakes(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_products_name_their_precision(path: Path) -> None:
    """The default on a GPU is tf32, which the interpreter does not have."""
    for kernel in kernels_in(path.read_text(encoding="utf-8")):
        for node in ast.walk(kernel):
            if isinstance(node, ast.Call) and is_tl(node.func, {"dot"}):
                assert "input_precision" in {keyword.arg for keyword in node.keywords}, node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "y = tl.load(x) * 2",
        "y = tl.load(x)",
        "y = tl.load(x).to(DOT)\n    z = y + 1.0",
        "y = tl.load(x).to(tl.bfloat16)\n    z = tl.maximum(y, 0.0)",
        "y = tl.load(x).to(DOT)\n    z = -y",
        "y = tl.load(x).to(DOT)\n    z = y < 0",
        "y = z.to(DOT)\n    y += 1",
    ],
)
def test_a_mistake_is_seen(line: str) -> None:
    assert mistakes(f"@triton.jit\ndef kernel(x, z, DOT: tl.constexpr):\n    {line}\n")


def test_what_is_right_passes() -> None:
    line = "y = tl.load(x).to(DOT)\n    z = tl.dot(y, tl.trans(y)) * 2\n    w = tl.load(x).to(tl.float32) + 1"
    assert not mistakes(f"@triton.jit\ndef kernel(x, DOT: tl.constexpr):\n    {line}\n")


def test_numbers_that_change_from_step_to_step_make_no_kernels() -> None:
    """JIT makes another kernel for 1, for multiples of 16 and for the rest, unless it is told not to."""
    sources = {path: path.read_text(encoding="utf-8") for path in KERNELS.glob("*.py")}
    for path, source in sources.items():
        for kernel in kernels_in(source):
            names = {argument.arg for argument in kernel.args.args if argument.annotation is None}
            changing = names & {"num_rows", "num_edits"}
            decorators = " ".join(ast.unparse(each) for each in kernel.decorator_list)
            if kernel.name.endswith("_kernel"):
                assert all(f"'{name}'" in decorators for name in changing), (path.name, kernel.name)


def test_a_grid_that_a_card_refuses_is_refused_here() -> None:
    """The interpreter runs any; CUDA takes 65,535 programs along the second axis."""
    call = KernelCall(None, (2, 70_000), ())
    with pytest.raises(AssertionError, match="70000"):
        call.run()


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_nothing_is_added_up_in_an_order_that_changes(path: Path) -> None:
    """No atomics, so that results are the same every time; no program waits for another."""
    assert "tl.atomic" not in path.read_text(encoding="utf-8")
