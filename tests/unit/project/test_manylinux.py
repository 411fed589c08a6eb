"""Check that libraries that are linked for a release run on hosts with glibc 2.28."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def build(folder: Path, program: str) -> Path:
    """Link a program with the stubs in the folder."""
    source, library = folder / "library.cpp", folder / "library.so"
    source.write_text(program)
    options = ["-shared", "-fPIC", "-O1", "-std=c++20", f"-L{folder}", "-Wl,--exclude-libs,ALL"]
    subprocess.run(["g++", *options, source, "-o", library], check=True)
    return library


def test_library_needs_no_newer_symbols_than_torch_or_they_are_named(tmp_path: Path) -> None:
    manylinux.write_stubs(tmp_path)
    library = build(tmp_path, PROGRAM)
    needed = [symbol for symbol in manylinux.read_symbols(library) if not symbol.is_defined and symbol.version]
    assert {"exp", "pow", "dlopen"} <= {symbol.name for symbol in needed}
    assert [f"{symbol.name} {symbol.version}" for symbol in needed if not symbol.is_old] == []
    assert manylinux.newer_symbols(library) == []
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).run(ctypes.c_double(1.0)))"
    assert subprocess.run([sys.executable, "-c", code, library], stdin=subprocess.DEVNULL).returncode == 0
    program = '#include <unistd.h>\nextern "C" int run() { return gettid(); }'
    assert manylinux.newer_symbols(build(tmp_path, program)) == ["gettid"]
