"""Measure commands in interleaved runs, and report medians and their ratios."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "train" / "lib"))

from orch_node.protocol.layout import BF16, FP32, bf16_flag
from orch_node.standalone import facts

# Instruction sets that determine the speed of torch and the bindings, with their names in /proc/cpuinfo.
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16")
INSTRUCTION_SETS += ("amx_bf16", "amx_int8", "asimd", "sve", "bf16")


def describe_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU model, its instruction sets and its number of cores, for a heading."""
    fields = cpu_fields(cpuinfo)
    model = fields.get("model name") or fields.get("CPU part") or "unknown CPU"
    if "cpu family" in fields:
        model += f" (family {fields['cpu family']} model {fields.get('model', '?')})"
    flags = cpu_flags(fields)
    sets = [name for name in INSTRUCTION_SETS if name in flags] or ["no known instruction sets"]
    cores = os.cpu_count()
    return f"{model}, {' '.join(sets)}, {cores} core{'' if cores == 1 else 's'}"


def cpu_fields(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_flags(fields: Mapping[str, str]) -> list[str]:
    """Return the flags of a CPU on x86 or ARM."""
    return (fields.get("flags") or fields.get("Features", "")).split()


def native_precision() -> str:
    """Return "bf16" if this CPU has instructions for it and ORCH_CPU_ISA allows them, otherwise "fp32"."""
    return BF16 if bf16_flag(facts.cpu_flags()) else FP32


def free_port() -> int:
    """Return a port of this host that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def interleaved(cases: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run the cases in turns, so that a disturbance affects all of them; return all results by case."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, measure in cases.items():
            figures[name].append(measure())
    return figures


def seconds(command: Sequence[str], **options: object) -> float:
    """Return the elapsed time of a command, or end with its output if it fails."""
    began = time.perf_counter()
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        sys.exit(f"{result.stdout}\n{command[0]} ended with exit code {result.returncode}")
    return time.perf_counter() - began


def report(title: str, unit: str, figures: Mapping[str, list[float]], base: str) -> None:
    """Print a table of medians with their ratio to the case `base`, or JSON with --json."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    if "--json" in sys.argv:
        about = {"schema": 1, "title": title, "unit": unit, "machine": describe_machine()}
        print(json.dumps({**about, "medians": medians, "all": dict(figures), "base": base}))
        return
    print(f"\n{title} ({unit}, median of {len(figures[base])})")
    print(f"  on {describe_machine()}")
    for name, median in medians.items():
        spread = f"{min(figures[name]):.3f}..{max(figures[name]):.3f}"
        print(f"  {name:45} {median:9.3f}  {median / medians[base]:6.3f} x  {spread}")


def arguments(**more: int | bool | str) -> argparse.Namespace:
    """Parse the command line, with more options by their default values; False makes a switch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    for name, default in more.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()
