"""torch.nn.functional.scaled_dot_product_attention with the kernel."""

from __future__ import annotations

import torch
from torch.overrides import handle_torch_function, has_torch_function

from orch_kernels import library
from orch_kernels.library import DTYPES, are_plain

TORCHS = torch.nn.functional.scaled_dot_product_attention
LONG = 64  # tokens, from which the kernel is faster in FP32 without dropout; it computes 64 queries together


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
    options = {"scale": scale, "enable_gqa": True} if enable_gqa else {"scale": scale}
    if has_torch_function(tensors := (query, key, value, attn_mask)):
        # Nested tensors recognise only torch's function, and other subclasses the one that torch.nn.functional has.
        function = TORCHS if getattr(query, "is_nested", False) is True else scaled_dot_product_attention
        return handle_torch_function(function, tensors, *tensors, dropout_p, is_causal, **options)
    if (
        is_supported(query, key, value, attn_mask, dropout_p)
        and (query.shape[1] == key.shape[1] or enable_gqa)
        and not (is_causal and attn_mask is not None)
        # Otherwise torch.nn.attention.sdpa_kernel() has chosen a backend. With dropout there is only one for CPUs, and
        # the choice, which may apply to the forward pass alone, must not change what checkpointed modules draw.
        and (dropout_p > 0 or torch._C._get_flash_sdp_enabled())
    ):
        converted = in_autocast_dtype(query, key, value)
        return torch.ops.orch.attention(*converted, attn_mask, dropout_p, is_causal, scale)
    return TORCHS(*tensors, dropout_p, is_causal, **options)


# Pickled modules name torch's function, which other processes have.
scaled_dot_product_attention.__module__ = "torch.nn.functional"


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
        RuntimeError: if the kernel is not available.
        ValueError: if shapes, offsets or the probability are invalid.
        TypeError: if the dtype is not supported, or the tensors have different ones.
    """
    if reason := library.load():
        raise RuntimeError(f"orch_kernels: {reason}.")
    offsets = (query_offsets, query_offsets if key_offsets is None else key_offsets)
    return torch.ops.orch.attention_varlen(query, key, value, *offsets, dropout_p, is_causal, scale)


def is_in_use() -> bool:
    """Return whether torch's function is replaced."""
    return torch.nn.functional.scaled_dot_product_attention is scaled_dot_product_attention


def in_autocast_dtype(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Convert the tensors like autocast does for torch's function."""
    dtype = autocast_dtype(tensors[0])
    return tuple(tensor.to(dtype) for tensor in tensors)


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype:
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled("cpu"):
        return tensor.dtype
    return torch.get_autocast_dtype("cpu")


def is_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, p: float
) -> bool:
    """Return whether the kernel computes this attention, and faster than torch.

    Without dropout only training is faster, in FP32 only that of LONG sequences. With dropout the answer does not
    depend on gradients: activation checkpointing computes the attention with and without them, and must drop the same
    units.
    """
    tensors = (query, key, value)
    return (
        0 <= p < 1
        and are_plain(*tensors, *([] if mask is None else [mask]))
        and (p > 0 or trains_faster(*tensors, mask))
        and all(tensor.dtype in DTYPES for tensor in tensors)
        # Under autocast, rotary embeddings in FP32 make query and key FP32, and the value stays in BF16.
        and autocast_dtype(query) == autocast_dtype(key) == autocast_dtype(value)
        and query.dim() == key.dim() == 4
        and key.shape == value.shape
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3]
        and key.shape[1] > 0
        and query.shape[1] % key.shape[1] == 0
        and (mask is None or is_broadcast(mask, query, key))
    )


def trains_faster(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    dtype = autocast_dtype(query)
    is_long = query.dim() == key.dim() == 4 and min(query.shape[2], key.shape[2]) >= LONG
    return (
        (dtype == torch.bfloat16 or (dtype == torch.float32 and is_long))
        and torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in (query, key, value))
        and not (mask is not None and mask.requires_grad)
    )


def is_broadcast(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether the mask is one that the kernel adds to the scores [batch, heads, queries, keys]."""
    shape = (*query.shape[:3], key.shape[2])
    return (
        (mask.dtype == torch.bool or mask.dtype in DTYPES)
        and 2 <= mask.dim() <= 4
        and all(size in (1, full) for size, full in zip(mask.shape[::-1], shape[::-1], strict=False))
    )
