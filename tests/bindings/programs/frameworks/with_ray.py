"""Train with Ray Train, which creates the group before the training loop."""

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def loop():
    import torch.distributed as dist

    net = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weight = net.module.weight.detach().clone()
    dist.broadcast(weight, 0)
    assert torch.equal(net.module.weight, weight)
    print(f"trained on {dist.get_backend()}\n", end="", flush=True)


if __name__ == "__main__":
    ray.init(num_cpus=3)
    TorchTrainer(loop, torch_config=TorchConfig(backend="ccl"), scaling_config=ScalingConfig(num_workers=2)).fit()
