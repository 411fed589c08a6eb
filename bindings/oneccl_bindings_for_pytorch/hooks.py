"""DDP communication hooks that work on `ccl`.

torch's bf16_compress_hook rejects all backends except NCCL, although it does nothing specific to GPUs.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with its classes. It does not
# compare the first one, which is a string because Python 3.9 cannot evaluate it.
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

    def decompress(completed: torch.futures.Future[Any]) -> torch.Tensor:
        gradients.copy_(completed.value()[0])
        return gradients

    return future.then(decompress)


# DDP rejects a hook with the original name on all backends except NCCL.
bf16_compress_hook.__name__ = "ccl_bf16_compress_hook"
