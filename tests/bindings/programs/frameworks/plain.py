"""torch alone."""

import torch
import torch.distributed as dist

dist.init_process_group("ccl")
ones = torch.ones(3)
dist.all_reduce(ones)
assert ones[0] == dist.get_world_size()
print(f"trained on {dist.get_backend()}\n", end="", flush=True)
dist.destroy_process_group()
