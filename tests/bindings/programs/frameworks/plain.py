"""Use the backend ccl in a script that imports only torch, and print the network interface."""

import os
import sys

import torch
import torch.distributed as dist

assert "oneccl_bindings_for_pytorch" not in sys.modules
dist.init_process_group("ccl")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor[0] == dist.get_world_size()
print(f"trained on {dist.get_backend()} by {os.environ.get('FI_TCP_IFACE')}\n", end="", flush=True)
dist.destroy_process_group()
