"""Compare ccl with gloo, MPI and the speed of the link between hosts; print medians of alternating turns.

    python benchmarks/between_hosts.py                           # two hosts, unshaped links
    python benchmarks/between_hosts.py --hosts 4 --rate 1gbit --json out.json

Each host runs one rank; the hosts are namespaces of this machine (hosts.py; needs root). A ratio below 1 means that
ccl is faster. The speed of the link is measured with sockets between the same hosts just before. The share of the link
is the time that the necessary bytes of each host need, divided by the time of the operation; `sent` is the number of
bytes that ccl sends, divided by the necessary bytes. Operations of more than 10 s are left out. MPI is the same libmpi
through mpi4py, if that is installed, without BF16.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import collectives
import hosts
import torch
import torch.distributed as dist
from collectives import MB, SIZES, size_text
from measure import describe_machine

RATES = {"none": 0, "10gbit": 10_000, "1gbit": 1_000, "200mbit": 200}  # Mbit/s
TOO_LONG = 10.0  # seconds of one operation
LONG_ENOUGH = 0.01  # seconds of one sample
SHARE = 0.9  # least share of the link, from 4 MB on
SLOWER = 1.02  # allowed ratio to gloo; smaller differences are noise
SENT = Path("/sys/class/net/net0/statistics/tx_bytes")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", choices=RATES, default="none", help="rate of each host's link")
    parser.add_argument("--repeat", type=int, default=15, help="maximum number of samples per measurement")
    parser.add_argument("--seconds", type=float, default=2.0, help="approximate seconds per measurement")
    parser.add_argument("--max-mb", type=int, default=1024, help="leave out larger messages")
    parser.add_argument("--only", default="", help="measure only this collective, or `steps`")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--link", type=float, help="this process is a rank: bytes/s of the link")
    return parser.parse_args()


def start_ranks(options: argparse.Namespace) -> int:
    """Start this script again on each host, with the hydra of this environment."""
    with hosts.network(options.hosts, RATES[options.rate]) as network:
        link = hosts.link_rate(network.hosts)
        with tempfile.TemporaryDirectory() as folder:
            launch = Path(folder) / "launch"
            launch.write_text(launcher(network.hosts))
            launch.chmod(0o700)
            ranks = [sys.executable, *sys.argv, "--link", str(link)]
            command = [*mpiexec(network, launch), *ranks]
            environment = os.environ | variables(network)
            return subprocess.run(command, env=environment, check=False).returncode


def launcher(members: list[hosts.Host]) -> str:
    """Return a script that replaces ssh: it runs the command that follows a host's address on that host."""
    cases = "".join(f"{host.address}) host='{' '.join(host.command())}' ;;\n" for host in members)
    find = f"until case $1 in {hosts.NETWORK}.*) ;; *) false ;; esac; do shift; done"
    return f'#!/bin/sh\n{find}\ncase $1 in\n{cases}esac\nshift\nexec $host sh -c "$*"\n'


def mpiexec(network: hosts.Network, launch: Path) -> list[str]:
    """Return the command of hydra on the switch; there, hydra needs the launcher for every host."""
    hydra = str(Path(sys.executable).parent / "mpiexec.hydra")
    addresses = ",".join(host.address for host in network.hosts)
    return [
        *("setpriv", "--pdeathsig", "KILL", "nsenter", "--target", str(network.switch.pid), "--net", "--uts", hydra),
        *("-bootstrap", "ssh", "-bootstrap-exec", str(launch), "-iface", "net0", "-hosts", addresses),
        *("-n", str(len(network.hosts)), "-ppn", "1"),
    ]


def variables(network: hosts.Network) -> dict[str, str]:
    """Return the variables that orch sets for ranks on several nodes; each rank pins itself to a core."""
    return {
        "MASTER_ADDR": network.hosts[0].address,
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "net0",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "net0",
        "I_MPI_PIN": "0",
    }


def bytes_to_send(name: str, size: int, ranks: int) -> float:
    """Return the least number of bytes that each host has to send."""
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks * size


def samples(expected: float, options: argparse.Namespace) -> tuple[int, int]:
    """Return the number of samples and of operations per sample, equal on all ranks.

    Args:
        expected: seconds of one operation.
        options: command line options.
    """
    inner = min(20, max(1, int(LONG_ENOUGH / expected)))
    return min(options.repeat, max(3, int(options.seconds / (expected * inner)))), inner


def collective_rows(groups: dict, options: argparse.Namespace) -> list[dict]:

    ranks, mpi = dist.get_world_size(), collectives.raw_mpi()
    works = {name: work for name, work in collectives.works().items() if options.only in ("", name)}
    sizes = [size for size in SIZES if size <= options.max_mb * MB]
    rows = []
    for name, dtype, size in itertools.product(works, (torch.float32, torch.bfloat16), sizes):
        least = bytes_to_send(name, size, ranks) / options.link
        if least > TOO_LONG:
            continue
        part = torch.zeros(max(1, size // dtype.itemsize // ranks), dtype=dtype)
        tensor = torch.zeros(part.numel() * ranks, dtype=dtype)
        cases = {kind: partial(works[name], tensor, part, group) for kind, group in groups.items()}
        cases |= collectives.mpi_cases(mpi, name, tensor, part)
        times = collectives.time_turns(cases, *samples(max(least, 0.0005), options))
        rows.append(
            {f"{kind}_s": statistics.median(seconds) for kind, seconds in times.items()}
            | {
                "name": name,
                "dtype": str(dtype).removeprefix("torch."),
                "bytes": size,
                "least_s": least,
                "sent": sent_by(cases["ccl"]) / bytes_to_send(name, size, ranks),
            }
        )
        if dist.get_rank() == 0:
            print(line(rows[-1]), flush=True)
    return rows


def step_rows(groups: dict, options: argparse.Namespace) -> list[dict]:
    """Measure steps of DistributedDataParallel as the benchmark of one host does."""

    rows = []
    for model in collectives.MODELS:
        rows += collectives.ddp_steps(groups, options.repeat, model)
        if dist.get_rank() == 0:
            title, ratio = rows[-1]["what"], rows[-1]["ratio"]
            print(f"{title:32}{rows[-1]['ccl_s'] * 1e3:11.3f}{ratio:8.2f}", flush=True)
    return rows


def sent_by(work) -> float:
    """Return the bytes that leave this host while all ranks do this work."""

    dist.barrier()
    before = int(SENT.read_text())
    work()
    dist.barrier()
    return int(SENT.read_text()) - before


def line(row: dict) -> str:
    ratio = row["ccl_s"] / row["gloo_s"]
    mpi_ratio = f"{row['ccl_s'] / row['mpi_s']:8.2f}" if "mpi_s" in row else " " * 8
    share = row["least_s"] / row["ccl_s"]
    poor = ratio > SLOWER or (row["bytes"] >= 4 * MB and share < SHARE)
    return (
        f"{row['name']:15}{row['dtype']:9}{size_text(row['bytes']):>8}{row['ccl_s'] * 1e3:11.3f}{ratio:8.2f}{mpi_ratio}"
        f"{share:8.2f}{row['sent']:8.2f}{'  missed' if poor else ''}"
    )


def main() -> int:
    options = arguments()
    if options.link is None:
        return start_ranks(options)
    os.sched_setaffinity(0, {hosts.core_of(int(os.environ["PMI_RANK"]))})
    rank, size, groups = collectives.start_groups()

    if rank == 0:
        print(f"On {describe_machine()}")
        print(f"{size} hosts, rate {options.rate}: sockets carry {options.link * 8 / 1e6:.0f} Mbit/s")
        print(f"{'':32}{'ccl ms':>11}{'/gloo':>8}{'/mpi':>8}{'share':>8}{'sent':>8}", flush=True)
    rows = collective_rows(groups, options)
    if options.only in ("", "steps"):
        rows += step_rows(groups, options)
    if rank == 0 and options.json:
        about = {"machine": describe_machine(), "hosts": size, "rate": options.rate, "link": options.link}
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
