"""Build the bindings for the torch of a Debian release in a container, and run programs there."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from orchestrator.provisioning.bindings_wheel import sources_digest

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parent.parent
BINDINGS = CHECKOUT / "bindings"
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


class Debian:
    """A Debian release with the bindings built for its torch.

    Raises:
        RuntimeError: if the image is neither present nor can be built, or the bindings do not build.
    """

    def __init__(self, suite: str) -> None:
        self.image = output_of(str(FOLDER / "image"), suite).splitlines()[-1]
        self.built = BUILT / suite
        stamp, origin = self.built.with_suffix(".of"), f"{self.image} {sources_digest()}"
        if not stamp.exists() or stamp.read_text() != origin:
            self.build()
            stamp.write_text(origin)

    def build(self) -> None:
        """Build the bindings; without optimization, compiling takes a fifth of the time."""
        shutil.rmtree(self.built, ignore_errors=True)
        self.built.mkdir(parents=True)
        mounts = (f"{BINDINGS}:/bindings:ro", f"{oneccl()}:/oneccl:ro", f"{self.built}:/built")
        output_of(*self.container(mounts, {"ONECCL_ROOT": "/oneccl", "CXXFLAGS": "-O0"}), "sh", "-ec", BUILD)

    def container(self, mounts: tuple[str, ...], variables: dict[str, str]) -> list[str]:
        options = ["--rm", "--init", "--shm-size", "1g", "--label", "orch.torches", "--workdir", "/tmp"]
        options += [f"--volume={mount}" for mount in mounts]
        return ["docker", "run", *options, *(f"--env={name}={value}" for name, value in variables.items()), self.image]

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in a container with the bindings and MPI, and return its exit code and output."""
        mpi = [f"{sys.prefix}/{folder}:/mpi/{folder}:ro" for folder in ("lib", "bin", "etc")]
        mounts = (f"{CHECKOUT}/tests/bindings/programs:/programs:ro", f"{self.built}:/built:ro", *mpi)
        return run_command(*self.container(mounts, VARIABLES), *command)


def run_command(*command: str) -> tuple[int, str]:
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
    code, text = run_command(*command)
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
