"""Attention with the kernel of orch's bindings instead of torch's.

    from orch_training import attention

    attention.use_kernel()  # from now on for torch.nn.functional.scaled_dot_product_attention in training

The results are those of torch within rounding. Dropout draws other units, but from the same generator, so that
torch.manual_seed and saved random states determine them.
"""

from __future__ import annotations

from typing import Any

import torch

from orch_training import dropout
from orch_training.errors import RecipeError

LIBRARY = "_attention"
TORCHS = torch.nn.functional.scaled_dot_product_attention


def use_kernel() -> None:
    """Replace torch's scaled_dot_product_attention with the kernel.

    Modules that have already executed `from torch.nn.functional import scaled_dot_product_attention` keep torch's.

    Raises:
        RecipeError: if the kernel is not available.
    """
    load()
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention


def use_torchs() -> None:
    torch.nn.functional.scaled_dot_product_attention = TORCHS


def problem() -> str | None:
    """Load the kernel, and return why it cannot be used, or None."""
    return dropout.problem_with_kernel(LIBRARY)


def load() -> None:
    if reason := problem():
        raise RecipeError(f"attention by the kernel: {reason}.")


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute torch's function of this name with the kernel, or with torch if the kernel does not support the input.

    The kernel supports training with plain CPU tensors. It computes the gradients of query, key and
    value, and no second derivatives. The kernel must have been loaded by use_kernel() or problem().

    Args:
        query: [batch, heads, queries, depth], in FP32, BF16, FP16 or FP64.
        key: [batch, heads, keys, depth]; with `enable_gqa`, fewer heads that divide the query's.
        value: like `key`.
        attn_mask: boolean (false: masked) or added to the scores; broadcast to [batch, heads, queries, keys].
        dropout_p: the probability that a unit of the attention weights is dropped.
        is_causal: whether query i sees the keys up to i only.
        scale: factor of the scores; by default 1 / sqrt(depth).
        enable_gqa: whether groups of heads of the query share a head of key and value.
    """
    q, k, v = in_autocast_dtype(query, key, value)
    if is_supported(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa):
        return torch.ops.orch.attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    extra = {"enable_gqa": True} if enable_gqa else {}
    return TORCHS(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **extra)


def attention_of_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Return the attention of sequences of different lengths that are packed without padding.

    Args:
        query: [rows of all sequences, heads, depth].
        key: [rows of all sequences, heads, depth], with heads that divide the query's.
        value: like `key`.
        query_offsets: [sequences + 1] integers: where each sequence starts, and the number of rows.
        key_offsets: the same for `key` and `value`; by default those of the query.
        dropout_p: the probability that a unit of the attention weights is dropped.
        is_causal: whether query i of a sequence sees its keys up to i only.
        scale: factor of the scores; by default 1 / sqrt(depth).

    Raises:
        RecipeError: if the kernel is not available.
        ValueError: if shapes, offsets or the probability are invalid.
        TypeError: if the dtype is not supported, or the tensors have different ones.
    """
    load()
    offsets = (query_offsets, query_offsets if key_offsets is None else key_offsets)
    return torch.ops.orch.attention_varlen(query, key, value, *offsets, dropout_p, is_causal, scale)


def in_autocast_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convert the tensors like autocast does for torch's function."""
    if not torch.is_autocast_enabled("cpu") or any(tensor.dtype == torch.float64 for tensor in tensors):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors)


def is_supported(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Return whether the kernel computes this training step as torch does."""
    tensors = [query, key, value] if mask is None else [query, key, value, mask]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in (query, key, value))
        and all(dropout.is_supported(tensor, (*dropout.DTYPES, torch.bool)) for tensor in tensors)
        and query.dim() == key.dim() == 4
        and query.dtype == key.dtype == value.dtype
        and key.shape == value.shape
        and (query.shape[1] == key.shape[1] or enable_gqa)
        and 0 <= p < 1
        and not (mask is not None and (is_causal or mask.requires_grad or not is_broadcast(mask, query, key)))
    )


def is_broadcast(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    shape: tuple[Any, ...] = (*query.shape[:3], key.shape[2])
    return 2 <= mask.dim() <= 4 and all(
        size in (1, full) for size, full in zip(mask.shape[::-1], shape[::-1], strict=False)
    )
