"""Build `oneccl_bind_pt`: the C++ extension for the installed torch, and the kernels."""

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

BINDINGS = Path(__file__).resolve().parent
sys.path.insert(0, str(BINDINGS))  # pip does not add it
import needed  # noqa: E402

RELEASE = 10  # of these bindings, counted per release of torch
ONECCL = "2022.1.2"  # version of oneccl-devel; recorded in the wheel
ONECCL_SHA256 = "bdf97644da971fc112b6bd53d6e22e8ff032fb8f32442bb914e98727442c229d"
PACKAGE = "oneccl_bindings_for_pytorch"
KERNELS_PACKAGE = "orch_kernels"
# Without traps, gcc also vectorizes loops with conditions for AVX2. The kernels read BF16 numbers as words, too.
KERNELS_FLAGS = ["-std=c++20", "-fvisibility=hidden", "-Wall", "-fopenmp", "-fno-trapping-math", "-fno-strict-aliasing"]
LIBRARY = Path("lib/ccl/cpu/lib/libccl.a")
ONECCL_BFLOAT16 = "_Z15ccl_bf16_reducePKvmPvPmN3ccl2v19reductionE"  # oneCCL's bfloat16 reduction


def import_torch():
    try:
        import torch
    except ImportError:
        sys.exit(
            "oneccl_bind_pt: torch is not installed in this environment. Install torch first, because "
            "the bindings are built for the installed one. Tools that build in an isolated environment "
            "(uv, build) need `--no-build-isolation`, and setuptools in the environment of torch."
        )
    return torch


def oneccl_root() -> Path:
    """Return the folder of oneCCL's headers and CPU library; download them if there is none."""
    roots = [os.environ.get("ONECCL_ROOT"), os.environ.get("CCL_ROOT"), sys.prefix]
    for root in filter(None, roots):
        if (Path(root) / LIBRARY).is_file():
            return Path(root)
    return fetch_oneccl()


def fetch_oneccl() -> Path:
    """Download and unpack oneccl-devel without its dependencies: 1.4 GB of SYCL, unused here."""
    root = BINDINGS / "build" / f"oneccl-devel-{ONECCL}"
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


def build_hwloc_stub() -> Path:
    """Build an empty libhwloc.so.15 to link against; the real one is needed only at run time."""
    path = BINDINGS / "build" / "libhwloc.so.15"
    path.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CXX", "g++").split()
    flags = ["-shared", "-Wl,-soname,libhwloc.so.15", "-x", "c++", os.devnull, "-o", str(path)]
    subprocess.run([*compiler, *flags], check=True)
    return path


def write_built_module(version: str, torch_version: str) -> None:
    text = (
        '"""The versions that this wheel was built for; written by setup.py."""\n\n'
        f'VERSION = "{version}"\nTORCH = "{torch_version}"\nONECCL = "{ONECCL}"\n'
    )
    for package in (PACKAGE, KERNELS_PACKAGE):
        (BINDINGS / package / "_built.py").write_text(text)


def write_single_unit(folder: str) -> Path:
    """Combine the sources of a folder in one file, so that torch's headers, most of the work, are compiled once."""
    path = BINDINGS / "build" / f"{folder}.cpp"
    path.parent.mkdir(exist_ok=True)
    sources = sorted((BINDINGS / folder).glob("*.cpp"))
    path.write_text("".join(f'#include "{source.name}"\n' for source in sources))
    return path.relative_to(BINDINGS)


def backend_extension(version: str, oneccl: Path):
    from torch.utils.cpp_extension import CppExtension

    # $ORIGIN is the folder of the module: <venv>/lib/python3.x/site-packages/<package> -> <venv>/lib.
    # DT_RPATH instead of DT_RUNPATH, because it also applies to the libraries that libmpi opens.
    depth = len(Path(sysconfig.get_path("platlib")).relative_to(sys.prefix).parts)
    to_venv_lib = "$ORIGIN/" + "../" * depth + "lib" if depth else "$ORIGIN"
    return CppExtension(
        name=f"{PACKAGE}._ccl",
        sources=[str(write_single_unit("csrc"))],
        include_dirs=[str(BINDINGS / "csrc"), str(oneccl / "include")],
        extra_objects=[str(oneccl / LIBRARY), "-Wl,--no-as-needed", str(build_hwloc_stub())],
        libraries=["dl", "rt", "pthread"],
        define_macros=[("ORCH_CCL_VERSION", f'"{version}"')],
        extra_compile_args={"cxx": ["-std=c++20", "-fvisibility=hidden", "-Wall", *optimization_flags()]},
        extra_link_args=[
            "-Wl,--exclude-libs,ALL",  # another oneCCL in the process must not use our symbols
            f"-Wl,--wrap={ONECCL_BFLOAT16}",  # csrc/oneccl_bfloat16.cpp
            "-Wl,--disable-new-dtags",
            f"-Wl,-rpath,$ORIGIN/../../..:{to_venv_lib}",
            "-Wl,--no-undefined-version",
            *(sanitizer_flags() or ["-s"]),
        ],
    )


def kernels_extension():
    """Return the kernels' library, which needs only torch and uses the OpenMP runtime of torch."""
    from torch.utils.cpp_extension import CppExtension

    return CppExtension(
        name=f"{KERNELS_PACKAGE}._kernels",
        sources=[str(write_single_unit("kernels"))],
        include_dirs=[str(BINDINGS / "kernels")],
        extra_compile_args={"cxx": [*KERNELS_FLAGS, *optimization_flags("-O3")]},
        extra_link_args=["-s"],
    )


def optimization_flags(level: str = "-O2") -> list[str]:
    """Return compiler flags; the user's CXXFLAGS come last and take precedence."""
    # Reports of sanitizers need only functions and lines: -g1.
    defaults = ["-O0", "-g1", *sanitizer_flags()] if sanitizer_flags() else [level, "-g0"]
    return [*defaults, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def sanitizer_flags() -> list[str]:
    """Return the flags of the sanitizer ("thread" or "address") that `make sanitize` requests."""
    kind = os.environ.get("ORCH_CCL_SANITIZE")
    return [f"-fsanitize={kind}", "-fno-omit-frame-pointer"] if kind else []


def max_jobs() -> int:
    """Return the number of parallel compilers: one per core and at most one per 2 GiB of memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // 2**31))


def main() -> None:
    if missing := needed.missing_build_tools():
        sys.exit(f"oneccl_bind_pt: {needed.describe(missing)}")
    torch = import_torch()
    from torch.utils.cpp_extension import BuildExtension

    torch_version = torch.__version__.split("+")[0]
    version = f"{torch_version}+orch.{RELEASE}"
    write_built_module(version, torch_version)
    minor = re.match(r"\d+\.\d+", torch_version).group()
    setup(
        version=version,
        packages=[PACKAGE, f"{PACKAGE}.env", KERNELS_PACKAGE],
        py_modules=["oneccl_bind_pt_autoload"],
        package_data={f"{PACKAGE}.env": ["setvars.sh"]},
        ext_modules=[
            backend_extension(version, oneccl_root()),
            # No program that runs under a sanitizer uses the kernels.
            *([] if sanitizer_flags() else [kernels_extension()]),
        ],
        # torch is not a requirement, because the check at import gives a better error than pip's resolver.
        # tcmlib (from 1.3) contains libhwloc, which oneCCL needs.
        install_requires=["impi-rt>=2021.14", "tcmlib>=1.3"],
        keywords=[f"torch {minor}", f"oneCCL {ONECCL}"],
        # ninja would compile one extension after the other.
        cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
        options={"build_ext": {"parallel": int(os.environ.get("MAX_JOBS") or max_jobs())}},
    )


main()
