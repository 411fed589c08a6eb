"""DDP communication hooks that work on `ccl`.

torch's own bf16_compress_hook refuses every backend but NCCL, although nothing in it is of a GPU.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the classes,
# but not the first, which Python 3.9 cannot read.
from typing import Any

import torch
import torch.distributed as dist


def bf16_compress_hook(
    process_group: "dist.ProcessGroup | None", bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send gradients as bfloat16: `model.register_comm_hook(None, bf16_compress_hook)`."""
    group = process_group if process_group is not None else dist.group.WORLD
    gradients = bucket.buffer()
    compressed = gradients.to(torch.bfloat16).div_(group.size())
    future = dist.all_reduce(compressed, group=group, async_op=True).get_future()

    def decompress(done: torch.futures.Future[Any]) -> torch.Tensor:
        gradients.copy_(done.value()[0])
        return gradients

    return future.then(decompress)


# DDP refuses a hook by this name on any backend but NCCL.
bf16_compress_hook.__name__ = "ccl_bf16_compress_hook"
