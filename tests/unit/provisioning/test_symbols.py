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


def compile_to(name: str, *arguments: str, folder: Path) -> None:
    subprocess.run(["g++", "-o", name, *arguments], cwd=folder, check=True)


def test_stripped_library_can_be_loaded_and_linked(library: Path) -> None:
    before = library.stat().st_size
    assert b"hidden_constant" in library.read_bytes()
    removed = symbols.strip(library)
    assert removed == before - library.stat().st_size > 0
    assert b"hidden_constant" not in library.read_bytes()
    assert ctypes.CDLL(str(library)).seven_times(6) == 42
    (library.parent / "program.cpp").write_text(PROGRAM)
    compile_to("program", "program.cpp", "-L.", "-lseven", "-Wl,-rpath,$ORIGIN", folder=library.parent)
    assert subprocess.run([library.parent / "program"]).returncode == 42
    sections = subprocess.run(["readelf", "-aW", library], capture_output=True, text=True, check=True)
    assert (".symtab" in sections.stdout, ".dynsym" in sections.stdout, sections.stderr) == (False, True, "")


def test_stripped_library_is_not_opened_for_writing(tmp_path: Path) -> None:
    (tmp_path / "wait.cpp").write_text("#include <unistd.h>\nint main() { return pause(); }\n")
    compile_to("wait", "wait.cpp", folder=tmp_path)
    program = tmp_path / "wait"
    assert symbols.strip(program) > 0
    running = subprocess.Popen([program])
    try:
        assert symbols.strip(program) == 0
        with pytest.raises(OSError, match="busy"):  # ETXTBSY
            program.open("r+b")
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"/* GNU ld script */", b"\x7fELF\x01\x01"],
    ids=["empty", "truncated", "linker script", "32 bits"],
)
def test_other_files_are_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libother.so"
    path.write_bytes(content)
    assert (symbols.strip(path), path.read_bytes()) == (0, content)
