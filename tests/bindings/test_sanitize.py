"""Check the extension for data races and invalid memory accesses with the compiler's sanitizers, in bare ranks.

CI runs the cases of SHORT; `make sanitize` runs all.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.provisioning.bindings_wheel import sources_digest
from tests.bindings.conftest import PROGRAMS, clean_environment, commands, start, wait_all

CHECKOUT = Path(__file__).parents[2]
BINDINGS = CHECKOUT / "bindings"
BUILT = CHECKOUT / "build" / "sanitize"
RUNTIMES = {"thread": "libtsan.so", "address": "libasan.so"}
SUPPRESSIONS = Path(__file__).parent / "tsan.txt"
# sanitizer, program, arguments, ranks, a part of the output
SHORT = [("thread", "stress.py", ("60", "8"), 2, "[0] fine")]
LONG = [
    (kind, *case)
    for kind in ("thread", "address")
    for case in (
        ("stress.py", (), 3, "[2] fine"),
        ("work_objects.py", (), 2, "fine"),
        ("again_and_again.py", (), 2, "fine"),
        ("endings.py", ("late-twice", "3"), 3, "missing: rank 1 ("),
        ("endings.py", ("raise",), 3, ": rank 1 ("),
        ("endings.py", ("kill",), 3, "its process has ended"),
        ("endings.py", ("pending",), 2, "leaves work pending"),
        ("shared.py", ("same-bits",), 2, "[1] fine"),
        ("heap.py", ("collectives",), 2, "[1] fine"),
        ("heap.py", ("ddp",), 2, "[1] fine"),
        ("heap.py", ("given_up",), 2, "[1] fine"),
        ("heap.py", ("interrupted",), 2, "[1] fine"),
        ("hostile.py", ("offsets",), 2, "[1] fine"),
    )
]
USE_SHARED_MEMORY = ("shared.py", "heap.py", "hostile.py")
CASES = SHORT + (LONG if "ORCH_SANITIZE_ALL" in os.environ else [])


def build(kind: str) -> Path:
    """Build the extension, if its sources have changed, and return the folder for PYTHONPATH."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_if_changed(kind)


def build_if_changed(kind: str) -> Path:
    folder, stamp = BUILT / kind, BUILT / f"{kind}.of"
    digest = sources_digest()
    if stamp.exists() and stamp.read_text() == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    copy = BUILT / "bindings"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(BINDINGS, copy, ignore=shutil.ignore_patterns("__pycache__", "lib.*", "temp.*", "bdist.*"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", str(folder), str(copy)],
        env={**os.environ, "ORCH_CCL_SANITIZE": kind},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stamp.write_text(digest)
    return folder


def environment(kind: str, logs: Path) -> dict[str, str]:
    """Return the environment of the ranks.

    The sanitizer ignores torch, MPI and Python, which are not built for it. A report does not end the
    rank, because that would hide the reports of other ranks.
    """
    command = [*os.environ.get("CXX", "g++").split(), f"-print-file-name={RUNTIMES[kind]}"]
    runtime = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    common = f"log_path={logs}/report exitcode=0"
    return clean_environment(
        {
            "PYTHONPATH": str(build(kind)),
            "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib"),
            "LD_PRELOAD": f"{runtime} libstdc++.so.6",  # the runtime looks up its exceptions when it is loaded
            "CCL_ATL_TRANSPORT": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "lo",  # groups that are created without init_process_group() do not choose an interface
            "TSAN_OPTIONS": f"{common} ignore_noninstrumented_modules=1 report_signal_unsafe=0 "
            f"suppressions={SUPPRESSIONS}",
            "ASAN_OPTIONS": f"{common} detect_leaks=0",
        }
    )


@pytest.mark.parametrize(
    ("kind", "program", "args", "ranks", "message"),
    CASES,
    ids=["-".join((case[0], case[1].removesuffix(".py"), *case[2])) for case in CASES],
)
def test_the_extension_under_a_sanitizer(
    kind: str, program: str, args: tuple[str, ...], ranks: int, message: str, tmp_path: Path
) -> None:
    env = environment(kind, tmp_path) | {"ORCH_CCL_SHARED_MEMORY": str(int(program in USE_SHARED_MEMORY))}
    # The sanitizer's shadow memory needs fixed addresses.
    processes = [
        start(["setarch", "--addr-no-randomize", *command], tmp_path / "output", env=variables, cwd=tmp_path)
        for command, variables in commands("bare", ranks, [str(PROGRAMS / program), *args], env)
    ]
    error = wait_all(processes, 300)
    text = (tmp_path / "output").read_text(errors="replace")
    assert not error, f"{error}\n{text}"
    reports = [path.read_text(errors="replace") for path in tmp_path.glob("report.*")]
    assert not reports, reports[0]
    assert message in text
