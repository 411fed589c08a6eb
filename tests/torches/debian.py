"""Build the bindings for the torch of a Debian release in a container, and run programs of 2 ranks there."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.provisioning.bindings_wheel import sources_digest
from tests.torches.suite import Program

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parent.parent
BINDINGS = CHECKOUT / "bindings"
PROGRAMS = CHECKOUT / "tests" / "bindings" / "programs"
BUILT = CHECKOUT / "build" / "torches"
# Suite -> its release of torch, oldest first.
RELEASES = {"trixie": "2.6", "sid": "2.14"}
BUILD = """
cp -r /bindings /tmp/bindings && cd /tmp/bindings && rm -rf build
python3 setup.py --quiet build_ext --build-lib /built
cp oneccl_bindings_for_pytorch/*.py /built/oneccl_bindings_for_pytorch/
"""
# Debian builds torch without libuv.
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


class ImageUnavailable(Exception):
    """The image is neither present nor can it be built here."""


def image(suite: str) -> str:
    """Build the image of a suite if necessary, and return its name.

    Raises:
        ImageUnavailable: if the image is neither present nor can be built.
    """
    try:
        return output_of(str(FOLDER / "image"), suite).splitlines()[-1]
    except RuntimeError as error:
        raise ImageUnavailable(error) from error


class Debian:
    """A Debian release with the bindings built for its torch.

    Raises:
        RuntimeError: if the bindings do not build.
    """

    def __init__(self, suite: str, image: str) -> None:
        self.suite, self.image, self.origin = suite, image, f"Debian {suite}"
        self.built = BUILT / suite
        self.build()

    def build(self) -> None:
        """Build the bindings if the sources or the image have changed."""
        stamp, origin = self.built.with_suffix(".of"), f"{self.image} {sources_digest()}"
        if stamp.exists() and stamp.read_text() == origin:
            return
        shutil.rmtree(self.built, ignore_errors=True)
        self.built.mkdir(parents=True)
        mounts = {BINDINGS: "/bindings", oneccl(): "/oneccl"}
        # Without optimization, compiling takes a fifth of the time.
        variables = ("--env", "ONECCL_ROOT=/oneccl", "--env", "CXXFLAGS=-O0")
        output_of(*self.container(mounts, f"{self.built}:/built"), *variables, self.image, "sh", "-ec", BUILD)
        stamp.write_text(origin)

    def container(self, mounts: dict[Path, str], *writable: str) -> list[str]:
        command = ["docker", "run", "--rm", "--init", "--shm-size", "1g", "--label", "orch.torches"]
        for path, target in mounts.items():
            command += ["--volume", f"{path}:{target}:ro"]
        for mount in writable:
            command += ["--volume", mount]
        return command

    def run(self, program: Program) -> str:
        """Run a program and return its output.

        Raises:
            RuntimeError: if the program does not end as expected.
        """
        prefix = Path(sys.prefix)
        mounts = {
            PROGRAMS: "/programs",
            self.built: "/built",
            prefix / "lib": "/mpi/lib",
            prefix / "bin": "/mpi/bin",
            prefix / "etc": "/mpi/etc",
        }
        variables = [f"--env={name}={value}" for name, value in VARIABLES.items()]
        container = [*self.container(mounts), *variables, "--workdir", "/tmp", self.image]
        return program.check_output(*run_command([*container, *program.command("/mpi/bin/mpiexec.hydra", "/programs")]))

    def python(self, code: str) -> str:
        variables = ("--env", "PYTHONPATH=/built", "--env", "LD_LIBRARY_PATH=/mpi/lib")
        mounts = {self.built: "/built", Path(sys.prefix) / "lib": "/mpi/lib"}
        return output_of(*self.container(mounts), *variables, self.image, "python3", "-c", code).strip()


def run_command(command: list[str]) -> tuple[int, str]:
    process = subprocess.run(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1800,
    )
    return process.returncode, process.stdout


def output_of(*command: str) -> str:
    code, text = run_command(list(command))
    if code != 0:
        raise RuntimeError(f"{command[0]} ended with {code}: {text[-4000:]}")
    return text


@functools.cache
def oneccl() -> Path:
    """Return the folder of oneCCL's library, which setup.py downloads if it is missing."""
    arguments = "import runpy, sys; sys.argv = ['setup.py', '--quiet', '--version']; "
    print_root = "print(runpy.run_path('setup.py')['oneccl_root']())"
    process = subprocess.run(
        [sys.executable, "-c", arguments + print_root], cwd=BINDINGS, check=True, capture_output=True, text=True
    )
    return Path(process.stdout.splitlines()[-1])
