"""One Debian with its own torch: its image, our bindings built in it, and programs of 2 ranks."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.provisioning.bindings_wheel import sources_digest
from tests.torches.suite import Program

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
BINDINGS = CHECKOUT / "bindings"
PROGRAMS = CHECKOUT / "tests" / "bindings" / "programs"
BUILT = CHECKOUT / "build" / "torches"
# Suite -> the release of torch that it has, oldest first.
RELEASES = {"trixie": "2.6", "sid": "2.14"}
BUILD = """
cp -r /bindings /tmp/bindings && cd /tmp/bindings && rm -rf build
python3 setup.py --quiet build_ext --build-lib /built
cp oneccl_bindings_for_pytorch/*.py /built/oneccl_bindings_for_pytorch/
"""
# Debian's torch is built without libuv.
VARIABLES = {
    "PYTHONPATH": "/built",
    "LD_LIBRARY_PATH": "/mpi/lib",
    "USE_LIBUV": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "PYTHONWARNINGS": "ignore",
}


class NotToBeHad(Exception):
    """The image can neither be found nor made here."""


def image(suite: str) -> str:
    """Raises NotToBeHad."""
    try:
        return said(str(HERE / "image"), suite).splitlines()[-1]
    except RuntimeError as error:
        raise NotToBeHad(error) from error


class Debian:
    """Raises RuntimeError where the bindings do not build."""

    def __init__(self, suite: str, image: str) -> None:
        self.suite, self.image, self.origin = suite, image, f"Debian {suite}"
        self.built = BUILT / suite
        self.build()

    def build(self) -> None:
        """Anew where the sources, or the image, are others than last time."""
        stamp, made_of = self.built.with_suffix(".of"), f"{self.image} {sources_digest()}"
        if stamp.exists() and stamp.read_text() == made_of:
            return
        shutil.rmtree(self.built, ignore_errors=True)
        self.built.mkdir(parents=True)
        mounts = {BINDINGS: "/bindings", oneccl(): "/oneccl"}
        # What the code does is the same, and compiling it takes a fifth of the time.
        given = ("--env", "ONECCL_ROOT=/oneccl", "--env", "CXXFLAGS=-O0")
        said(*self.container(mounts, f"{self.built}:/built"), *given, self.image, "sh", "-ec", BUILD)
        stamp.write_text(made_of)

    def container(self, mounts: dict[Path, str], *writable: str) -> list[str]:
        words = ["docker", "run", "--rm", "--init", "--shm-size", "1g", "--label", "orch.torches"]
        for path, there in mounts.items():
            words += ["--volume", f"{path}:{there}:ro"]
        for mount in writable:
            words += ["--volume", mount]
        return words

    def run(self, program: Program) -> str:
        """What was printed; raises RuntimeError unless the program ended as it should."""
        prefix = Path(sys.prefix)
        mounts = {
            PROGRAMS: "/programs",
            self.built: "/built",
            prefix / "lib": "/mpi/lib",
            prefix / "bin": "/mpi/bin",
            prefix / "etc": "/mpi/etc",
        }
        given = [f"--env={name}={value}" for name, value in VARIABLES.items()]
        asked = [*self.container(mounts), *given, "--workdir", "/tmp", self.image]
        return program.judged(*result([*asked, *program.command("/mpi/bin/mpiexec.hydra", "/programs")]))

    def python(self, code: str) -> str:
        given = ("--env", "PYTHONPATH=/built", "--env", "LD_LIBRARY_PATH=/mpi/lib")
        mounts = {self.built: "/built", Path(sys.prefix) / "lib": "/mpi/lib"}
        return said(*self.container(mounts), *given, self.image, "python3", "-c", code).strip()


def result(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1800,
    )
    return done.returncode, done.stdout


def said(*command: str) -> str:
    code, text = result(list(command))
    if code != 0:
        raise RuntimeError(f"{command[0]} ended with {code}: {text[-4000:]}")
    return text


@functools.cache
def oneccl() -> Path:
    """oneCCL's library for linking, which setup.py fetches where it is not yet."""
    found = "import runpy, sys; sys.argv = ['setup.py', '--quiet', '--version']; "
    root = "print(runpy.run_path('setup.py')['oneccl_root']())"
    done = subprocess.run(
        [sys.executable, "-c", found + root], cwd=BINDINGS, check=True, capture_output=True, text=True
    )
    return Path(done.stdout.splitlines()[-1])
