"""Check that names, folders, programs and sizes from a node are treated as untrusted input."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orch_node.protocol import files
from orch_node.protocol.record import RunNode, RunRecord, parse, render
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.model.command import CommandResult
from orchestrator.runs.fetch import Collected, FetchListener, collect
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror
from orchestrator.targets.ssh.find import InventoryRuns, check_same_nodes, merge_response
from orchestrator.targets.ssh.inputs import new_site
from orchestrator.targets.ssh.nodes import NodeResponse
from orchestrator.targets.ssh.trusted_record import trusted_record
from orchestrator.targets.trusted_record import UntrustedRecordError
from tests.conftest import HOSTILE_TEXTS, make_cluster, make_node
from tests.support.hostile import JSON, UNSAFE_NAMES
from tests.support.recorded import RUN_RECORD as RECORD
from tests.unit.targets.ssh.test_mirror import Folder


@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_run_id_is_a_name_and_no_path(name: str) -> None:
    assert not files.is_run_id(name)
    with pytest.raises(ProtocolError, match="run_id"):
        parse({**render(RECORD), "run_id": name})


@pytest.mark.parametrize("name", ["20260101-120000-bert-qa-0f3c", "20260101-120000-my_qa.v2-0f3c", "x"])
def test_generated_run_ids_are_valid(name: str) -> None:
    assert files.is_run_id(name)


@pytest.mark.parametrize("recipe", [*HOSTILE_TEXTS, "../..", "x" * 300])
def test_run_id_is_valid_for_any_recipe_name(recipe: str) -> None:
    assert files.is_run_id(new_site(recipe, Path("/runs"), make_cluster()).run_id)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-0.log", 0),
        ("rank-12.metrics.jsonl", 12),
        ("rank-0.txt", None),
        ("rank-x.log", None),
        ("rank--1.log", None),
        ("rank-01.log", None),
        ("rank-٣.log", None),
        ("../rank-0.log", None),
        ("rank-0.log\n", None),
        ("authorized_keys", None),
    ],
)
def test_rank_that_a_file_is_of(name: str, rank: int | None) -> None:
    assert files.rank_of(name) == rank


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": []},
        {"layout": []},
        {"created": float("nan")},
        {"created": -1.0},
        {"node0": {"node": "another", "via": []}},
        {"nodes": [{"node": "node0"}] * 2},
    ],
)
def test_record_that_no_run_can_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        parse({**render(RECORD), **changes})


def foreign(**changes: Any) -> RunRecord:
    """Return a record as a node sends it."""
    nodes = (RunNode(node="node0"), RunNode(node="node1"))
    start = replace(RECORD, node0=nodes[0], nodes=nodes, output_dir=None)
    return replace(start, **changes)


LAB = make_cluster(
    make_node("node0", via=("ssh", "-F", "/own/config", "node0")),
    make_node("node1", via=("ssh", "-F", "/own/config", "node1")),
    make_node("here"),
)


def test_ssh_commands_programs_and_folders_come_from_this_controller() -> None:
    bad = foreign(
        python="/tmp/evil",
        train="/tmp/evil",
        run_dir="/etc",
        node0=RunNode(node="node0", via=("sh", "-c", "/tmp/evil")),
    )
    record = trusted_record(bad, LAB, sender="node0")
    assert record.node0 == record.nodes[0] == RunNode(node="node0", via=LAB.nodes[0].via)
    assert record.nodes[1].via == LAB.nodes[1].via
    assert (record.train, record.run_dir) == ("/opt/orch/train", f"/opt/orch/runs/{bad.run_id}")
    assert record.python == LAB.nodes[0].python


def test_interpreter_of_another_stack_is_trusted() -> None:
    python = "/opt/orch/stacks/intel-2.8/bin/python"
    assert trusted_record(foreign(python=python), LAB, sender="node0").python == python
    up = "/opt/orch/stacks/../../../tmp/bin/python"
    assert trusted_record(foreign(python=up), LAB, sender="node0").python == LAB.nodes[0].python


@pytest.mark.parametrize(
    ("changes", "sender", "message"),
    [
        ({"node0": RunNode(node="ghost"), "nodes": (RunNode(node="ghost"),)}, "ghost", "ghost"),
        ({"nodes": (RunNode(node="node0"), RunNode(node="ghost"))}, "node0", "ghost"),
        ({"nodes": (RunNode(node="node0"), RunNode(node="here"))}, "node0", "here"),
        ({}, "node2", "node2"),
        ({"target": "kubernetes", "location": {"image": "evil"}}, "node0", "kubernetes"),
        ({"output_dir": "/root/.ssh"}, "node0", "/root/.ssh"),
        ({"output_dir": "/opt/orch/runs/x/../../../root/output"}, "node0", "output"),
    ],
)
def test_untrusted_records_are_refused(changes: dict[str, Any], sender: str, message: str) -> None:
    with pytest.raises(UntrustedRecordError, match=message):
        trusted_record(foreign(**changes), LAB, sender=sender)


def test_output_of_an_earlier_run_is_trusted() -> None:
    earlier = "/opt/orch/runs/20250101-120000-qa-ffff/output"
    assert trusted_record(foreign(output_dir=earlier), LAB, sender="node1").output_dir == earlier


def listed(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schema": 1, "runs": [{"state": "done", "progress": None, **run} for run in runs], **more}


def merge_responses(**responses: dict[str, Any]) -> InventoryRuns:
    """Return the result of merging the responses of the nodes, in this order."""
    merged = InventoryRuns(cluster=LAB)
    for node, value in responses.items():
        merge_response(merged, NodeResponse(node=node, value=value))
    return merged


def test_run_that_two_nodes_report_alike_is_trusted() -> None:
    record = render(foreign())
    merged = merge_responses(node1=listed({"record": record, "state": "failed"}), node0=listed({"record": record}))
    (run,) = merged.runs.values()
    assert (run.distrust, run.state) == (None, "done")  # Only node0 knows the state.


def test_run_is_not_trusted_if_its_records_name_different_nodes() -> None:
    single_node_record = render(foreign(nodes=(RunNode(node="node1"),), node0=RunNode(node="node1")))
    for responses in (
        {"node0": listed({"record": render(foreign())}), "node1": listed({"record": single_node_record})},
        {"node1": listed({"record": single_node_record}), "node0": listed({"record": render(foreign())})},
    ):
        (run,) = merge_responses(**responses).runs.values()
        assert run.distrust
        assert "different nodes" in run.distrust.message


def test_untrusted_record_does_not_hide_a_trusted_one() -> None:
    ghost = (RunNode(node="node1"), RunNode(node="ghost"))
    bad = listed({"record": render(foreign(nodes=ghost, node0=ghost[0]))})
    good = listed({"record": render(foreign())})
    for responses in ({"node0": good, "node1": bad}, {"node1": bad, "node0": good}):
        (run,) = merge_responses(**responses).runs.values()
        assert run.distrust is None
        assert run.record.nodes[1].node == "node1"


def test_damaged_entries_are_reported_and_hide_no_others() -> None:
    merged = merge_responses(
        node0=listed(
            {"record": render(foreign())},
            {"record": {}},
            {"record": "\x1b[2J"},
            {"record": render(foreign()) | {"recipe": "\ud800"}},
            damaged=[{"folder": "../x", "problem": "\x1b[2J"}],
        ),
        node1={"runs": 7},
    )
    assert len(merged.runs) == 1
    assert len(merged.warnings) == 4
    assert [response.node for response in merged.failed_responses] == ["node1"]
    assert all(line.isprintable() for line in merged.warnings)


def test_record_on_this_controller_wins() -> None:
    with pytest.raises(UntrustedRecordError, match="according to this machine"):
        check_same_nodes(foreign(nodes=(RunNode(node="node0"),)), foreign())
    check_same_nodes(foreign(), foreign())


# The local copy of a remote run.


EVIL = b"ssh-ed25519 AAAA evil\n"


class Liar(Folder):
    """A node whose listings contain arbitrary names."""

    def __init__(self, base: Path, names: list[str]) -> None:
        super().__init__(base, [])
        self.names = names

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        if path.endswith((".json", "events.jsonl")):
            return None
        return EVIL[offset:][:most]

    def size(self, path: str) -> int:
        return len(EVIL)

    def list(self, folder: str) -> list[str]:
        return self.names


@pytest.mark.parametrize("name", [*UNSAFE_NAMES, "rank-99.log", "rank-0.sh", "plan.json"])
def test_listing_names_no_other_file(tmp_path: Path, name: str) -> None:
    home, folder = tmp_path / "home", tmp_path / "home/runs/r"
    folder.mkdir(parents=True)
    (home / "authorized_keys").write_text("mine\n")
    (folder / "plan.json").write_text("{}")
    copy = Mirror(Liar(tmp_path, [name, "rank-0.log"]), "/opt/orch/runs/r", folder, ranks=2)
    copy.copy_logs()
    copy.finish("/opt/orch/runs/r/output")
    written_files = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    assert written_files == {
        "authorized_keys",
        "runs/r/plan.json",
        "runs/r/ranks/rank-0.log",
        *(f"runs/r/output/{name}" for name in ("results.json", "metrics.jsonl", "predictions.json")),
        "runs/r/launcher.log",
        "runs/r/supervisor.log",
    } - {"runs/r/output/results.json", "runs/r/output/predictions.json"}
    assert (home / "authorized_keys").read_text() == "mine\n"
    assert (folder / "plan.json").read_text() == "{}"


@pytest.mark.parametrize("where", ["ranks", "ranks/rank-0.log"])
def test_link_in_the_copy_is_not_followed(tmp_path: Path, where: str) -> None:
    folder, link_target = tmp_path / "r", tmp_path / "other"
    (folder / where).parent.mkdir(parents=True)
    if where == "ranks":
        link_target.mkdir()
    else:
        link_target.write_text("mine\n")
    (folder / where).symlink_to(link_target)
    copy = Mirror(Liar(tmp_path, ["rank-0.log"]), "/opt/orch/runs/r", folder, ranks=1)
    with pytest.raises(ExecuteError, match=where):
        copy.copy_logs()
    assert not (link_target.is_dir() and list(link_target.iterdir()))
    assert link_target.is_dir() or link_target.read_text() == "mine\n"


# Fetching.

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


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


def entry(path: str, size: Any = 0, sha256: Any = EMPTY, **more: Any) -> str:
    return json.dumps({"path": path, "size": size, "sha256": sha256, **more})


def fetched(node: Node, target: Path) -> Collected:
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
        entry("a", "1"),
        entry("a", -1),
        entry("a", True),
        entry("a", 0, "zz"),
        entry("a", 0, EMPTY.upper() + "0"),
        entry("a", more=1),
        entry("/etc/cron.d/x"),
        entry("../x"),
        entry("a/../../x"),
        entry(""),
        entry("."),
        entry(".ssh/authorized_keys"),
        entry("a/.x"),
        entry("a//b"),
        entry("a/"),
        entry("nul\0"),
        entry("a") + "\n" + entry("a"),
        '{"path": "a"',
        entry("a", 10**30),
    ],
    ids=lambda line: line[:30],
)
def test_impossible_listing_is_refused(tmp_path: Path, line: str) -> None:
    target = tmp_path / "home" / "here"
    with pytest.raises(ExecuteError, match="/out"):
        fetched(Node(entry("good") + "\n" + line + "\n" + entry("b") + "\n"), target)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_file_larger_than_announced_is_cut_off(tmp_path: Path, size: int) -> None:
    node = Node(entry("a", size, "ab" * 32), content=b"", endless=True)
    with pytest.raises(ExecuteError, match="announced"):
        fetched(node, tmp_path / "here")
    assert sum(node.sent) < 1 << 20
    assert not (tmp_path / "here/a").exists()


def test_partial_file_that_is_too_long_is_discarded(tmp_path: Path) -> None:
    local_folder = tmp_path / "here"
    local_folder.mkdir()
    (local_folder / ".a.part").write_bytes(b"much too long")
    fetched(Node(entry("a")), local_folder)
    assert (local_folder / "a").read_bytes() == b""


@pytest.mark.parametrize("link", ["a", "a/b"])
def test_link_in_the_target_is_not_followed(tmp_path: Path, link: str) -> None:
    local_folder, user_folder = tmp_path / "here", tmp_path / "mine"
    (local_folder / link).parent.mkdir(parents=True)
    user_folder.mkdir()
    (user_folder / "b").write_text("mine")
    (local_folder / link).symlink_to(user_folder / "b" if link == "a/b" else user_folder)
    node = Node(entry("a/b", 4, "ab" * 32), content=b"evil")
    with pytest.raises(ExecuteError):
        fetched(node, local_folder)
    assert [path.read_text() for path in user_folder.iterdir()] == ["mine"]


def test_fetched_files_are_plain_files(tmp_path: Path) -> None:
    names = ("Model.bin", "model.bin", "a b/c d", "x.part", "x")
    fetched(Node("".join(entry(name) + "\n" for name in names)), tmp_path)
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
    node = Node(f"{entry('y' * 300)}\n{entry('good')}\n")
    result = fetched(node, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    assert "too long" in result.left_out[0].problem
    assert [entry.path for entry in result.files] == ["good"]


def test_file_that_the_node_cannot_read_is_left_out(tmp_path: Path) -> None:
    node = Node(f"{entry('secret', 0, '', problem='Permission denied')}\n{entry('good')}\n")
    result = fetched(node, tmp_path)
    assert [entry.problem for entry in result.left_out] == ["it cannot be read: Permission denied"]
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


PATHS = st.lists(st.sampled_from(["..", ".", "a", "b", "", "/", "\0", ".x", "ü", "~"]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(st.one_of(st.text(), JSON.map(json.dumps), PATHS.map("/".join).map(entry))))
def test_no_listing_leaves_its_folder(tmp_path_factory: Any, lines: list[str]) -> None:
    base = tmp_path_factory.mktemp("any")
    with contextlib.suppress(ExecuteError):
        fetched(Node("\n".join(lines)), base / "home/here")
    outside = [path for path in base.rglob("*") if path.is_file() and not path.is_relative_to(base / "home/here")]
    assert not outside


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(render(RECORD))), value=JSON)
def test_no_record_changes_hosts_or_folders(name: str, value: Any) -> None:
    try:
        record = trusted_record(parse({**render(foreign()), name: value}), LAB, sender="node0")
    except (ProtocolError, OrchError):
        return
    assert {node.via for node in record.nodes} <= {node.via for node in LAB.nodes if node.via}
    assert record.run_dir == f"/opt/orch/runs/{record.run_id}" == os.path.normpath(record.run_dir)
    assert (record.train, record.target) == ("/opt/orch/train", "ssh")
