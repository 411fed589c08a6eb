"""Check that the copy of a run's logs has each line once, and only files of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.protocol import files
from orch_node.protocol.events import Joined, UnreadableEvent

from orchestrator.errors import ExecuteError
from orchestrator.targets.kubernetes.local_copy import ReadLine, RunCopy, parse
from tests.support.hostile import UNSAFE_NAMES

JOINED = json.dumps({"event": "joined", "rank": 0, "time": 1.0, "node": "worker-0"})


def open_copy(folder: Path) -> RunCopy:
    copy = RunCopy(folder, ranks=4)
    assert copy.acquire()
    return copy


def kill(copy: RunCopy) -> None:
    """End the command without saving anything."""
    copy.lock.close()
    copy.lock = None


def follow(copy: RunCopy, log: list[str], until: int, *, pod: str = "uid-0") -> None:
    """Copy the lines of a pod's log that the saved position has not reached."""
    copy.write(ReadLine(pod, None))
    for index in range(until):
        copy.write(ReadLine(pod, f"2026-01-01T00:00:{index:02}Z {log[index]}"))


@given(
    texts=st.lists(st.sampled_from(["[0] a", "[0] b", "[1] a", "words", JOINED]), max_size=12),
    kills=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
)
def test_each_line_is_written_once(tmp_path_factory: object, texts: list[str], kills: list[tuple[int, int]]) -> None:
    """Kill the commands that copy the lines at any time."""
    folder = tmp_path_factory.mktemp("run")  # type: ignore[attr-defined]
    reached = 0
    for saved, written in kills:
        copy = open_copy(folder)
        follow(copy, texts, min(max(reached, saved), len(texts)))
        copy.save_positions()
        reached = min(max(reached, saved, written), len(texts))
        follow(copy, texts, reached)
        kill(copy)
    copy = open_copy(folder)
    follow(copy, texts, len(texts))
    copy.release()
    expected: dict[str, list[str]] = {}
    for text in texts:
        name = "launcher.log" if text == "words" else "events.jsonl" if text == JOINED else text[:3]
        expected.setdefault(name, []).append(text[4:] if name.startswith("[") else text)
    for name, lines in expected.items():
        file = f"ranks/rank-{name[1]}.log" if name.startswith("[") else name
        assert (folder / file).read_text().splitlines() == lines


def test_line_that_was_not_written_whole_is_written_again(tmp_path: Path) -> None:
    copy = open_copy(tmp_path)
    follow(copy, ["[0] one", "[0] two"], 2)
    kill(copy)
    log = tmp_path / "ranks" / "rank-0.log"
    log.write_bytes(log.read_bytes()[:-2])
    copy = open_copy(tmp_path)
    follow(copy, ["[0] one", "[0] two"], 2)
    assert log.read_text() == "one\ntwo\n"
    event = ReadLine("uid-0", f"2026-01-01T00:00:09Z {JOINED}")
    assert copy.write(event) is not None
    kill(copy)
    copy = open_copy(tmp_path)
    assert copy.write(event) is None, "it has been reported"
    kill(copy)


def test_new_line_like_one_of_a_pod_that_is_gone_is_written(tmp_path: Path) -> None:
    copy = open_copy(tmp_path)
    follow(copy, ["[0] epoch 1", "[0] epoch 2"], 2)
    kill(copy)
    copy = open_copy(tmp_path)
    follow(copy, ["[0] start", "[0] epoch 1"], 2, pod="uid-1")
    kill(copy)
    assert (tmp_path / "ranks" / "rank-0.log").read_text() == "epoch 1\nepoch 2\nstart\nepoch 1\n"


LINES = (
    "[99999999] evil",
    "[2] evil",
    "[-1] evil",
    "[٣] evil",
    '{"metrics": 2, "line": "evil"}',
    '{"metrics": -1, "line": "evil"}',
    '{"metrics": true, "line": "evil"}',
    "{" * 99_999,
    *(f'{{"metrics": "{name}", "line": "evil"}}' for name in UNSAFE_NAMES),
)


def test_log_lines_create_only_files_of_the_run(tmp_path: Path) -> None:
    copy = RunCopy(tmp_path, ranks=2)
    for line in (*LINES, "[1] mine", '{"metrics": 0, "line": "mine"}'):
        copy.write(ReadLine("uid", line))
    written_files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written_files == {"launcher.log", "ranks/rank-1.log", "ranks/rank-0.metrics.jsonl"}


def test_link_in_the_copy_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "r/ranks").mkdir(parents=True)
    (tmp_path / "r/ranks/rank-0.log").symlink_to(tmp_path / "mine")
    with pytest.raises(ExecuteError, match=r"rank-0\.log"):
        RunCopy(tmp_path / "r", ranks=1).write(ReadLine("uid", "[0] evil"))
    assert (tmp_path / "mine").read_text() == "mine"


def test_file_that_cannot_be_written_is_an_error_of_the_run(tmp_path: Path) -> None:
    copy = open_copy(tmp_path)
    (tmp_path / "kube.json").mkdir()
    with pytest.raises(ExecuteError, match=r"kube\.json cannot be written"):
        copy.release()
    with pytest.raises(ExecuteError, match=r"kube\.lock cannot be written"):
        open_copy(tmp_path / "gone")


def test_damaged_positions_are_ignored(tmp_path: Path) -> None:
    for text in ("", "[]", '{"a": 1}', '{"a": {"time": 1, "same": "x"}}', "[" * 99_999):
        (tmp_path / "kube.json").write_text(text)
        copy = RunCopy(tmp_path, ranks=1)
        assert copy.acquire()
        assert copy.positions == {}
        copy.release()


def test_log_lines_are_assigned_to_files() -> None:
    for line, file, text in (
        ("[12] loss [3]", "ranks/rank-12.log", "loss [3]"),
        ("[0]", "ranks/rank-0.log", ""),
        ('{"metrics": 3, "line": "{}"}', "ranks/rank-3.metrics.jsonl", "{}"),
        ("[0]:", "launcher.log", "[0]:"),  # from torchrun's list of failures
        ("{torn", "launcher.log", "{torn"),
    ):
        assert (parse(line, ranks=16).file, parse(line, ranks=16).text) == (file, text)
    assert parse(JOINED, ranks=16).event == Joined(rank=0, time=1.0, node="worker-0")
    assert isinstance(parse('{"event": 1, "rank": 2}', ranks=16).event, UnreadableEvent)


def test_times_of_lines_do_not_depend_on_the_time_zone(tmp_path: Path) -> None:
    copy = open_copy(tmp_path)
    for stamp in ("01:59:59.5+02:00", "00:00:00Z", "02:00:00.25+02:00", "23:00:00.123456789-01:00"):
        day = "2025-12-31" if stamp.startswith("23") else "2026-01-01"
        copy.write(ReadLine("uid", f"{day}T{stamp} [0] a"))
    copy.release()
    times = [float(line.split()[1]) for line in (tmp_path / files.RANK_TIMES.format(0)).read_text().splitlines()]
    assert [time - 1767225600 for time in times] == [-0.5, 0.0, 0.25]


TIMES = st.lists(st.integers(0, 5), max_size=30).map(sorted)


@given(
    times=TIMES,
    cuts=st.lists(st.integers(0, 30), max_size=4),
    nano=st.sampled_from([1, 10**8]),
    zone=st.sampled_from(["Z", "+02:00"]),
)
def test_each_line_is_copied_once_however_often_the_stream_breaks(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], cuts: list[int], nano: int, zone: str
) -> None:
    """Copy each line once although lines share timestamps and the API resumes at whole seconds."""
    log = []
    for index, time in enumerate(times):
        fraction = f"{time * nano:09d}".rstrip("0")
        log.append(f"2026-01-01T00:00:01{'.' if fraction else ''}{fraction}{zone} line {index}")
    copy = open_copy(tmp_path_factory.mktemp("run"))
    for cut in [*cuts, len(log)]:
        assert all(position.since == f"2026-01-01T00:00:01{zone}" for position in copy.positions.values())
        copy.write(ReadLine("uid", None))
        for line in log[:cut]:
            copy.write(ReadLine("uid", line))
    copy.release()
    lines = (copy.folder / "launcher.log").read_text().splitlines() if log else []
    assert lines == [f"line {index}" for index in range(len(log))]
