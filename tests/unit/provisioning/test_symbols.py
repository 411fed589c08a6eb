"""Libraries without the symbols that only debuggers read: as `strip` makes them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from orch_node.standalone import symbols

LIBRARY = """
static int hidden_constant(int value) { return value * 7; }
extern "C" int seven_times(int value) { return hidden_constant(value); }
"""
PROGRAM = 'extern "C" int seven_times(int); int main() { return seven_times(6); }'


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "seven.cpp").write_text(LIBRARY)
    compile_to("libseven.so", "-O0", "-shared", "-fPIC", "seven.cpp", folder=tmp_path)
    return tmp_path / "libseven.so"


def compile_to(name: str, *words: str, folder: Path) -> None:
    subprocess.run(["g++", "-o", name, *words], cwd=folder, check=True)


def test_a_stripped_library_is_loaded_and_linked_as_before(library: Path) -> None:
    before = library.stat().st_size
    assert b"hidden_constant" in library.read_bytes()
    gone = symbols.strip(library)
    assert gone == before - library.stat().st_size > 0
    assert b"hidden_constant" not in library.read_bytes()
    assert ctypes.CDLL(str(library)).seven_times(6) == 42
    (library.parent / "program.cpp").write_text(PROGRAM)
    words = ("program.cpp", "-L.", "-lseven", "-Wl,-rpath,$ORIGIN")
    compile_to("program", *words, folder=library.parent)
    assert subprocess.run([library.parent / "program"]).returncode == 42
    read = subprocess.run(["readelf", "-aW", library], capture_output=True, text=True, check=True)
    assert (".symtab" in read.stdout, ".dynsym" in read.stdout, read.stderr) == (False, True, "")


def test_what_is_stripped_already_is_not_opened_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "wait.cpp").write_text("#include <unistd.h>\nint main() { return pause(); }\n")
    compile_to("wait", "wait.cpp", folder=tmp_path)
    program = tmp_path / "wait"
    assert symbols.strip(program) > 0
    running = subprocess.Popen([program])
    try:
        assert symbols.strip(program) == 0
        with pytest.raises(OSError, match="busy"):  # ETXTBSY: what runs cannot be written
            program.open("r+b")
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"/* GNU ld script */", b"\x7fELF\x01\x01"])
def test_what_is_no_library_of_64_bits_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libother.so"
    path.write_bytes(content)
    assert (symbols.strip(path), path.read_bytes()) == (0, content)
