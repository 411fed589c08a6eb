"""Check that fetched files are complete, and that no node can write elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.standalone.send_files import MARKER

from orchestrator.errors import ExecuteError
from orchestrator.runs.confined_folder import ConfinedFolder
from orchestrator.runs.fetch import INCOMPLETE, PARTS, Collected, FetchListener, Source, collect
from orchestrator.targets.connections.local import Local
from tests.support.files import write_files
from tests.support.hostile import JSON


class Node:
    """A node that sends arbitrary bytes; each file has the same content."""

    def __init__(self, lines: str, content: bytes = b"", *, end: str | None = None) -> None:
        self.output: BinaryIO = io.BytesIO()
        listing = lines.rstrip("\n").encode("utf-8", "surrogatepass")
        self.output.write(b"Welcome" + MARKER + b'\n"/out"\n' + listing + b"\n\n")
        end = end or json.dumps({"sha256": hashlib.sha256(content).hexdigest()})
        files = sum('"kind": "file"' in line for line in lines.split("\n"))
        self.output.write((end.encode() + b"\n") * files + content * files)
        self.output.seek(0)

    @contextlib.contextmanager
    def open_program(self, argv: tuple[str, ...]) -> Iterator[Node]:
        yield self

    def send(self, data: bytes) -> None:
        """Ignore the requests."""

    def failure(self) -> ExecuteError:
        return ExecuteError("/out: the connection was lost")


def make_entry(path: str, size: Any = 0, **fields: Any) -> str:
    return json.dumps({"path": path, "kind": "file", "size": size, "stamp": "1", **fields})


def fetch(node: Node, target: Path, **options: Any) -> Collected:
    return collect([Source(name="node0", remote=node)], ["/out"], target, listener=FetchListener(), **options)


def collect_local(folder: Path, target: Path, **options: Any) -> Collected:
    source = Source(name="node0", remote=Local(), python=sys.executable)
    return collect([source], [str(folder)], target, listener=FetchListener(), **options)


def test_impossible_listing_is_refused(tmp_path: Path) -> None:
    sizes = (make_entry("a", size) for size in ("1", -1, True, 10**30))
    paths = map(make_entry, ("/etc/cron.d/x", "../x", "a/../../x", "", ".", "a//b", "a/", "nul\0"))
    fields = (make_entry("a", kind="block"), make_entry("a", more=1), f"{make_entry('a')}\n{make_entry('a')}")
    for line in ("x", "[]", "{}", '{"path": 1}', "[" * 100_000, '{"path": "a"', *sizes, *paths, *fields):
        target = tmp_path / "home" / "here"
        with pytest.raises(ExecuteError, match="/out"):
            fetch(Node(make_entry("good") + "\n" + line + "\n" + make_entry("b") + "\n"), target)
        assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_file_with_an_invalid_hash_is_refused(tmp_path: Path) -> None:
    for end in ("\n", "[]", '{"sha256": "zz"}', '{"problem": 1}', "1" * 100_000):
        with pytest.raises(ExecuteError, match="/out"):
            fetch(Node(make_entry("a", 4), content=b"evil", end=end), tmp_path / "here")
        assert not (tmp_path / "here/a").exists()


def test_content_without_the_promised_hash_is_left_out(tmp_path: Path) -> None:
    result = fetch(Node(make_entry("a", 4), content=b"evil", end=json.dumps({"sha256": "ab" * 32})), tmp_path)
    assert [entry.path for entry in result.skipped] == ["a"]
    assert list(tmp_path.iterdir()) == []


def test_lost_connection_keeps_what_has_arrived(tmp_path: Path) -> None:
    with pytest.raises(ExecuteError, match="connection was lost"):
        fetch(Node(make_entry("a", 100), content=b"half"), tmp_path)
    (part,) = (tmp_path / PARTS).iterdir()
    assert part.read_bytes() == b"half"


def test_confined_folder_writes_only_plain_files(tmp_path: Path) -> None:
    folder, outside_file = tmp_path / "r", tmp_path / "mine"
    outside_file.write_text("mine")
    (folder / "inner folder").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    os.link(outside_file, folder / "hard link")
    for name in ("inner folder", "pipe", "hard link"):
        with pytest.raises(OSError, match=name):
            ConfinedFolder(folder).add(name, b"evil", 0)
    assert outside_file.read_text() == "mine"


@pytest.mark.parametrize("link", ["a", "a/b"])
def test_link_in_the_target_is_not_followed(tmp_path: Path, link: str) -> None:
    local_folder, user_folder = tmp_path / "here", write_files(tmp_path / "mine", {"b": "mine"})
    (local_folder / link).parent.mkdir(parents=True)
    (local_folder / link).symlink_to(user_folder / "b" if link == "a/b" else user_folder)
    with contextlib.suppress(ExecuteError):
        fetch(Node(make_entry("a/b", 4), content=b"evil"), local_folder)
    assert [path.read_text() for path in user_folder.iterdir()] == ["mine"]


LEAVING_TARGETS = ("/etc/passwd", "..", "../x", "a/../../x", "b/..", ".", "", "a//b", "a\0b", "\udcff")


def test_link_that_leaves_is_left_out(tmp_path: Path) -> None:
    links = {f"link-{number}": target for number, target in enumerate(LEAVING_TARGETS)}
    lines = [json.dumps({"path": path, "kind": "link", "target": target}) for path, target in links.items()]
    result = fetch(Node("\n".join([*lines, make_entry("good")]) + "\n"), tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["good"]
    assert [entry.path for entry in result.skipped] == list(links)
    assert not result.is_complete


def test_nothing_is_written_through_a_fetched_link(tmp_path: Path) -> None:
    (tmp_path / "here/b").mkdir(parents=True)
    link = json.dumps({"path": "b/a", "kind": "link", "target": "../c"})
    with pytest.raises(ExecuteError):
        fetch(Node(f"{link}\n{make_entry('b/a/x', 4)}\n", content=b"evil"), tmp_path / "here")
    assert not (tmp_path / "here/c").exists()


def test_odd_names_keep_no_other_file_from_being_fetched(tmp_path: Path) -> None:
    output, local_folder = tmp_path / "output", tmp_path / "here"
    valid_names = (b"good.bin", b"x" * 255, b"a\nb", b"\x1b[2J", b"a'\"$(true)", b"-rf")
    for name in (*valid_names, b"\xff\xfe.bin", b"b\xe9b\xe9/model.bin"):
        path = os.fsencode(output) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"content")
    for patterns in (("good.bin",), ()):
        result = collect_local(output, local_folder, patterns=patterns)
        assert (local_folder / "good.bin").read_bytes() == b"content"
    assert [entry.problem for entry in result.skipped] == ["its name is not UTF-8"] * 2
    assert {os.fsencode(path.name) for path in local_folder.rglob("*")} == {*valid_names}


def test_file_that_cannot_be_read_or_named_here_is_left_out(tmp_path: Path) -> None:
    unreadable = make_entry("secret", 0, problem="Permission denied")
    result = fetch(Node(f"{make_entry('y' * 300)}\n{unreadable}\n{make_entry('good')}\n"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    assert [entry.path for entry in result.files] == ["good"]
    secret, long_name = sorted(result.skipped, key=lambda entry: entry.path)
    assert secret.problem == "Permission denied"
    assert "too long" in long_name.problem


PATHS = st.lists(st.sampled_from(["..", ".", "a", "b", "", "/", "\0", ".x", "ü", "~"]), max_size=4)


@given(lines=st.lists(st.one_of(st.text(), JSON.map(json.dumps), PATHS.map("/".join).map(make_entry))))
def test_no_listing_leaves_its_folder(tmp_path_factory: Any, lines: list[str]) -> None:
    base = tmp_path_factory.mktemp("any")
    with contextlib.suppress(ExecuteError):
        fetch(Node("\n".join(lines)), base / "home/here")
    assert not [path for path in base.rglob("*") if path.is_file() and not path.is_relative_to(base / "home/here")]


def test_everything_that_a_run_writes_is_fetched_or_named(tmp_path: Path) -> None:
    output, target = tmp_path / "output", tmp_path / "here"
    names = ("step-3/.metadata", ".hidden/.x", "tool.sh", ".checkpoint-staging/step/half", ".y.12-0123abcd.tmp")
    write_files(output, {name: name for name in names})
    (output / "tool.sh").chmod(0o4755)
    os.link(output / "tool.sh", output / "hard")
    (output / "latest").symlink_to("step-3")
    (output / "step-3/absolute").symlink_to(output / "tool.sh")
    (output / "elsewhere").symlink_to("/etc")
    (output / "empty/folder").mkdir(parents=True)
    os.mkfifo(output / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(output / "socket"))
        result = collect_local(output, target)
    assert {entry.path: entry.problem for entry in result.skipped} == {
        ".checkpoint-staging": INCOMPLETE,
        ".y.12-0123abcd.tmp": INCOMPLETE,
        "elsewhere": "it is a link to /etc, which is not inside of this folder",
        "pipe": "it is a pipe",
        "socket": "it is a socket",
    }
    assert not result.is_complete
    files = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert files == {"step-3/.metadata", ".hidden/.x", "tool.sh", "hard", "latest", "step-3/absolute"}
    assert (target / "empty/folder").is_dir()
    assert (target / "latest").readlink() == Path("step-3")
    assert (target / "step-3/absolute").read_text() == "tool.sh"
    assert (target / "tool.sh").stat().st_mode & 0o7777 == 0o700
    assert collect_local(output, target).downloaded == []


def test_files_of_other_nodes_are_fetched_where_they_differ(tmp_path: Path) -> None:
    array, bytecode = "__pycache__/own.npy", "__pycache__/x.pyc"
    contents = {
        "a": {"same": "x", "log": "a", "only-a": "1", array: "o", bytecode: "p"},
        "b": {"same": "x", "log": "b", "only-b": "2"},
    }
    for node, texts in contents.items():
        write_files(tmp_path / node / "run/out", texts)
    remotes = [Source(name=f"node{i}", remote=InFolder(tmp_path / node)) for i, node in enumerate(contents)]
    result = collect(remotes, ["run/out"], tmp_path / "here", listener=FetchListener(), unchanged={})
    expected = {"same": "x", "log": "a", "only-a": "1", array: "o", "node1/log": "b", "node1/only-b": "2"}
    assert {entry.path: (tmp_path / "here" / entry.path).read_text() for entry in result.files} == expected
    shared = [Source(name=f"node{i}", remote=InFolder(tmp_path / "b")) for i in range(2)]
    result = collect(shared, ["run/out"], tmp_path / "shared", listener=FetchListener())
    assert {entry.path for entry in result.files} == set(contents["b"])
    (tmp_path / "a/run/out/node1").mkdir()
    result = collect(remotes, ["run/out"], tmp_path / "taken", listener=FetchListener())
    assert (tmp_path / "taken/node1-files/log").read_text() == "b"


class InFolder(Local):
    """This machine, with another working directory: relative paths stand for those of a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_program(self, argv: tuple[str, ...]) -> Any:
        return super().open_program(("env", "-C", str(self.folder), *argv))
