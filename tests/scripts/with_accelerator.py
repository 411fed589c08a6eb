"""Train with accelerate's Accelerator as its documentation shows, without anything of orch."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed


def main() -> None:
    set_seed(3)
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    points = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(points, batch_size=4, shuffle=True)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(accelerator.gather(loss.detach()).mean().item(), 4))
    print("DONE", dist.get_backend(), accelerator.num_processes, losses)
    accelerator.end_training()


if __name__ == "__main__":
    main()
