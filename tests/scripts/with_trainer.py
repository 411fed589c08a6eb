"""Train with transformers' Trainer as its documentation shows, without anything of orch."""

import sys

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum(0, keepdim=True)}


def main() -> None:
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    torch.manual_seed(3)
    trainer = Trainer(model=Line(), args=arguments, train_dataset=Points())
    trainer.train()
    losses = [round(line["loss"], 4) for line in trainer.state.log_history if "loss" in line]
    print("DONE", dist.get_backend(), dist.get_world_size(), losses)


if __name__ == "__main__":
    main()
