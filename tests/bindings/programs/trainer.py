"""Train with transformers' Trainer, which does not support `ccl`, on a group that exists already."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line

init(60)
# torchrun sets these variables, hydra does not.
os.environ |= {"RANK": str(RANK), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": str(RANK)}

from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainingArguments  # noqa: E402

torch.manual_seed(0)
small = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
model = BertForQuestionAnswering(small)
rows = [{"input_ids": torch.randint(0, 100, (16,)), "start_positions": 3, "end_positions": 5} for _ in range(32)]
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    bf16=True,
    max_steps=4,
    per_device_train_batch_size=4,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
trainer.train()
assert trainer.args.world_size == SIZE
assert dist.get_backend() == "ccl"
for parameter in model.parameters():
    expected = parameter.detach().clone()
    dist.broadcast(expected, 0)
    assert torch.equal(expected, parameter)
dist.destroy_process_group()
print_line("trained on ccl")
