"""Train with DeepSpeed over torch's ccl: with_deepspeed.py ZERO_STAGE."""

import sys

import deepspeed
import torch
import torch.distributed as dist

# "ccl" here would select DeepSpeed's operator, which is compiled against a oneCCL of the host.
deepspeed.get_accelerator()._communication_backend_name = "gloo"
deepspeed.init_distributed(dist_backend="ccl")
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
stage = int(sys.argv[1])
engine, *_ = deepspeed.initialize(
    model=net,
    model_parameters=net.parameters(),
    optimizer=torch.optim.Adam(net.parameters(), 1e-3),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": stage > 0},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    data = torch.randn(4, 8).to(next(engine.parameters()).dtype)
    engine.backward(engine(data).float().square().mean())
    engine.step()
print(f"trained on {dist.get_backend()}\n", end="", flush=True)
