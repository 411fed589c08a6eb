"""job.json: the run of a job of a batch system; the first message of its agents, and the signatures of all others."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, field

from orch_node.protocol import values
from orch_node.protocol.cores import Core
from orch_node.protocol.layout import RunPrecision

CONFIG = "job.json"
SCHEMA = 1
# A placeholder in the launcher's command for node0's address, which only the job knows.
NODE0 = "address-of-node0"
SUPERVISOR, AGENT = b"supervisor", b"agent"
DIGEST = "sha256"
SIGNATURE_LENGTH = 64  # hexadecimal digits


@dataclass(frozen=True)
class JobConfig:
    """The plan of a run, as its job reads it."""

    system: str  # the name of the batch system
    nodes: int  # with ranks
    spare_nodes: int
    ppn: int  # ranks per node
    port: int
    backend: str
    backend_module: str
    setvars: str
    timeout_seconds: float
    env: dict[str, str]  # of all ranks
    preload: tuple[str, ...]  # names of libraries for LD_PRELOAD, if the nodes have them
    torch: str | None
    needs_bf16: bool
    mpi: str  # the implementation of its hostfile, or empty
    launcher: tuple[str, ...]  # the launcher's command
    launcher_env: dict[str, str]
    files: dict[str, str]  # name in the run's folder -> content
    options: tuple[str, ...]  # of the supervisor
    requeue: bool = False  # whether a preempted job is requeued
    max_requeues: int | None = None
    precision: RunPrecision | None = None  # None if the plan has decided
    working_directory: str = ""  # in which the script starts; empty for the run's folder
    on_gpus: bool = False  # whether the backend is for GPUs
    schema: int = SCHEMA


@dataclass(frozen=True)
class Hello:
    """The first line of an agent, which describes its node."""

    node: str
    host: str
    cores: tuple[Core, ...]  # of the allocation
    confined: bool  # whether the system confines the job to these cores
    flags: tuple[str, ...]  # of the CPU
    address: str  # by which it reaches node0
    interface: str
    gpus: tuple[int, ...] = ()  # the NUMA node of each GPU; -1 if it is unknown


@dataclass(frozen=True)
class Submitted:
    """slurm-job.json or that of another system: the job of a run."""

    job: str
    restarts: int = 0
    notes: tuple[str, ...] = field(default=())  # remarks of the job for the user


def job_file(system: str) -> str:
    """Return the name of the file with the job of a run, in the run's folder."""
    return f"{system}-job.json"


def job_number(job: str) -> int:
    """Return the number at the beginning of a job's id; -1 if there is none."""
    digits = re.match("[0-9]*", job)
    return int(digits[0]) if digits and digits[0] else -1


def parse(text: str | bytes) -> JobConfig:
    """Parse job.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(JobConfig, text, CONFIG)


def parse_submitted(text: str | bytes) -> Submitted:
    """Parse the file with the job of a run.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Submitted, text, "the record of the job")


class SignatureError(ConnectionError):
    """A line that the other end has not sent on this connection, or not at this position."""


class SignedLines:
    """The signatures of one end of a connection between the supervisor and an agent, for lines in both directions.

    Another host cannot add, change, repeat or drop a line unnoticed: each carries an HMAC of its sender, its number and
    its content. The key of a connection is derived from the job's key and a random number of each end, so lines of
    another connection are not accepted. The lines are not encrypted.
    """

    def __init__(self, key: bytes, *, sender: bytes, receiver: bytes) -> None:
        self.key = key
        self.sender, self.receiver = sender, receiver
        self.sent = self.received = 0

    def sign(self, line: bytes) -> bytes:
        """Return the line with its signature, ready to be sent."""
        signature = compute_signature(self.key, self.sender, self.sent, line)
        self.sent += 1
        return signature + b" " + line

    def verify(self, signed: bytes) -> bytes:
        """Return the line that the other end has signed.

        Raises:
            SignatureError: if it is not the next line of the other end.
        """
        signature, line = signed[:SIGNATURE_LENGTH], signed[SIGNATURE_LENGTH + 1 :]
        if not hmac.compare_digest(
            signature, compute_signature(self.key, self.receiver, self.received, line.rstrip(b"\n") + b"\n")
        ):
            raise SignatureError("a line does not have the signature of the other end")
        self.received += 1
        return line


def compute_signature(key: bytes, sender: bytes, number: int, line: bytes) -> bytes:
    """Return the signature of the line with this number."""
    message = b"%s %d %s" % (sender, number, line)
    return hmac.new(key, message, DIGEST).hexdigest().encode()


def nonce() -> str:
    """Return a random number, used once."""
    return secrets.token_hex(16)


def connection_key(job_key: str, supervisor_nonce: str, agent_nonce: str) -> bytes:
    """Return the key that signs the lines of one connection."""
    message = f"orch {supervisor_nonce} {agent_nonce}"
    return hmac.new(job_key.encode(), message.encode(), DIGEST).digest()
