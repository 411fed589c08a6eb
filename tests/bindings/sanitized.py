"""The extension under a sanitizer of the compiler's: built apart, run by bare ranks."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.provisioning.bindings_wheel import sources_digest
from tests.bindings.conftest import PROGRAMS, clean_environment, commands, wait_all

CHECKOUT = Path(__file__).parents[2]
BINDINGS = CHECKOUT / "bindings"
BUILT = CHECKOUT / "build" / "sanitize"
RUNTIMES = {"thread": "libtsan.so", "address": "libasan.so"}
SUPPRESSIONS = Path(__file__).parent / "tsan.txt"


def build(kind: str) -> Path:
    """-> the folder to put on PYTHONPATH. Made anew where the sources are others than last time;
    of several tests at once the first one makes it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return built(kind)


def built(kind: str) -> Path:
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


def runtime(kind: str) -> str:
    compiler = os.environ.get("CXX", "g++").split()
    asked = [*compiler, f"-print-file-name={RUNTIMES[kind]}"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return f"{found} libstdc++.so.6"  # whose exceptions it must find when it is loaded itself


def environment(kind: str, logs: Path) -> dict[str, str]:
    """Only what the extension itself does is looked at: not torch, MPI and Python, which are not
    built for it. A report alone fails no rank, which would hide those of the others."""
    common = f"log_path={logs}/report exitcode=0"
    return clean_environment(
        {
            "PYTHONPATH": str(build(kind)),
            "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib"),
            "LD_PRELOAD": runtime(kind),
            "CCL_ATL_TRANSPORT": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "lo",  # groups made without init_process_group() do not choose an interface
            "TSAN_OPTIONS": f"{common} ignore_noninstrumented_modules=1 report_signal_unsafe=0 "
            f"suppressions={SUPPRESSIONS}",
            "ASAN_OPTIONS": f"{common} detect_leaks=0",
        }
    )


def reports(
    kind: str, program: str, *args: str, ranks: int, logs: Path, also: Mapping[str, str]
) -> tuple[str, list[str]]:
    """`also`: for the ranks' environment. -> (what they printed, what the sanitizer found)."""
    env, output = environment(kind, logs) | also, logs / "output"
    processes = []
    # Its shadow memory belongs where address space randomisation may have put something.
    for command, variables in commands("bare", ranks, [str(PROGRAMS / program), *args], env):
        with output.open("ab") as file:
            processes.append(
                subprocess.Popen(
                    ["setarch", "--addr-no-randomize", *command],
                    env=variables,
                    cwd=logs,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            )
    late = wait_all(processes, 300)
    text = output.read_text(errors="replace")
    assert not late, f"{late}\n{text}"
    return text, [path.read_text(errors="replace") for path in logs.glob("report.*")]
