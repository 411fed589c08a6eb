"""Check that fetched files are complete, and that no node can write elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ExecuteError
from orchestrator.model.command import CommandResult
from orchestrator.runs.fetch import Collected, FetchListener, collect
from orchestrator.targets.connections.local import Local
from tests.support.hostile import JSON

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass
class Node:
    """A node that sends arbitrary responses and counts the sent bytes in `sent`."""

    out: str
    content: bytes = b""
    endless: bool = False
    sent: list[int] = field(default_factory=list)

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        return CommandResult(code=0, out=self.out, err="")

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        yield self.content[offset:]
        while self.endless:
            self.sent.append(1 << 16)
            yield bytes(1 << 16)


def make_entry(path: str, size: Any = 0, sha256: Any = EMPTY_SHA256, **fields: Any) -> str:
    return json.dumps({"path": path, "size": size, "sha256": sha256, **fields})


def fetch(node: Node, target: Path) -> Collected:
    return collect(node, "/out", target, patterns=(), listener=FetchListener())


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "7",
        "null",
        "{}",
        '{"path": 1}',
        "[" * 100_000,
        make_entry("a", "1"),
        make_entry("a", -1),
        make_entry("a", True),
        make_entry("a", 0, "zz"),
        make_entry("a", 0, EMPTY_SHA256.upper() + "0"),
        make_entry("a", more=1),
        make_entry("/etc/cron.d/x"),
        make_entry("../x"),
        make_entry("a/../../x"),
        make_entry(""),
        make_entry("."),
        make_entry(".ssh/authorized_keys"),
        make_entry("a/.x"),
        make_entry("a//b"),
        make_entry("a/"),
        make_entry("nul\0"),
        make_entry("a") + "\n" + make_entry("a"),
        '{"path": "a"',
        make_entry("a", 10**30),
    ],
    ids=lambda line: line[:30],
)
def test_impossible_listing_is_refused(tmp_path: Path, line: str) -> None:
    target = tmp_path / "home" / "here"
    with pytest.raises(ExecuteError, match="/out"):
        fetch(Node(make_entry("good") + "\n" + line + "\n" + make_entry("b") + "\n"), target)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_file_larger_than_announced_is_cut_off(tmp_path: Path, size: int) -> None:
    node = Node(make_entry("a", size, "ab" * 32), content=b"", endless=True)
    with pytest.raises(ExecuteError, match="announced"):
        fetch(node, tmp_path / "here")
    assert sum(node.sent) < 1 << 20
    assert not (tmp_path / "here/a").exists()


def test_partial_file_that_is_too_long_is_discarded(tmp_path: Path) -> None:
    local_folder = tmp_path / "here"
    local_folder.mkdir()
    (local_folder / ".a.part").write_bytes(b"much too long")
    fetch(Node(make_entry("a")), local_folder)
    assert (local_folder / "a").read_bytes() == b""


@pytest.mark.parametrize("link", ["a", "a/b"])
def test_link_in_the_target_is_not_followed(tmp_path: Path, link: str) -> None:
    local_folder, user_folder = tmp_path / "here", tmp_path / "mine"
    (local_folder / link).parent.mkdir(parents=True)
    user_folder.mkdir()
    (user_folder / "b").write_text("mine")
    (local_folder / link).symlink_to(user_folder / "b" if link == "a/b" else user_folder)
    node = Node(make_entry("a/b", 4, "ab" * 32), content=b"evil")
    with pytest.raises(ExecuteError):
        fetch(node, local_folder)
    assert [path.read_text() for path in user_folder.iterdir()] == ["mine"]


def test_fetched_files_are_plain_files(tmp_path: Path) -> None:
    names = ("Model.bin", "model.bin", "a b/c d", "x.part", "x")
    fetch(Node("".join(make_entry(name) + "\n" for name in names)), tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == (sorted(names))
    assert {(tmp_path / name).stat().st_mode & 0o7111 for name in names} == {0}


ODD_NAMES = {
    "not-utf-8": (b"\xff\xfe.bin", "not UTF-8"),
    "folder-not-utf-8": (b"b\xe9b\xe9/model.bin", "not UTF-8"),
    "251-bytes": (b"x" * 251, ""),
    "255-bytes": (b"x" * 255, ""),
    "255-bytes-of-umlauts": ("\u00fc".encode() * 127, ""),
    "newline": (b"a\nb", ""),
    "escape": (b"\x1b[2J", ""),
    "quotes": (b"a'\"$(true)", ""),
    "option": (b"-rf", ""),
}


@pytest.mark.parametrize("case", ODD_NAMES)
def test_odd_name_keeps_no_other_file_from_being_fetched(tmp_path: Path, case: str) -> None:
    name, problem = ODD_NAMES[case]
    output, local_folder = tmp_path / "output", tmp_path / "here"
    for path in (os.fsencode(output) + b"/" + name, os.fsencode(output / "good.bin")):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"content")
    for patterns in (("good.bin",), ()):
        result = collect(Local(), str(output), local_folder, patterns=patterns, listener=FetchListener())
        assert (local_folder / "good.bin").read_bytes() == b"content"
    assert [entry.problem for entry in result.left_out] == ([f"its name is {problem}"] if problem else [])
    assert os.path.exists(os.fsencode(local_folder) + b"/" + name) is not problem.startswith("not")
    assert len(list(local_folder.rglob("*"))) == (1 if problem else 2)


def test_name_that_this_file_system_cannot_have_is_left_out(tmp_path: Path) -> None:
    node = Node(f"{make_entry('y' * 300)}\n{make_entry('good')}\n")
    result = fetch(node, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    assert "too long" in result.left_out[0].problem
    assert [entry.path for entry in result.files] == ["good"]


def test_file_that_the_node_cannot_read_is_left_out(tmp_path: Path) -> None:
    node = Node(f"{make_entry('secret', 0, '', problem='Permission denied')}\n{make_entry('good')}\n")
    result = fetch(node, tmp_path)
    assert [entry.problem for entry in result.left_out] == ["it cannot be read: Permission denied"]
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


PATHS = st.lists(st.sampled_from(["..", ".", "a", "b", "", "/", "\0", ".x", "ü", "~"]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(st.one_of(st.text(), JSON.map(json.dumps), PATHS.map("/".join).map(make_entry))))
def test_no_listing_leaves_its_folder(tmp_path_factory: Any, lines: list[str]) -> None:
    base = tmp_path_factory.mktemp("any")
    with contextlib.suppress(ExecuteError):
        fetch(Node("\n".join(lines)), base / "home/here")
    outside = [path for path in base.rglob("*") if path.is_file() and not path.is_relative_to(base / "home/here")]
    assert not outside
