"""Compile every Triton kernel for GPUs that are not here, and check what the compiler made of it.

    python -m ramet.kernels.aot                    compile, and compare with the budgets beside this file
    python -m ramet.kernels.aot --write-budgets    store what was measured as the budgets

The interpreter checks results; it knows nothing of registers, shared memory or what a compiler refuses. This does for
NVIDIA A100 (sm_80) and H100/H200 (sm_90) and AMD MI300 (gfx942):

    stack         bytes of the local frame: 0, or registers were spilled (cuobjdump's LOCAL is 0 all the same)
    shared        bytes of shared memory, within what the card has for one program
    registers     a thread, at most the stored budget
    resident      programs that a multiprocessor holds by registers and shared memory: what the planner counts on
    products      instructions of the matrix unit: HGMMA on sm_90 for tiles of 64 lines and more, HMMA, or MFMA
    async copies  LDGSTS in attention, of 8 or 16 bytes for keys and values: without them loads are not pipelined

Arguments are described as the launcher would: pointers and strides divisible by 16 are marked so. Without the marks the
compiler makes another kernel, with twice the registers and no pipelining. Triton keeps what it compiled in its cache,
so a second run takes seconds.

Registers change with Triton's version, so budgets are kept for each version that was measured: the locked one, the
newest, and 3.6, the oldest that is supported, for sm_90 alone. Under other versions registers are not checked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .triton.launch import Argument, KernelCall

Budgets = dict[str, dict[str, int]]
BUDGETS_PATH = Path(__file__).with_name("aot_budgets.json")
_REGISTER_STEP = 8
"""Registers are handed out in eights."""
_ALL_REGISTERS = 65_536


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to compile for.

    Attributes:
        max_shared: bytes of shared memory that one program may have.
        all_shared: bytes of shared memory of a multiprocessor; each program takes 1 KiB more than it asks for.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    max_shared: int
    all_shared: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a variant may name to be compiled for it."""
        return ("amd",) if self.backend == "hip" else ("nvidia", self.name)


TARGETS = {
    target.name: target
    for target in (
        # Cards of compute capability 8.6, 8.9 and 12.0 run code like that of 8.0, but have 99 KiB for a program.
        Target("sm_80", "cuda", 80, 32, 99 * 1024, 164 * 1024),
        Target("sm_90", "cuda", 90, 32, 227 * 1024, 228 * 1024),
        Target("gfx942", "hip", "gfx942", 64, 64 * 1024, 64 * 1024),
    )
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the compiler made: registers a thread, bytes of stack and shared memory, programs that a multiprocessor of
    NVIDIA's holds, and numbers of instructions, which are counted for kernels with products only."""

    target: str
    variant: str
    registers: int
    stack: int
    shared: int
    num_resident: int = 0
    num_wide_products: int = 0
    num_products: int = 0
    num_async_copies: int = 0
    num_wide_copies: int = 0


def jobs(target_names: list[str]) -> list[tuple[str, str]]:
    """(target, variant) of all that is compiled for these targets, the slowest first."""
    from .aot_variants import VARIANTS

    return [
        (target, variant)
        for variant in VARIANTS
        for target in target_names
        if set(VARIANTS[variant].kinds) & set(TARGETS[target].kinds)
    ]


def measure(job: tuple[str, str]) -> Measured:
    """Compile one variant for one target, or take it from Triton's cache."""
    from .aot_variants import VARIANTS

    target, variant = TARGETS[job[0]], VARIANTS[job[1]]
    call = variant.make(target.backend == "hip")
    compiled = compile_call(call, target)
    shared = compiled.metadata.shared
    if target.backend == "hip":
        text = compiled.asm["amdgcn"]
        return Measured(
            *job, _amd_field(text, "vgpr_count"), _amd_field(text, "private_segment_fixed_size"), shared,
            num_products=text.count("v_mfma"),
        )  # fmt: skip
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("nvdisasm", file.name) if variant.has_products else ""
    registers = _nvidia_field(usage, "REG")
    return Measured(
        *job, registers, _nvidia_field(usage, "STACK"), shared,
        num_resident=_num_resident(registers, shared, call.num_warps, target),
        num_wide_products=code.count("HGMMA"),
        num_products=code.count("HMMA"),
        num_async_copies=code.count("LDGSTS"),
        num_wide_copies=len(re.findall(r"LDGSTS\S*\.(?:64|128)\b", code)),
    )  # fmt: skip


def _num_resident(registers: int, shared: int, num_warps: int, target: Target) -> int:
    """Programs of an NVIDIA card's multiprocessor: it has 65,536 registers and, here, 64 warps."""
    registers_of_program = _rounded_up(registers) * num_warps * target.warp_size
    return min(_ALL_REGISTERS // registers_of_program, target.all_shared // (shared + 1024), 64 // num_warps)


def _rounded_up(registers: int) -> int:
    return -(-registers // _REGISTER_STEP) * _REGISTER_STEP


def compile_call(call: KernelCall, target: Target) -> Any:
    """Compile a launch for a target. Raises what Triton raises for a kernel it refuses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = call.kernel.arg_names
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for idx, value in enumerate(call.args):
        if isinstance(value, int) and call.kernel.params[idx].do_not_specialize:
            signature[names[idx]] = "i32"
        elif isinstance(value, tuple):
            signature[names[idx]] = tuple(
                _describe(part, (idx, part_idx), constants, attributes) for part_idx, part in enumerate(value)
            )
        else:
            signature[names[idx]] = _describe(value, (idx,), constants, attributes)
    for name, value in call.constants.items():
        signature[name] = "constexpr"
        constants[(names.index(name),)] = value
    source = ASTSource(call.kernel, {name: signature[name] for name in names}, constants, attributes)
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    return triton.compile(source, target=gpu, options=call.options)


def _describe(
    value: Argument,
    place: tuple[int, ...],
    constants: dict[tuple[int, ...], Any],
    attributes: dict[tuple[int, ...], list[list[object]]],
) -> str:
    """The type of an argument as the launcher sees it: 1 and None are constants, multiples of 16 are marked. Mutates
    `constants` and `attributes`."""
    import torch
    from triton.runtime.jit import type_canonicalisation_dict

    if value is None or (isinstance(value, int) and value == 1):
        constants[place] = value
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, torch.Tensor):
        attributes[place] = [["tt.divisibility", 16]]
        return "*" + str(type_canonicalisation_dict[str(value.dtype).removeprefix("torch.")])
    assert isinstance(value, int)
    if value % 16 == 0:
        attributes[place] = [["tt.divisibility", 16]]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def problems(measured: Measured, budgets: Budgets | None) -> list[str]:
    """What is wrong with a compiled kernel, in words. `budgets` None: there are none for this version of Triton."""
    from .aot_variants import VARIANTS

    target, variant = TARGETS[measured.target], VARIANTS[measured.variant]
    found = []
    if measured.stack:
        found.append(f"registers are spilled: {measured.stack} bytes of stack")
    if measured.shared > target.max_shared:
        found.append(f"{measured.shared} bytes of shared memory, the card has {target.max_shared}")
    if budgets is not None and measured.target in budgets:
        budget = budgets[measured.target].get(measured.variant)
        if budget is None:
            found.append(f"no budget; {measured.registers} registers measured")
        elif measured.registers > budget:
            found.append(f"{measured.registers} registers, the budget is {budget}")
    if target.backend == "cuda" and measured.num_resident < variant.num_resident:
        found.append(f"{measured.num_resident} programs a multiprocessor, the planner counts on {variant.num_resident}")
    if variant.has_products:
        if measured.num_products + measured.num_wide_products == 0:
            found.append("the matrix unit is not used")
        if variant.is_wide and target.name == "sm_90" and measured.num_wide_products == 0:
            found.append("no product of a warp group (HGMMA)")
        if target.backend == "cuda" and measured.num_async_copies == 0:
            found.append("no asynchronous copies (LDGSTS): loads are not pipelined")
        elif target.backend == "cuda" and measured.num_wide_copies == 0:
            found.append("no asynchronous copies of 8 bytes or more: keys are read word by word")
    return [f"{measured.target} {measured.variant}: {text}" for text in found]


def read_budgets() -> dict[str, Budgets]:
    """Registers by version of Triton, as "3.9", target and variant."""
    budgets: dict[str, Budgets] = json.loads(BUDGETS_PATH.read_text(encoding="utf-8"))
    return budgets


def triton_version() -> str:
    """The one that is installed, as "3.9"."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


def _write_budgets(all_measured: list[Measured]) -> None:
    budgets: Budgets = {}
    for measured in all_measured:
        budgets.setdefault(measured.target, {})[measured.variant] = _rounded_up(measured.registers)
    all_budgets = read_budgets() | {triton_version(): budgets}
    BUDGETS_PATH.write_text(json.dumps(all_budgets, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tool(name: str, *arguments: str) -> str:
    """What one of the programs that Triton brings prints."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *arguments], capture_output=True, text=True, check=True).stdout


def _nvidia_field(usage: str, name: str) -> int:
    return max(int(value) for value in re.findall(rf"\b{name}:(\d+)", usage))


def _amd_field(text: str, name: str) -> int:
    return max(int(value) for value in re.findall(rf"\.{name}:\s*(\d+)", text))


def main(arguments: list[str] | None = None) -> int:
    """Compile, print one JSON line a kernel and what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m ramet.kernels.aot", description="Compile the Triton kernels.")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write-budgets", action="store_true", help="store the registers measured")
    options = parser.parse_args(arguments)
    from .triton.launch import IS_INTERPRETED

    if IS_INTERPRETED:
        parser.error("TRITON_INTERPRET is set, so there is nothing to compile; unset it")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        all_measured = list(pool.map(measure, jobs(options.targets)))
    if options.write_budgets:
        _write_budgets(all_measured)
    budgets = read_budgets().get(triton_version())
    if budgets is None:
        print(f"no budgets of registers for Triton {triton_version()}: they are not checked", file=sys.stderr)
    found = []
    for measured in all_measured:
        print(json.dumps(asdict(measured)))
        found += problems(measured, budgets)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
