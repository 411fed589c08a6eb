"""Use only torch."""

import torch
import torch.distributed as dist

dist.init_process_group("ccl")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
print(f"trained on {dist.get_backend()}\n", end="", flush=True)
dist.destroy_process_group()
