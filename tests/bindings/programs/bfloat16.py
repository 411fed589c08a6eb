"""Check that bfloat16 results have the bits of float32 results that are rounded once: bfloat16.py OPERATION..."""

from __future__ import annotations

import functools
import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line

# Zeros, the smallest and largest numbers, ones, infinities, NaNs, and ties in rounding.
SPECIAL = [
    *(0x0000, 0x0001, 0x007F, 0x0080, 0x3B80, 0x3C00, 0x3F80, 0x3F81, 0x7F7F, 0x7F80),
    *(0x7F81, 0x7FC0, 0x7FFF, 0x8000, 0x8001, 0xBF80, 0xFF7F, 0xFF80, 0xFFC1),
]
NAN = 0x7FC0
LENGTHS = (1, 7, 17, 1001, 70_001)
SHIFTS = (0, 1, 5)  # elements, for starts that are not aligned to vectors
BEHIND = 0x1234  # bits behind the end of a tensor
OPERATIONS = {"SUM": torch.add, "PRODUCT": torch.mul}


def random_bits(rank: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-(2**15), 2**15, (length,), generator=generator, dtype=torch.int16).view(torch.bfloat16)


def special_pairs(rank: int) -> torch.Tensor:
    """Return one number of each pair of special numbers."""
    bits = torch.tensor(SPECIAL, dtype=torch.int32).to(torch.int16)
    return torch.cartesian_prod(bits, bits).T.contiguous()[rank % 2].view(torch.bfloat16)


def check(operation: str, parts: list[torch.Tensor], shift: int) -> None:
    memory = torch.full((parts[0].numel() + shift + 1,), BEHIND, dtype=torch.int16).view(torch.bfloat16)
    data = memory[shift:-1]
    data.copy_(parts[RANK])
    dist.all_reduce(data, getattr(dist.ReduceOp, operation))
    expected = functools.reduce(OPERATIONS[operation], [part.float() for part in parts]).bfloat16()
    bits = expected.view(torch.int16)
    bits[expected.isnan()] = NAN  # torch has several NaNs
    different = data.view(torch.int16) != bits
    assert not different.any(), (operation, shift, data[different][:4], expected[different][:4])
    assert memory.view(torch.int16)[-1] == BEHIND, "wrote past the end"


init(20)
for operation in sys.argv[1:]:
    check(operation, [special_pairs(rank) for rank in range(SIZE)], 0)
    for length in LENGTHS:
        for shift in SHIFTS:
            check(operation, [random_bits(rank, length) for rank in range(SIZE)], shift)
print_line("fine")
dist.destroy_process_group()
