"""Check that libraries that are linked for a release run on hosts with glibc 2.28."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bindings import manylinux

# Each of these functions has a newer version in newer libraries, or none at all in those of 2018.
PROGRAM = r"""
#include <cmath>
#include <condition_variable>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <dlfcn.h>
#include <sys/stat.h>

extern "C" int run(double x) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock<std::mutex> lock(mutex);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  if (condition.wait_until(lock, end) != std::cv_status::timeout || std::chrono::steady_clock::now() < end)
    return 1;
  std::ostringstream text;
  std::thread([&text, x] { text << std::pow(x, std::log2(std::exp(x))); }).join();
  struct stat file;
  if (fstat(0, &file) != 0 || (file.st_mode & S_IFMT) != S_IFCHR || !dlopen(nullptr, RTLD_NOW))
    return 2;
  try {
    throw std::runtime_error(text.str());
  } catch (const std::exception& error) {
    return std::string(error.what()) == "1" ? 0 : 3;
  }
}
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    manylinux.write_stubs(folder)
    return folder


def build(folder: Path, stubs: Path, program: str) -> Path:
    source, library = folder / "library.cpp", folder / "library.so"
    source.write_text(program)
    options = ["-shared", "-fPIC", "-O1", "-std=c++20", f"-L{stubs}", "-Wl,--exclude-libs,ALL"]
    subprocess.run(["g++", *options, source, "-o", library], check=True)
    return library


def test_library_needs_no_newer_symbols_than_torch(stubs: Path, tmp_path: Path) -> None:
    library = build(tmp_path, stubs, PROGRAM)
    needed = [symbol for symbol in manylinux.read_symbols(library) if not symbol.is_defined and symbol.version]
    assert {"exp", "pow", "dlopen"} <= {symbol.name for symbol in needed}
    assert [f"{symbol.name} {symbol.version}" for symbol in needed if not symbol.is_old] == []
    assert manylinux.newer_symbols(library) == []
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).run(ctypes.c_double(1.0)))"
    assert subprocess.run([sys.executable, "-c", code, library], stdin=subprocess.DEVNULL).returncode == 0


def test_function_that_glibc_2_28_lacks_is_named(stubs: Path, tmp_path: Path) -> None:
    program = '#include <unistd.h>\nextern "C" int run() { return gettid(); }'
    assert manylinux.newer_symbols(build(tmp_path, stubs, program)) == ["gettid"]
