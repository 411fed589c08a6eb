"""Train with Lightning. Usage: with_lightning.py DEVICES NUM_NODES [FOLDER OF LIGHTNING]."""

import os
import sys
import warnings

sys.path[:0] = sys.argv[3:]
warnings.filterwarnings("ignore")

import lightning  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.first_inputs = []

    def training_step(self, batch, index):
        inputs, targets = batch
        self.first_inputs.append(round(float(inputs[0, 0]), 4))
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(1, verbose=False)
inputs = torch.randn(64, 4)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = Line()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(sys.argv[1]),
    num_nodes=int(sys.argv[2]),
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(data, batch_size=4))
total = sum(float(p.detach().sum()) for p in model.parameters())
numbers = f"rank {trainer.global_rank} of {trainer.world_size}"
result = f"{numbers}, inputs {model.first_inputs}, sum {total:.6f}"
# One write, so that the lines of two ranks do not mix.
print(f"RANK{os.environ['RANK']} {result}\n", end="", flush=True)
