"""Find the reason of a launcher's end in its output; the texts are those of real launchers."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from orch_node.line_pipes import Pipes
from orch_node.protocol.events import Started
from orch_node.protocol.layout import NodeEntry
from orch_node.supervisor.launcher import LauncherLog
from orch_node.supervisor.torchrun import await_end

from tests.support.layouts import make_layout

WARNING = "[W1126 16:51:26.97 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
NO_IPV4 = """[mpiexec@node0] HYD_sock_get_iface_ip (../sock/hydra_sock_intel.c:421): unable to find interface eth0
[mpiexec@node0] Error setting up the bootstrap proxies
[mpiexec@node0]    You may try using -bootstrap option to select alternative launcher.
"""
LINE = "=" * 83 + "\n"
SSH = """[bstrap:0:3@node3] Error: Unable to run bstrap_proxy on 10.213.98.5 (pid 1552, exit code 65280)
[bstrap:0:3@node3]    You may try using -bootstrap option to select alternative launcher.
No ED25519 host key is known for 10.213.98.5 and you have requested strict checking.
Host key verification failed.
[mpiexec@node0] Error: Downstream from host 10.213.98.4 exited abnormally
"""
INTEL = f"""
{LINE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 2890 RUNNING AT 10.213.98.2
=   KILLED BY SIGNAL: 9 (Killed)
{LINE}"""
MPICH = f"""
{LINE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 2890 RUNNING AT 10.213.98.2
=   EXIT CODE: 9
{LINE}"""
OPEN_MPI = f"""{"-" * 74}
prterun noticed that process rank 1 with PID 2890 on node node1 exited on
signal 9 (Killed).
{"-" * 74}
"""
LOST_DAEMON = """A daemon failed to report back after being spawned. This could

  Local host:    node0
  Remote host:   node1
"""
LOST_CONNECTION = """PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-node0-12570@0,0] on node node0
  Remote daemon: [prterun-node0-12570@0,1] on node node1
"""
ADDRESSES = {"node0": "10.213.98.1", "node1": "10.213.98.2", "node3": "10.213.98.4", "node4": "10.213.98.5"}
NODES = tuple(NodeEntry(name, name, None, address, None, {}) for name, address in ADDRESSES.items())
LAYOUT = make_layout(*ADDRESSES, nodes=NODES)
STARTED = {rank: Started(rank=rank, node=f"node{rank}", pid=2891 + rank, wrapper=2889 + rank) for rank in (0, 1)}


def read_log(folder: Path, text: str) -> LauncherLog:
    (folder / "launcher.log").unlink(missing_ok=True)
    log = LauncherLog(folder / "launcher.log", LAYOUT)
    (folder / "launcher.log").write_text(text)
    return log


def test_reason_is_what_ended_the_launcher(tmp_path: Path) -> None:
    for text, reason in (
        (WARNING + SSH + WARNING, "node4 cannot be reached: Host key verification failed."),
        (NO_IPV4, "interface eth0 has no IPv4 address, which Intel MPI needs"),
        (LOST_DAEMON, "the daemon on node1 has ended"),
        (LOST_CONNECTION, "the daemon on node1 has ended"),
        (WARNING, ""),
        (WARNING + LINE, ""),  # separator
        ("torchrun on node1 ended with 255\n" + WARNING, "torchrun on node1 ended with 255"),
        ("orch:program-output\n", ""),  # of a node's login shell
        ("[mpiexec@node0] match_arg: unrecognized argument x\n", "node0: match_arg: unrecognized argument x"),  # hydra
    ):
        assert read_log(tmp_path, text).reason() == reason


def test_killed_rank_is_found_with_its_signal(tmp_path: Path) -> None:
    for text in (INTEL, MPICH, OPEN_MPI):
        (end,) = read_log(tmp_path, text).killed_ranks(STARTED)
        assert (end.rank, end.node, end.signal) == (1, "node1", "SIGKILL")


def test_output_of_an_earlier_attempt_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text(INTEL)
    log = LauncherLog(tmp_path / "launcher.log", LAYOUT)
    assert (log.reason(), log.killed_ranks(STARTED)) == ("", [])


def test_failure_of_the_last_node_to_end_is_returned() -> None:
    """Let a node fail right after it was seen running."""
    polls = iter((None, None, 1))
    ended, failing = mock.Mock(), mock.Mock()
    ended.poll.return_value, failing.poll.side_effect = 0, polls.__next__
    assert await_end({"node0": ended, "node1": failing}, Pipes(), []) == {"node0": 0, "node1": 1}
