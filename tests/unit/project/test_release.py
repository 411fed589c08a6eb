"""Releases: what a build needs, the changelog, the wheel, its oldest glibc, and the signature that a page verifies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bindings import manylinux, needed
from orchestrator.files import tomllib
from orchestrator.provisioning.bindings_wheel import sources
from release.__main__ import NAMESPACE, SUMS, sign

CHECKOUT = Path(__file__).parents[3]
PAGE = CHECKOUT / "docs" / "explanation" / "security.md"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def test_wheel_contains_all_sources_of_the_bindings() -> None:
    """orch from a wheel without them would build the bindings again, because their digest differs."""
    included = {Path(name) for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]}
    paths = [path.relative_to(CHECKOUT) for path in sources(CHECKOUT / "bindings")]
    assert len(paths) > 20
    assert [path for path in paths if not included & {path, *path.parents}] == []


def verify(folder: Path, signers: Path) -> int:
    """Run the page's commands and return their exit code."""
    section = PAGE.read_text().partition("## Verify a release")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = block[1].replace("orch/release/allowed_signers", str(signers))
    return subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True).returncode


def test_commands_of_the_page_accept_only_an_unchanged_release_of_a_listed_key(tmp_path: Path) -> None:
    folder, key, signers, nobody = (tmp_path / name for name in ("release", "key", "allowed_signers", "nobody"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers.write_text(f'alice@example.org namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    folder.mkdir()
    (folder / "orch.whl").write_text("wheel")
    sums = subprocess.run(["sha256sum", "orch.whl"], cwd=folder, capture_output=True, check=True)
    (folder / SUMS).write_bytes(sums.stdout)
    sign(folder / SUMS, key, signers)
    assert verify(folder, signers) == 0
    for name in ("orch.whl", SUMS, f"{SUMS}.sig"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert verify(folder, signers) != 0, name
        (folder / name).write_bytes(data)
    nobody.write_text("")
    assert verify(folder, nobody) != 0
    with pytest.raises(subprocess.CalledProcessError):
        sign(folder / SUMS, key, nobody)


def test_missing_tools_are_reported_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    result = subprocess.run([sys.executable, needed.__file__], capture_output=True, text=True)
    assert result.returncode == 1
    assert "This machine lacks a C++ compiler ('no-such-compiler')" in result.stderr
    output = needed.describe(needed.missing_build_tools(tmp_path))
    assert "Python.h" in output
    assert "`apt install g++ python3-dev` (Debian, Ubuntu) or `dnf install gcc-c++ python3-devel`" in output


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
