"""A group of backend ccl by a script that imports torch alone; prints the interface it took."""

import os
import sys

import torch
import torch.distributed as dist

assert "oneccl_bindings_for_pytorch" not in sys.modules
dist.init_process_group("ccl")
ones = torch.ones(3)
dist.all_reduce(ones)
assert ones[0] == dist.get_world_size()
print(f"{dist.get_backend()} by {os.environ.get('FI_TCP_IFACE')}\n", end="", flush=True)
dist.destroy_process_group()
