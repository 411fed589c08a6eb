"""Whether this node can train: `mpiexec.hydra -n N python verify.py BACKEND`, once per rank.

Imports the stack, checks a BF16 matrix product against float32, and all-reduces over all ranks.
Rank 0 prints one JSON object. Standard library and torch only.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys

import facts

TIMEOUT = datetime.timedelta(seconds=60)
# BF16 keeps 8 bits of the mantissa; sums of 512 products are rounded once, at the end (float32
# accumulation), so the error is about 2^-8 of the largest element.
SIZE = 512
TOLERANCE = 2.0**-7
ELEMENTS = 1 << 16


def main(backend: str) -> int:
    os.environ["RANK"] = os.environ.get("PMI_RANK", os.environ.get("RANK", "0"))
    os.environ["WORLD_SIZE"] = os.environ.get("PMI_SIZE", os.environ.get("WORLD_SIZE", "1"))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        hold_to_interface()
        report = check(backend, rank, ranks)
    except Exception as error:  # whatever it is, it is this node's answer
        print(f"verify: {socket.gethostname()} rank {rank}: {type(error).__name__}: {error}",
              file=sys.stderr, flush=True)  # fmt: skip
        return 1
    if rank == 0:
        print(json.dumps(report), flush=True)
    return 0


def hold_to_interface() -> None:
    """Hold gloo, oneCCL and libfabric to the interface that reaches rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing
        own = probe.getsockname()[0]
    name = next(name for name, address in facts.ipv4_addresses() if address == own)
    for variable in ("GLOO_SOCKET_IFNAME", "CCL_KVS_IFACE", "FI_TCP_IFACE"):
        os.environ[variable] = name


def check(backend: str, rank: int, ranks: int) -> dict[str, object]:
    import torch
    import transformers

    bindings = load_bindings() if backend == "ccl" else None
    report = {
        "ranks": ranks,
        "backend": backend,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "bindings": bindings,
        "bf16_error": bf16_error(),
    }
    if report["bf16_error"] > TOLERANCE:
        raise ArithmeticError(f"BF16 matrix product is off by {report['bf16_error']:.3g}")
    report["host_ranks"] = all_reduce(backend, rank, ranks)
    return report


def load_bindings() -> str:
    """Registers the backend; -> the version. Their torch is checked by the import itself."""
    try:
        import oneccl_bindings_for_pytorch as bindings
    except ImportError:
        import torch_ccl as bindings  # what it was called until 1.11
    return str(getattr(bindings, "__version__", "unknown"))


def bf16_error() -> float:
    """The largest error of a BF16 matrix product, relative to the largest element in float32."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
    right = torch.randn(SIZE, SIZE, generator=generator).bfloat16()
    exact = left.float() @ right.float()
    return float(((left @ right).float() - exact).abs().max() / exact.abs().max())


def all_reduce(backend: str, rank: int, ranks: int) -> int:
    """Sum over all ranks; -> how many ranks took part. Raises if the sum is wrong."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=TIMEOUT)
    tensor = torch.full((ELEMENTS,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.barrier()
    expected = ranks * (ranks + 1) / 2
    wrong = int((tensor != expected).sum())
    dist.destroy_process_group()
    if wrong:
        raise ArithmeticError(
            f"all-reduce over {ranks} ranks: {wrong} of {ELEMENTS} sums are wrong"
        )
    return ranks


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
