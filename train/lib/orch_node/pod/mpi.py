"""Prepare MPI between pods: ssh with the key of the job, and the files for the supervisor.

The operator mounts the same key pair in all pods of a job. It authorizes the launcher, and it is
the host key of every worker, so that the launcher can verify the workers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orch_node import disk, whole_files
from orch_node import program as own
from orch_node.pod.relay import emit_event
from orch_node.protocol import files, mpirun
from orch_node.protocol import layout as layouts
from orch_node.protocol.environment import local_rank_variables, preload_variables
from orch_node.protocol.events import Waiting
from orch_node.protocol.layout import NodeEntry, Placement, RunLayout
from orch_node.protocol.pod import PodConfig
from orch_node.standalone import facts

# The operators' variables for the file: Intel MPI's first, then those of MPICH and Open MPI.
HOSTFILES = ("I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile")
HOSTFILE = "/etc/mpi/hostfile"  # where Kubeflow Trainer mounts it
# The operators' names and those of orch.
FLAVOURS = {"Intel": "intel", "OpenMPI": "openmpi"}
SSHD = "/usr/sbin/sshd"
WAIT_SECONDS = 1800.0
TELL_SECONDS = 30.0
IMAGE = "`orch image build`"  # repairs a pod
PORT = "29500"  # of the rendezvous, unless the pod sets MASTER_PORT
# Open MPI exports only variables that its options name; hydra exports all.
PASSED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "HF_HOME",
    "TRANSFORMERS_CACHE",
    "HF_TOKEN_PATH",
    "ORCH_RUN_DIR",
    "ORCH_ATTEMPT",
    "LOGLEVEL",
)


class MpiError(Exception):
    """An error whose message is the reason, in one sentence, why MPI cannot start."""


def node_name(host: str) -> str:
    """Return the name of a pod's node in the plan.

    It is `worker-3` for orch-x-worker-3 and for orch-x-3 (of an Indexed Job), and `node-3` for
    orch-x-node-0-3.
    """
    name = host.partition(".")[0]
    if match := re.search(r"-(worker|node)(?:-0)?-(\d+)$", name):
        return f"{match.group(1)}-{match.group(2)}"
    match = re.fullmatch(r"orch-.+-(\d+)", name)
    return f"worker-{match.group(1)}" if match else host


def rank_variables(env: Mapping[str, str], preload: Sequence[str], libraries: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every rank; LD_PRELOAD has the libraries that this image has."""
    paths = [libraries[name] for name in preload if name in libraries]
    return {**preload_variables(paths), **env}


def sshd(config: PodConfig) -> list[str]:
    """Return the command of a worker's sshd, which does not need root."""
    if not os.access(SSHD, os.X_OK):
        raise SystemExit(f"error: the image has no {SSHD}.")
    folder = private_folder()
    keys = Path(config.ssh.folder)
    options = {
        "Port": config.ssh.port,
        "HostKey": own_copy(keys / "id_rsa", folder / "host_key"),
        "AuthorizedKeysFile": keys / "authorized_keys",
        "StrictModes": "no",  # root owns the mounted secret; its group is the pod's
        "PidFile": "none",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "MaxStartups": "1000",
    }
    path = folder / "sshd_config"
    path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    return [SSHD, "-D", "-e", "-f", str(path)]


def prepare(config: PodConfig, script: list[str]) -> tuple[list[str], dict[str, str]]:
    """Wait for the workers and write the files of the run.

    Returns:
        The command and the environment of the supervisor.

    Raises:
        MpiError: if a worker does not respond, or a file or program is missing.
    """
    run_dir = Path(config.run_dir)
    hosts = read_hostfile(config.pods)
    ssh_config = write_ssh_config(config, hosts)
    await_workers(hosts, config.ssh.port)
    try:
        for name, content in run_files(config, hosts).items():
            whole_files.write(run_dir / name, content)
    except OSError as error:
        raise MpiError(disk.describe_error(run_dir, error)) from None
    ranks = own.command("rank", "--run", str(run_dir), "--", *script)
    launcher = launch(config, run_dir / files.HOSTFILE, ranks)
    supervise = [
        *own.command("supervise", str(run_dir)),
        f"--claims={tempfile.gettempdir()}/orch-claims",
        f"--stall-timeout={config.stall_timeout:g}",
        *([f"--max-restarts={config.max_restarts}"] if config.max_restarts else []),
        *([f"--first-attempt={config.attempt}"] if config.attempt > 1 else []),
        "--",
        *launcher,
    ]
    return supervise, os.environ | launcher_variables(ssh_config, config.pods)


def launcher_variables(ssh_config: Path, pods: int) -> dict[str, str]:
    """Return the variables with which the MPI launchers use ssh, from this pod alone: others have no configuration."""
    return {
        "ORCH_SSH_CONFIG": str(ssh_config),
        "ORCH_NODE0_AWAY": "1",  # no rank runs in this pod
        "I_MPI_PIN": "0",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": f"-F {ssh_config}",
        "I_MPI_HYDRA_BRANCH_COUNT": str(pods),
        "PRTE_MCA_plm_ssh_args": f"-F {ssh_config}",  # Open MPI 5
        "OMPI_MCA_plm_rsh_args": f"-F {ssh_config}",  # Open MPI 4
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


def read_hostfile(pods: int) -> list[str]:
    """Return the names of the first `pods` workers from the operator's hostfile.

    Raises:
        MpiError: if it cannot be read or has too few workers.
    """
    hostfiles = (os.environ[name] for name in HOSTFILES if name in os.environ)
    path = next(hostfiles, HOSTFILE)
    try:
        lines = Path(path).read_text().split("\n")
    except OSError as error:
        raise MpiError(f"the operator's hostfile cannot be read: {error}") from None
    hosts = [re.split(r"[\s:]", line.strip())[0] for line in lines if line.strip()]
    if len(hosts) < pods:
        raise MpiError(f"{path} has {len(hosts)} worker{'s' * (len(hosts) != 1)}, the run needs {pods}.")
    return hosts[:pods]


def write_ssh_config(config: PodConfig, hosts: list[str]) -> Path:
    """Write the ssh configuration, which knows both hydra's host names and the agents' node names."""
    folder = private_folder()
    keys = Path(config.ssh.folder)
    public = " ".join((keys / "id_rsa.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"* {public}\n")
    common = {
        "Port": config.ssh.port,
        "IdentityFile": own_copy(keys / "id_rsa", folder / "id_rsa"),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": 10,
        "ConnectionAttempts": 10,
        "ServerAliveInterval": 5,
        "LogLevel": "ERROR",
    }
    aliases = [f"Host {node_name(host)}\n  HostName {host}\n" for host in hosts]
    lines = [f"  {name} {value}\n" for name, value in common.items()]
    path = folder / "config"
    path.write_text("".join([*aliases, "Host *\n", *lines]))
    return path


def await_workers(hosts: list[str], port: int) -> None:
    """Wait until every worker accepts connections, and report those that do not yet.

    Raises:
        MpiError: if one does not within half an hour.
    """
    start = last_report = time.monotonic()
    missing = list(hosts)
    while missing := [host for host in missing if not accepts_connections(host, port)]:
        now = time.monotonic()
        names = ", ".join(map(node_name, missing[:8]))
        if now - start > WAIT_SECONDS:
            raise MpiError(f"no answer for {WAIT_SECONDS:.0f} s from {names}.")
        if now - last_report > TELL_SECONDS:
            emit_event(Waiting(text=f"waiting for {len(missing)} pod{'s' * (len(missing) != 1)}: {names}"))
            last_report = now
        time.sleep(0.5)


def accepts_connections(host: str, port: int) -> bool:
    """Return whether a host accepts connections on a port."""
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False


def run_files(config: PodConfig, hosts: list[str]) -> dict[str, str]:
    """Return the contents of layout.json, env.json and hostfile, as orch writes them on SSH nodes."""
    rendezvous = {"MASTER_ADDR": hosts[0], "MASTER_PORT": os.environ.get("MASTER_PORT", PORT)}
    variables = rank_variables(config.env, config.preload, facts.libraries(Path(sys.prefix)))
    slots = ((host, config.ppn) for host in hosts)
    return {
        files.LAYOUT: layouts.render(layout_of(config, hosts)),
        files.ENVIRONMENT: json.dumps(variables | rendezvous),
        files.HOSTFILE: mpirun.hostfile(FLAVOURS[config.mpi or ""], slots),
    }


def layout_of(config: PodConfig, hosts: list[str]) -> RunLayout:
    """Return the layout of the run on these hosts."""
    return RunLayout(
        world_size=len(hosts) * config.ppn,
        backend=config.backend,
        backend_module=config.backend_module,
        timeout_seconds=config.timeout_seconds,
        precision=config.precision,
        working_directory=config.project.working_directory if config.project else "",
        nodes=tuple(node_entry(host) for host in hosts),
        ranks=tuple(
            placement(config, host, rank=node * config.ppn + local, local=local)
            for node, host in enumerate(hosts)
            for local in range(config.ppn)
        ),
    )


def node_entry(host: str) -> NodeEntry:
    """Return the layout entry of a pod of which only the name is known."""
    return NodeEntry(
        name=node_name(host),
        host=host.partition(".")[0],
        torch=None,
        address=None,
        interface=None,
        env={},
        repair=IMAGE,
        recorded=False,
    )


def placement(config: PodConfig, host: str, *, rank: int, local: int) -> Placement:
    """Return the placement of a rank, which is not pinned."""
    return Placement(
        rank=rank,
        node=node_name(host),
        local_rank=local,
        local_world_size=config.ppn,
        cpus=(),
        worker_cpus=(),
        threads=config.threads,
        env=local_rank_variables(config.env, local, config.ppn),
    )


def launch(config: PodConfig, hostfile: Path, ranks: list[str]) -> tuple[str, ...]:
    """Return the command of the MPI launcher.

    Raises:
        MpiError: if the image does not have it.
    """
    if FLAVOURS[config.mpi or ""] == "openmpi":
        exported = [name for name in PASSED if name in os.environ or name.startswith("ORCH_")]
        return mpirun.open_mpi(program("mpirun"), str(hostfile), config.world_size, ranks, exported=exported).argv
    return mpirun.intel(program("mpiexec.hydra"), str(hostfile), config.world_size, ranks).argv


def program(name: str) -> str:
    """Return the path of a program, preferably in the folder of this Python.

    MPI launchers find their files relative to this path.

    Raises:
        MpiError: if the image does not have it.
    """
    candidate = Path(sys.executable).parent / name
    path = str(candidate) if candidate.exists() else shutil.which(name)
    if path is None:
        raise MpiError(f"the image has no {name}.")
    return path


def private_folder() -> Path:
    """Create a temporary folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="orch-ssh-"))


def own_copy(key: Path, target: Path) -> Path:
    """Copy a key to a private file, because ssh refuses a key that others can read."""
    target.touch(0o600)
    shutil.copyfile(key, target)
    return target
