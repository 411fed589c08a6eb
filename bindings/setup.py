"""Build `oneccl_bind_pt`: a C++ extension on the torch at hand and oneCCL's static CPU library, and
a kernel for dropout."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # pip's front end leaves it out
import needed  # noqa: E402

RELEASE = 10  # of these bindings, for one and the same torch
ONECCL = "2022.1.2"  # of oneccl-devel; the wheel remembers it
ONECCL_SHA256 = "bdf97644da971fc112b6bd53d6e22e8ff032fb8f32442bb914e98727442c229d"
PACKAGE = "oneccl_bindings_for_pytorch"
LIBRARY = Path("lib/ccl/cpu/lib/libccl.a")
ONECCL_BFLOAT16 = "_Z15ccl_bf16_reducePKvmPvPmN3ccl2v19reductionE"  # its reduction of bfloat16


def need_tools() -> None:
    if lacking := needed.to_build():
        sys.exit(f"oneccl_bind_pt: {needed.told(lacking)}")


def need_torch():
    try:
        import torch
    except ImportError:
        sys.exit(
            "oneccl_bind_pt: no torch in this environment, and it is built for the one that is "
            "there. Install torch first; what builds in an environment of its own (uv, build) "
            "needs `--no-build-isolation`, and setuptools beside torch."
        )
    return torch


def oneccl_root() -> Path:
    """Where oneCCL's headers and CPU library are: given, in this environment, or fetched."""
    roots = [os.environ.get("ONECCL_ROOT"), os.environ.get("CCL_ROOT"), sys.prefix]
    for root in filter(None, roots):
        if (Path(root) / LIBRARY).is_file():
            return Path(root)
    return fetch_oneccl()


def fetch_oneccl() -> Path:
    """Unpack the wheel oneccl-devel alone; its dependencies are 1.4 GB of SYCL, unused here."""
    root = HERE / "build" / f"oneccl-devel-{ONECCL}"
    if not (root / LIBRARY).is_file():
        wheels = root / "wheel"
        wheels.mkdir(parents=True, exist_ok=True)
        requirement = wheels / "requirements.txt"
        requirement.write_text(f"oneccl-devel=={ONECCL} --hash=sha256:{ONECCL_SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        pip += ["--require-hashes", "--dest", str(wheels), "--requirement", str(requirement)]
        subprocess.run(pip, check=True)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(root / "unpacked")
        for data in (root / "unpacked").glob("*.data/data"):
            shutil.copytree(data, root, dirs_exist_ok=True)
        shutil.rmtree(root / "unpacked")
        shutil.rmtree(wheels)
    return root


def hwloc_stand_in() -> Path:
    """An empty libhwloc.so.15 to link against: only running needs the real one."""
    path = HERE / "build" / "libhwloc.so.15"
    path.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "g++").split()
    flags = ["-shared", "-Wl,-soname,libhwloc.so.15", "-x", "c++", os.devnull, "-o", str(path)]
    subprocess.run([*compiler, *flags], check=True)
    return path


def remember(version: str, torch_version: str) -> None:
    text = (
        '"""Written by setup.py: what this wheel was built for."""\n\n'
        f'VERSION = "{version}"\nTORCH = "{torch_version}"\nONECCL = "{ONECCL}"\n'
    )
    (HERE / PACKAGE / "_built.py").write_text(text)


def unit() -> Path:
    """All sources as one: torch's headers, most of the work of compiling any, are read once."""
    path = HERE / "build" / "ccl.cpp"
    path.parent.mkdir(exist_ok=True)
    sources = sorted((HERE / "csrc").glob("*.cpp"))
    path.write_text("".join(f'#include "{source.name}"\n' for source in sources))
    return path.relative_to(HERE)


def extension(version: str, root: Path):
    from torch.utils.cpp_extension import CppExtension

    # The loader starts from the module: <venv>/lib/python3.x/site-packages/<package> -> <venv>/lib.
    # DT_RPATH rather than DT_RUNPATH, because it also serves the libraries that libmpi opens.
    depth = len(Path(sysconfig.get_path("platlib")).relative_to(sys.prefix).parts)
    to_venv_lib = "$ORIGIN/" + "../" * depth + "lib" if depth else "$ORIGIN"
    return CppExtension(
        name=f"{PACKAGE}._ccl",
        sources=[str(unit())],
        include_dirs=[str(HERE / "csrc"), str(root / "include")],
        extra_objects=[str(root / LIBRARY), "-Wl,--no-as-needed", str(hwloc_stand_in())],
        libraries=["dl", "rt", "pthread"],
        define_macros=[("ORCH_CCL_VERSION", f'"{version}"')],
        extra_compile_args={"cxx": ["-std=c++20", "-fvisibility=hidden", "-Wall", *optimised()]},
        extra_link_args=[
            "-Wl,--exclude-libs,ALL",  # another oneCCL in the process must not meet ours
            f"-Wl,--wrap={ONECCL_BFLOAT16}",  # csrc/oneccl_bfloat16.cpp
            "-Wl,--disable-new-dtags",
            f"-Wl,-rpath,$ORIGIN/../../..:{to_venv_lib}",
            "-Wl,--no-undefined-version",
            *(sanitized() or ["-s"]),
        ],
    )


def dropout():
    """A library that needs torch alone; OpenMP's symbols are those of torch's runtime."""
    from torch.utils.cpp_extension import CppExtension

    return CppExtension(
        name=f"{PACKAGE}._dropout",
        sources=["kernels/dropout.cpp"],
        depends=["kernels/threefry.h"],
        extra_compile_args={"cxx": ["-std=c++20", "-fvisibility=hidden", "-Wall", "-fopenmp", *optimised("-O3")]},
        extra_link_args=["-s"],
    )


def optimised(level: str = "-O2") -> list[str]:
    """The user's CXXFLAGS come last, so theirs count."""
    ours = ["-O1", "-g1", *sanitized()] if sanitized() else [level, "-g0"]
    return [*ours, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def sanitized() -> list[str]:
    """`make sanitize`: "thread" or "address". Reports want functions and lines alone (-g1), and
    dropout, which none of its programs uses, is not built."""
    kind = os.environ.get("ORCH_CCL_SANITIZE")
    return [f"-fsanitize={kind}", "-fno-omit-frame-pointer"] if kind else []


def jobs() -> int:
    """Compilers at once: one for each core, as far as memory goes (torch's headers want some)."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // 2**31))


def main() -> None:
    need_tools()
    os.environ.setdefault("MAX_JOBS", str(jobs()))
    torch = need_torch()
    from torch.utils.cpp_extension import BuildExtension

    torch_version = torch.__version__.split("+")[0]
    version = f"{torch_version}+orch.{RELEASE}"
    remember(version, torch_version)
    minor = re.match(r"\d+\.\d+", torch_version).group()
    setup(
        version=version,
        packages=[PACKAGE, f"{PACKAGE}.env"],
        py_modules=["oneccl_bind_pt_autoload"],
        package_data={f"{PACKAGE}.env": ["setvars.sh"]},
        ext_modules=[extension(version, oneccl_root()), *([] if sanitized() else [dropout()])],
        # No requirement on torch itself: the check at import says more than pip's resolver could.
        # libhwloc, which oneCCL wants, is in tcmlib (from 1.3 on): root need not install it.
        install_requires=["impi-rt>=2021.14", "tcmlib>=1.3"],
        keywords=[f"torch {minor}", f"oneCCL {ONECCL}"],
        cmdclass={"build_ext": BuildExtension.with_options(use_ninja=shutil.which("ninja") is not None)},
    )


main()
