"""The precision of a run, and the CPU flags that make BF16 fast.

If the nodes are known when a run is planned, the plan decides. Batch jobs and pods have `auto`:
their ranks inspect the assigned CPUs and decide together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

AUTO = "auto"
BF16 = "bf16"
FP32 = "fp32"
# The names in /proc/cpuinfo: Intel AMX, Intel and AMD AVX-512, ARM.
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
# CPU flag -> the flag of the instructions that it extends (Intel SDM, volume 1, chapter 5).
REQUIRED_FLAGS = {"avx512_bf16": "avx512f", "amx_bf16": "amx_tile"}
FLAGS_HINT = "Its kernel or its virtual machine is wrong; leave this node out."
# A placeholder for the arguments of the precision that the ranks will choose.
PLACEHOLDER = "--orch-precision=auto"


def bf16_flag(flags: Collection[str]) -> str | None:
    """Return the fastest instruction set for BF16 among these CPU flags, or None."""
    return next((flag for flag in BF16_FLAGS if flag in flags), None)


def check_flags(flags: Collection[str]) -> None:
    """Check that CPU flags do not contradict each other.

    Raises:
        ValueError: if a flag is present without the flag of the instructions that it extends.
    """
    for flag, base in REQUIRED_FLAGS.items():
        if flag in flags and base not in flags:
            raise ValueError(f"{flag} without {base}, which no CPU has")


def describe_lack(hosts: str) -> str:
    """Return why BF16 would be slow; `hosts` is a name or a folded list such as node[1-3]."""
    several = "," in hosts or "[" in hosts
    return f"{hosts} {'have' if several else 'has'} no BF16 instructions"


def insert_arguments(argv: list[str], arguments: Mapping[str, Sequence[str]], value: str) -> list[str]:
    """Return the command line with the arguments of a precision in place of the placeholder."""
    if PLACEHOLDER not in argv:
        return argv
    position = argv.index(PLACEHOLDER)
    return [*argv[:position], *arguments[value], *argv[position + 1 :]]
