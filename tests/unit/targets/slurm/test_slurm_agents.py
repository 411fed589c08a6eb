"""Check how the agents of a Slurm job connect, and which messages they accept."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from orch_node.line_pipes import Pipes
from orch_node.protocol import files, slurm
from orch_node.protocol import outcome as outcomes
from orch_node.protocol.agent import Alive, Leave, Ping, render_request
from orch_node.protocol.outcome import FAILED, Failure, Outcome
from orch_node.protocol.slurm import Submitted
from orch_node.slurm import agent as slurm_agent
from orch_node.slurm import agent_connections, job
from orch_node.slurm.agent_connections import AgentConnectionError, AgentConnections, PendingConnection
from orch_node.slurm.channels import JobAgents, JobChannel, is_superseded
from orch_node.slurm.signed_lines import AGENT, SUPERVISOR, SignatureError, SignedLines, connection_key
from orch_node.supervisor import agents as supervisor_agents
from orch_node.supervisor.core_reservation import AttemptResult

from orchestrator.paths import TRAIN
from tests.support.waiting import wait_until

# Start one agent per entry of `nodes` on this machine, as a Slurm step does on the nodes of a job.
SRUN = """#!/bin/sh
while [ "$1" != "$PYTHON" ]; do shift; done
for node in $NODES; do SLURMD_NODENAME=$node "$@" & done
wait
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run on a machine with an srun."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", "n1 n2")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setattr(agent_connections, "address_towards", lambda peers: "127.0.0.1")
    monkeypatch.setattr(agent_connections, "END_SECONDS", 0.2)
    folder = tmp_path / "run"
    (folder / "claims").mkdir(parents=True)
    (folder / slurm.CONFIG).write_text("{}")
    return folder


@pytest.fixture
def connections(run_dir: Path) -> Iterator[AgentConnections]:
    pending = AgentConnections(run_dir, ["n1", "n2"])
    yield pending
    pending.end()


@pytest.fixture
def silent_connections(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentConnections]:
    """Yield connections whose step starts no agents, so that a test can act as them."""
    monkeypatch.setattr(AgentConnections, "start", lambda self: subprocess.Popen(["sleep", "60"]))
    connections = AgentConnections(run_dir, ["n1", "n2"])
    yield connections
    connections.end()


def agents_of(run_dir: Path, connections: AgentConnections) -> JobAgents:
    turn = Submitted("12")
    return JobAgents(run_dir, ["n1", "n2"], "claims", Pipes(), connections=connections.connections, turn=turn)


def test_agents_answer_over_signed_lines(run_dir: Path, connections: AgentConnections) -> None:
    connections.accept_all(60.0)
    agents = agents_of(run_dir, connections)
    responses = agents.request(Ping(), Alive, seconds=60.0)
    assert set(responses) == {"n1", "n2"}
    agents.leave()
    assert connections.step.wait(60.0) == 0


STRANGERS = {
    "non-ascii key": '{"key": "é", "node": "n1"}\n'.encode(),
    "no signature": b'nonce {"node": "n1"}\n',
    "no JSON": b"\xff\xfe\n",
    "nothing": b"",
    "no end": b"x" * (2 << 20),
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_does_not_keep_the_nodes_out(connections: AgentConnections, sent: bytes) -> None:
    with socket.create_connection(connections.server.getsockname()) as stranger:
        stranger.setblocking(False)
        try:
            stranger.send(sent)
        except OSError:
            pass
        connections.accept_all(60.0)
    assert set(connections.hellos) == {"n1", "n2"}


def test_a_stranger_that_sends_a_byte_at_a_time_does_not_extend_the_limit(silent_connections: AgentConnections) -> None:
    ended = threading.Event()

    def drip() -> None:
        with socket.create_connection(silent_connections.server.getsockname()) as stranger:
            while not ended.wait(0.05):
                stranger.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(AgentConnectionError, match="no agent has connected from n1, n2"):
            silent_connections.accept_all(1.0)
    finally:
        ended.set()
        thread.join()
    assert time.monotonic() - began < agent_connections.HELLO_SECONDS, "that one connection may take"


def test_strangers_do_not_displace_a_node_that_has_not_introduced_itself(
    silent_connections: AgentConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_connections, "MAX_EXTRA_PENDING", 2)
    monkeypatch.setattr(agent_connections, "HELLO_SECONDS", 2.0)
    address = silent_connections.server.getsockname()
    thread = threading.Thread(target=silent_connections.accept_all, args=(30.0,))
    thread.start()
    first = socket.create_connection(address, timeout=30.0)
    strangers = [socket.create_connection(address) for _ in range(5)]
    try:
        time.sleep(0.5)
        slurm_agent.introduce("n1", silent_connections.key, first)
        with socket.create_connection(address, timeout=30.0) as second:
            slurm_agent.introduce("n2", silent_connections.key, second)
        thread.join(30.0)
        assert set(silent_connections.hellos) == {"n1", "n2"}
    finally:
        silent_connections.step.kill()
        thread.join(30.0)
        for connection in (first, *strangers):
            connection.close()


@given(data=st.binary(max_size=300), sizes=st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_without_the_key_never_introduce_a_node(
    silent_connections: AgentConnections, data: bytes, sizes: list[int]
) -> None:
    """Close the connection and accept no node, whatever bytes arrive in pieces of whatever sizes."""
    supervisor_end, stranger = socket.socketpair()
    with selectors.DefaultSelector() as selector, stranger:
        supervisor_end.setblocking(False)
        silent_connections.pending[supervisor_end.fileno()] = PendingConnection(supervisor_end, time.monotonic())
        selector.register(supervisor_end, selectors.EVENT_READ)
        pieces = itertools.cycle(sizes)
        while data:
            size = next(pieces)
            with contextlib.suppress(OSError):
                stranger.send(data[:size])
            data = data[size:]
            silent_connections.read(selector, supervisor_end.fileno())
        stranger.shutdown(socket.SHUT_WR)
        silent_connections.read(selector, supervisor_end.fileno())
    assert not silent_connections.pending
    assert supervisor_end.fileno() == -1
    assert not silent_connections.hellos


def test_a_node_that_does_not_share_the_run_folder_is_named(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_agent, "SHARED_SECONDS", 0.0)
    (run_dir / slurm.CONFIG).unlink()
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    assert slurm_agent.main([str(run_dir), "127.0.0.1:9"]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"n2 does not see {run_dir}")
    assert "--runs-dir" in message


def test_the_address_in_slurm_is_used_for_a_node_name_that_is_no_host(run_dir: Path) -> None:
    scontrol = run_dir.parent / "bin" / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "NodeName=$5 NodeAddr=127.0.0.1 NodeHostName=x"\n')
    scontrol.chmod(0o755)
    _, target = agent_connections.resolve("no-such-host.invalid")
    assert target[0] == "127.0.0.1"


def ends(key: bytes = b"key") -> tuple[SignedLines, SignedLines]:
    return (SignedLines(key, sender=SUPERVISOR, receiver=AGENT), SignedLines(key, sender=AGENT, receiver=SUPERVISOR))


def test_a_signed_line_arrives_as_it_was() -> None:
    supervisor, agent = ends()
    for line in (b"one\n", b"two\n", b"two\n"):
        assert agent.open(supervisor.seal(line)) == line
        assert supervisor.open(agent.seal(line)) == line


def test_a_line_that_is_changed_repeated_left_out_or_returned_is_refused() -> None:
    supervisor, agent = ends()
    first, second = supervisor.seal(b"one\n"), supervisor.seal(b"two\n")
    for line in (first.replace(b"one", b"own"), second, b"one\n"):
        with pytest.raises(SignatureError):
            agent.open(line)
    assert agent.open(first) == b"one\n"
    with pytest.raises(SignatureError):
        agent.open(first)
    with pytest.raises(SignatureError):
        supervisor.open(first)


def test_keys_of_connections_differ() -> None:
    keys = {connection_key(*parts) for parts in (("k", "a", "b"), ("k", "b", "a"), ("l", "a", "b"))}
    assert len(keys) == 3


def test_a_node_that_sends_unsigned_lines_is_lost_and_fills_no_disk(tmp_path: Path) -> None:
    supervisor_end, node_end = socket.socketpair()
    channel = JobChannel("n1", tmp_path / "n1.log", supervisor_end, ends()[0])
    pipes = Pipes()
    channel.open(pipes)
    with node_end:
        node_end.send(b"junk\n" * 1000)
        pipes.pump(1.0)
    assert not channel.connected
    assert "signature" in channel.problem()
    assert not channel.log.exists()


def test_an_agent_ends_its_ranks_at_a_question_that_is_not_signed(run_dir: Path, connections: AgentConnections) -> None:
    connections.accept_all(60.0)
    rank = subprocess.Popen(["sleep", "600"], env={"ORCH_RUN_DIR": str(run_dir)})
    for connection, _ in connections.connections.values():
        connection.sendall(b'{"ask": "leave"}\n')
    assert rank.wait(60.0) == -signal.SIGTERM
    connections.step.wait(60.0)


def test_the_log_of_a_channel_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_agents, "LOG_BYTES", 100)
    channel = supervisor_agents.Channel("n1", [], tmp_path / "n1.log")
    for _ in range(50):
        channel.handle_line(b"a login shell that greets\n")
    assert channel.log.stat().st_size == 100


FLOOD = "import sys; [print('flood', i, file=sys.stderr) for i in range(10000)]; print('the reason', file=sys.stderr)"


def test_standard_error_of_a_node_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_agents, "LOG_BYTES", 1000)
    command = [sys.executable, "-c", FLOOD + "; sys.stdin.read(1); print('gone', file=sys.stderr)"]
    channel = supervisor_agents.Channel("n1", command, tmp_path / "n1.log")
    channel.open(Pipes())
    wait_until(lambda: channel.problem() == "the reason", "the program has written all")
    channel.shorten_log()
    assert channel.log.stat().st_size == 1000
    os.write(channel.stdin, b" ")
    wait_until(lambda: channel.problem() == "gone", "the log continues")
    assert channel.log.stat().st_size == 1005
    channel.kill()


def test_an_agent_survives_sigterm_and_reports_it(run_dir: Path, connections: AgentConnections) -> None:
    """Keep the agents running at SIGTERM, which Slurm sends to all steps before it ends them."""
    connections.accept_all(60.0)
    agents = agents_of(run_dir, connections)
    assert set(agents.request(Ping(), Alive, seconds=60.0)) == {"n1", "n2"}
    assert not agents.preempted
    (pid,) = [int(text) for text in running("n2", run_dir)]
    os.kill(pid, signal.SIGTERM)

    def reported() -> bool:
        agents.request(Ping(), Alive, seconds=10.0)
        return agents.preempted

    wait_until(reported, "that the agent reports it", 60.0)
    assert set(agents.request(Ping(), Alive, seconds=60.0)) == {"n1", "n2"}
    agents.leave()


def running(node: str, run_dir: Path) -> list[str]:
    """Return the pids of the agent of a node."""
    matches = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            facts = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        signs = (b"slurm-agent", os.fsencode(run_dir), f"SLURMD_NODENAME={node}".encode())
        if set(signs) <= set(facts.split(b"\0")):
            matches.append(path.name)
    return matches


@pytest.mark.parametrize(
    ("latest", "superseded"),
    [
        (Submitted("12", 1), False),
        (Submitted("12", 2), True),
        (Submitted("12", 0), False),
        (Submitted("13", 0), True),
        (Submitted("9", 5), False),
    ],
    ids=["this", "restart", "older-restart", "later-job", "earlier-job"],
)
def test_an_older_start_of_a_job_is_superseded(run_dir: Path, latest: Submitted, superseded: bool) -> None:
    text = json.dumps({"job": latest.job, "restarts": latest.restarts, "notes": []})
    (run_dir / slurm.JOB).write_text(text)
    assert is_superseded(run_dir, Submitted("12", 1)) is superseded


def test_a_superseded_start_writes_no_outcome(run_dir: Path) -> None:
    """Exit before the outcome of the later start could be overwritten."""
    program = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from orch_node.slurm import job
sys.exit(job.fail(Path(sys.argv[2]), "n2 cannot be reached", 1.0))
"""
    (run_dir / slurm.JOB).write_text(json.dumps({"job": "12", "restarts": 1, "notes": []}))
    command = [sys.executable, "-c", program, str(TRAIN / "lib"), str(run_dir)]
    for restarts, is_written in (("0", False), ("1", True)):
        variables = {**os.environ, "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": restarts}
        result = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert result.returncode == 1
        assert ("Slurm has restarted this job elsewhere" in result.stderr) is not is_written, result.stderr
        assert (run_dir / files.OUTCOME).exists() is is_written


@pytest.mark.parametrize(
    ("restarts", "state", "is_done"), [("1", "done", True), ("0", "done", False), ("1", "failed", False)]
)
def test_a_restarted_job_does_not_repeat_a_run_that_is_done(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, state: str, is_done: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    (run_dir / files.OUTCOME).write_text(outcomes.render(Outcome(state=state)))
    assert job.is_done(run_dir) is is_done


def test_the_end_of_the_connections_sends_no_signal_that_cancels_a_step(
    silent_connections: AgentConnections, run_dir: Path
) -> None:
    """Send no SIGTERM, at which srun cancels the step of this number, also in a later start of the job."""
    script = f"trap 'touch {run_dir}/terminated' TERM; touch {run_dir}/ready; while :; do sleep 0.1; done"
    silent_connections.step.kill()
    silent_connections.step.wait()
    silent_connections.step = subprocess.Popen(["sh", "-c", script])
    wait_until((run_dir / "ready").exists, "that the step runs")
    silent_connections.end()
    assert silent_connections.step.wait(60.0) == -signal.SIGKILL
    assert not (run_dir / "terminated").exists()


def test_a_supervisor_obeys_the_stop_file(run_dir: Path, connections: AgentConnections) -> None:
    connections.accept_all(60.0)
    agents = agents_of(run_dir, connections)
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        agents.obey_run_folder()
        assert received == []
        (run_dir / files.STOP).write_text("")
        agents.obey_run_folder()
        assert received == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, previous)
    agents.leave()


def test_a_supervisor_that_stood_still_loses_no_node(run_dir: Path, connections: AgentConnections) -> None:
    connections.accept_all(60.0)
    agents = agents_of(run_dir, connections)
    agents.watch()
    for channel in agents.channels.values():
        channel.last_response -= 60.0
    agents.last_watch -= 60.0  # Pretend that the process was stopped for a minute.
    assert 60.0 <= agents.watch() < 70.0
    assert agents.lost == {}
    assert [node for node, text in agents.news if "did not run" in text] == ["n1"]
    agents.leave()


QUICK_AGENT = """
import sys
sys.path.append(sys.argv[1])
from orch_node.agent import agent
agent.SILENCE_SECONDS, agent.STANDSTILL_SECONDS = 2.0, 1.0
sys.exit(agent.main(sys.argv[2:]))
"""


def test_an_agent_that_was_stopped_continues(run_dir: Path) -> None:
    """Stop the agent as `scontrol suspend` does, so that no request arrives while it is stopped."""
    arguments = (str(TRAIN / "lib"), str(run_dir), "n1", str(run_dir / "claims"))
    with subprocess.Popen(
        [sys.executable, "-c", QUICK_AGENT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        for pause in (0.0, 4.0):
            if pause:
                agent.send_signal(signal.SIGSTOP)
                time.sleep(pause)
                agent.send_signal(signal.SIGCONT)
                time.sleep(1.0)
            agent.stdin.write(render_request(Ping()))
            agent.stdin.flush()
            assert b"ping" in agent.stdout.readline()
        agent.stdin.write(render_request(Leave()))
        agent.stdin.flush()
        assert agent.wait(60.0) == 0


def test_a_memory_failure_is_explained_by_slurms_message(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    line = "slurmstepd: error: StepId=12.1 exceeded memory limit (700 > 500), being killed"
    (run_dir / files.LAUNCHER_LOG).write_text(f"{line}\n")
    explained = job.explain_memory_failure(run_dir, AttemptResult(FAILED, "the launcher ended with exit code 137"))
    assert explained.problem == f"{slurm.OUT_OF_MEMORY}: {line}; the launcher ended with exit code 137"
    killed = AttemptResult(FAILED, failure=Failure(rank=1, signal="SIGKILL"))
    result = job.explain_memory_failure(run_dir, killed)
    assert result.failure is not None
    assert result.failure.oom == line
    raised = AttemptResult(FAILED, failure=Failure(rank=1, code=1))
    assert job.explain_memory_failure(run_dir, raised) == raised


def test_a_rank_that_lost_its_peer_is_not_blamed_if_memory_ran_out(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run torchrun: Slurm kills all processes of a node, so only the rank of the other node reports its end."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    line = "slurmstepd-n2: error: StepId=12.1 exceeded memory limit (700 > 500), being killed"
    (run_dir / files.LAUNCHER_LOG).write_text(f"{line}\n")
    (run_dir / "slurm-12.out").write_text("slurmstepd-n1: error: Exceeded job memory limit\n")
    lost_peer = Failure(rank=0, node="n1", code=1, text="RuntimeError: Connection closed by peer [10.0.0.2]:40153")
    result = job.explain_memory_failure(run_dir, AttemptResult(FAILED, failure=lost_peer))
    assert result.failure is None
    assert result.problem == f"{slurm.OUT_OF_MEMORY}: {line}"


@pytest.mark.parametrize(
    ("problem", "before", "limit", "refused"),
    [
        ("checkpoint at step 12", "checkpoint at step 11", None, ""),
        ("checkpoint at step 12", None, None, ""),
        ("checkpoint at step 12", "checkpoint at step 12", None, "no later than"),
        ("checkpoint at step 12", "checkpoint at step 11", 2, "as often as --slurm max-requeues"),
        ("checkpoint at step 12", "checkpoint at step 11", 3, ""),
        ("without a checkpoint: the run had not started", None, None, "without a checkpoint"),
    ],
    ids=["later", "first", "same-step", "limit", "below-limit", "no-checkpoint"],
)
def test_a_job_is_requeued_only_while_its_checkpoint_advances(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, problem: str, before: str | None, limit: int | None, refused: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    if before is not None:
        earlier = Outcome(state="preempted", problem=before)
        (run_dir / "outcome-1.json").write_text(outcomes.render(earlier))
    result = job.requeue_problem(run_dir, problem, limit)
    assert refused in result
    assert bool(result) is bool(refused)


@pytest.mark.parametrize(
    ("problem", "recorded"),
    [
        pytest.param("checkpoint at step 12", "checkpoint at step 12; not requeued: the job was requeued", id="limit"),
        pytest.param("without a checkpoint: too late", "without a checkpoint: too late", id="no-checkpoint"),
    ],
)
def test_the_outcome_says_why_a_job_with_a_checkpoint_is_not_requeued(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, problem: str, recorded: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    path = run_dir / files.OUTCOME
    path.write_text(outcomes.render(Outcome(state="preempted", problem=problem)))
    job.requeue(run_dir, 2)
    result = outcomes.parse(path.read_bytes()).problem
    assert result is not None
    assert result.startswith(recorded)
    assert result.count(problem) == 1
