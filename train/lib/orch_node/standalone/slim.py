"""Reduce the size of an environment while an image is built: `python3 slim.py FOLDER`.

Runs with the image's Python, 3.7 or newer, without other packages. Deletes tests, static libraries and offloading to
GPUs. Replaces copies of a library by links, which wheels cannot contain. pip compiles nothing (--no-compile): the image
gets bytecode only of the modules that ranks import.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = ("test", "tests")
# For GPUs: libomptarget, libur, torchao's _C, fatbin, bc. Tools: Intel's benchmarks, the tuner and the alternative
# bootstrap of MPI (I_MPI_MPCP, off), protoc, TensorBoard's fast reader, which is optional, and the bytecode of pip.
# torch's headers stay: Inductor compiles against them in images that add g++.
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
SMALLEST_LINKED_BYTES = 1 << 16
# Modules that orch's programs and recipes import; each is imported separately, because a stack may lack some.
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
    """Reduce the environment in a folder."""
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
    """Delete the folders of tests in all packages."""
    for path in [path for path in folder.rglob("site-packages/**/*") if path.name in TESTS]:
        if path.is_dir():
            shutil.rmtree(str(path))


def link_copies(folder: Path) -> None:
    """Replace equal libraries of a folder by links to the one with the longest name, which has the full version."""
    for parent in sorted({path.parent for path in folder.rglob("*.so*")}):
        originals: list[Path] = []
        for path in sorted(parent.glob("*.so*"), key=lambda path: -len(path.name)):
            if path.is_symlink() or path.stat().st_size < SMALLEST_LINKED_BYTES:
                continue
            equal = [original for original in originals if filecmp.cmp(str(original), str(path), shallow=False)]
            if equal:
                path.unlink()
                path.symlink_to(equal[0].name)
            else:
                originals.append(path)


def compile_imported(python: Path) -> None:
    """Import each module to write its bytecode; modules that the stack lacks are skipped."""
    for name in IMPORTED:
        subprocess.run(
            [str(python), "-c", "import " + name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, HF_HUB_OFFLINE="1"),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
