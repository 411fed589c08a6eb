"""Makes the environment of an image smaller: `python3 slim.py FOLDER`, while the image is built.

Runs with whatever Python the image has, 3.7 or newer, and needs nothing else. What goes: tests,
static libraries, offloading to GPUs. Wheels cannot hold symbolic links, so the same library
comes under several names: one file is kept. pip has compiled nothing (--no-compile): of
Python's byte code the image gets that of what ranks import, not that of all that could be.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = ("test", "tests")
# For GPUs: libomptarget, libur, torchao's _C, fatbin, bc. Tools: Intel's benchmarks, tuner of MPI
# and its other bootstrap (I_MPI_MPCP, off), protoc, TensorBoard's fast reader, without which it
# reads as well, and what installing has left of pip's byte code. torch's headers stay: Inductor
# compiles against them where an image of one's own adds g++.
UNUSED = (
    "*.a",
    "*.fatbin",
    "*.bc",
    "*.dbg",
    "libomptarget*",
    "libur_*",
    "torchao/_C_cutlass*",
    "torchao/_C_mxfp8*",
    "libtcm_debug*",
    "libmpcp*.so",
    "IMB-*",
    "mpitune_fast",
    "torch/bin/test_*",
    "torch/bin/*Test",
    "torch/bin/protoc*",
    "torch/lib/lib*_test.so",
    "tensorboard_data_server/bin/server",
    "site-packages/pip/**/*.pyc",
)
SMALLEST_LINK = 1 << 16
# What the programs and recipes of orch import, each by itself: a stack may lack some.
IMPORTED = (
    "torch.distributed.run",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.utils.tensorboard",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "accelerate",
    "datasets",
    "torchmetrics",
    "torchao.quantization",
    "oneccl_bindings_for_pytorch",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)


def main(folder: Path) -> None:
    remove_tests(folder)
    for pattern in UNUSED:
        for path in list(folder.rglob(pattern)):
            if path.is_file():
                path.unlink()
    link_copies(folder)
    python = folder / "bin" / "python3"
    if python.exists():
        compile_imported(python)


def remove_tests(folder: Path) -> None:
    """Also those of packages that have them beside their modules."""
    found = [path for path in folder.rglob("site-packages/**/*") if path.name in TESTS]
    for path in found:
        if path.is_dir():
            shutil.rmtree(str(path))


def link_copies(folder: Path) -> None:
    """Equal libraries of a folder become links to the one with the longest name, its version."""
    for parent in sorted({path.parent for path in folder.rglob("*.so*")}):
        kept: list[Path] = []
        for path in sorted(parent.glob("*.so*"), key=lambda one: -len(one.name)):
            if path.is_symlink() or path.stat().st_size < SMALLEST_LINK:
                continue
            same = [one for one in kept if filecmp.cmp(str(one), str(path), shallow=False)]
            if same:
                path.unlink()
                path.symlink_to(same[0].name)
            else:
                kept.append(path)


def compile_imported(python: Path) -> None:
    """Import writes byte code; what this stack does not have, or not yet, is left out."""
    for name in IMPORTED:
        subprocess.run(
            [str(python), "-c", "import " + name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, HF_HUB_OFFLINE="1"),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
