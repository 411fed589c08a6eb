"""Train with accelerate, which uses the existing group."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.functional import mse_loss

dist.init_process_group("ccl")
accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(8, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
torch.manual_seed(accelerator.process_index)
for _ in range(5):
    accelerator.backward(mse_loss(net(torch.randn(4, 8)), torch.ones(4, 1)))
    optimizer.step()
    optimizer.zero_grad()
first, second = accelerator.gather(net.module.weight.detach())
assert torch.equal(first, second)
print(f"trained on {dist.get_backend()}\n", end="", flush=True)
accelerator.end_training()  # destroys the group
