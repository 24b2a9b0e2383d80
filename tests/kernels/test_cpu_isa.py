"""Which builds of the C++ library a machine runs."""

from __future__ import annotations

import pytest

from ramet.kernels.cpu.errors import CpuLibraryError, UnsupportedIsaError
from ramet.kernels.cpu.isa import (
    ISAS,
    check_isa,
    flags_in_cpuinfo,
    flags_in_sysctl,
    isas_of_machine,
    machine_family,
    read_cpu_flags,
    supported_isas,
)

HASWELL = {"fpu", "sse4_2", "avx", "avx2", "fma", "f16c"}
CASCADE_LAKE = HASWELL | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
SAPPHIRE_RAPIDS = CASCADE_LAKE | {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"}


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", SAPPHIRE_RAPIDS, ("amx", "avx512", "avx2", "portable")),
        ("x86_64", SAPPHIRE_RAPIDS - {"amx_bf16"}, ("avx512", "avx2", "portable")),
        ("x86_64", CASCADE_LAKE - {"avx512_vnni"}, ("avx2", "portable")),
        ("x86_64", HASWELL, ("avx2", "portable")),
        ("x86_64", HASWELL - {"f16c"}, ("portable",)),
        ("aarch64", {"asimd", "asimddp", "asimdhp"}, ("neon", "portable")),
        ("aarch64", {"asimd"}, ("portable",)),
        ("aarch64", SAPPHIRE_RAPIDS, ("portable",)),
        ("riscv64", set(), ("portable",)),
    ],
)
def test_the_builds_a_machine_runs_best_first(machine: str, flags: set[str], expected: tuple[str, ...]) -> None:
    assert supported_isas(machine, flags) == expected


def test_this_machine_runs_at_least_the_portable_build() -> None:
    supported = supported_isas()
    assert supported[-1] == "portable"
    assert set(supported) <= {isa.name for isa in isas_of_machine(machine_family())}
    for name in supported:
        assert check_isa(name).cpu_flags <= read_cpu_flags()


def test_a_forced_build_must_exist_and_run_here() -> None:
    assert check_isa("avx2", ("avx2", "portable")) is ISAS["avx2"]
    with pytest.raises(UnsupportedIsaError, match=r"RAMET_CPU_ISA='avx512' does not run .* choose one of avx2"):
        check_isa("avx512", ("avx2", "portable"))
    with pytest.raises(
        UnsupportedIsaError, match="RAMET_CPU_ISA='sse9' is unknown; choose one of amx, avx512, avx2, neon"
    ):
        check_isa("sse9")
    assert issubclass(UnsupportedIsaError, CpuLibraryError)
    assert issubclass(UnsupportedIsaError, ValueError)


def test_a_build_for_a_processor_includes_those_below_it() -> None:
    """Else the code common to several would differ in more than what their names say."""
    assert set(ISAS["avx512"].compile_flags) < set(ISAS["amx"].compile_flags)
    assert ISAS["avx512"].cpu_flags < ISAS["amx"].cpu_flags
    assert not any(flag.startswith("-m") for flag in ISAS["portable"].compile_flags)
    assert not any(flag.startswith("-march=native") for isa in ISAS.values() for flag in isa.compile_flags)


def test_flags_are_those_that_every_processor_has() -> None:
    big = "processor\t: 0\nmodel name\t: Big\nflags\t\t: fpu avx2 avx512f\n"
    little = "processor\t: 1\nmodel name\t: Little flags\nflags\t\t: fpu avx2\n"
    assert flags_in_cpuinfo(big) == {"fpu", "avx2", "avx512f"}
    assert flags_in_cpuinfo(big + little) == {"fpu", "avx2"}
    assert flags_in_cpuinfo("Features\t: fp asimd asimddp\n") == {"fp", "asimd", "asimddp"}
    assert flags_in_cpuinfo("nothing of the kind") == frozenset()


def test_macos_names_are_translated() -> None:
    text = "hw.optional.avx2_0: 1\nhw.optional.fma: 1\nhw.optional.f16c: 1\nhw.optional.avx512f: 0\nhw.ncpu: 1\n"
    assert supported_isas("x86_64", flags_in_sysctl(text)) == ("avx2", "portable")
    text = "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_FP16: 1\n"
    assert supported_isas("aarch64", flags_in_sysctl(text)) == ("neon", "portable")
