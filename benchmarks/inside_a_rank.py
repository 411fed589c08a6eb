"""Compare what one rank does besides training, under orch and under torchrun on the same cores.

    python benchmarks/inside_a_rank.py [--repeats N] [--json]

After a matrix product on all cores, the rank measures: a fast tokenizer on a batch of texts, Python threads that hash,
and a DataLoader with spawned workers that hash. Each needs all cores of the rank. The model of the tokenizer is built
from the texts.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from measure import arguments, interleaved, report

RESULT = "RESULT "
INSIDE = "BENCHMARK_INSIDE"  # the measurement that this process is to do
CORES = len(os.sched_getaffinity(0))
BLOCK = bytes(4 << 20)
SAMPLES = 64
TURNS = 8  # in one process, after one that is not measured; the fastest counts, as other programs only slow it down
ORCH = (sys.executable, "-m", "orchestrator.cli.main", "train", __file__, "--ppn", "1", "--project", "none")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", __file__)


class Hashes(torch.utils.data.Dataset):
    """Samples that each cost a few milliseconds of one core."""

    def __len__(self) -> int:
        return SAMPLES * CORES

    def __getitem__(self, index: int) -> int:
        return hashlib.sha256(BLOCK).digest()[0]


def tokenizing() -> Callable[[], object]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = random.Random(0)
    texts = [" ".join(f"w{words.randrange(20_000)}" for _ in range(300)) for _ in range(1000)]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(texts[:100], trainers.WordPieceTrainer(special_tokens=["[UNK]"], show_progress=False))
    return lambda: tokenizer.encode_batch(texts)


def threads() -> Callable[[], object]:
    pool = ThreadPoolExecutor(CORES)
    return lambda: list(pool.map(lambda _: hashlib.sha256(BLOCK).digest(), range(SAMPLES * CORES)))


def workers() -> Callable[[], object]:
    loader = torch.utils.data.DataLoader(
        Hashes(), batch_size=8, num_workers=CORES, multiprocessing_context="spawn", persistent_workers=True
    )
    return lambda: list(loader)


CASES = {"tokenizing": tokenizing, "Python threads": threads, "spawned workers": workers}


def run_rank(case: str) -> None:
    matrix = torch.rand(1000, 1000)
    (matrix @ matrix).sum().item()
    call, times = CASES[case](), []
    for _ in range(TURNS + 1):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    print(f"{RESULT}{min(times[1:])}", flush=True)


def measure(command: tuple[str, ...], case: str) -> float:
    """Return the seconds of a measurement in a rank that a command starts."""
    environment = os.environ | {"OMP_NUM_THREADS": str(CORES), INSIDE: case, "COLUMNS": "1000"}
    passed = ("--env", f"{INSIDE}={case}") if command == ORCH else ()
    process = subprocess.run([*command, *passed], env=environment, capture_output=True, text=True, check=False)
    lines = (process.stdout + process.stderr).splitlines()
    result = next((line.partition(RESULT)[2] for line in lines if RESULT in line), "")
    if not result:
        sys.exit(f"{case}: no result\n{process.stdout}{process.stderr}")
    return float(result)


def main() -> None:
    options = arguments()
    for case in CASES:
        turns = {
            name: lambda command=command, case=case: measure(command, case)
            for name, command in {"torchrun": TORCHRUN, "orch": ORCH}.items()
        }
        report(f"{case}, one rank with {CORES} cores", "s", interleaved(turns, options.repeats), "torchrun")


if __name__ == "__main__":
    if case := os.environ.get(INSIDE):
        run_rank(case)
    else:
        main()
