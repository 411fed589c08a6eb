"""Norms, with dropout and residuals before them, rotary embeddings and GELU of transformers' models, with the kernels.

Most models define the same RMSNorm and apply_rotary_pos_emb, and those like BERT the same ends of layers, each in its
module. GPT-2's GELU is nine operators in a module of activations. They are replaced there when a model is made, if
their statements are exactly the usual ones.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from orch_kernels import attention, eager
from orch_kernels.library import are_plain

NORM = """input_dtype = hidden_states.dtype
hidden_states = hidden_states.to(torch.float32)
variance = hidden_states.pow(2).mean(-1, keepdim=True)
hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
return self.weight * hidden_states.to(input_dtype)"""
RESIDUAL = """hidden_states = self.dense(hidden_states)
hidden_states = self.dropout(hidden_states)
hidden_states = self.LayerNorm(hidden_states + input_tensor)
return hidden_states"""
ROTARY = """cos = cos.unsqueeze(unsqueeze_dim)
sin = sin.unsqueeze(unsqueeze_dim)
q_embed = q * cos + rotate_half(q) * sin
k_embed = k * cos + rotate_half(k) * sin
return (q_embed, k_embed)"""
ROTATE_HALF = """x1 = x[..., :x.shape[-1] // 2]
x2 = x[..., x.shape[-1] // 2:]
return torch.cat((-x2, x1), dim=-1)"""
TANH_GELU = """return 0.5 * input * (\
1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))))"""
DTYPES = (torch.float32, torch.bfloat16)
BLOCK = 64  # elements whose random numbers are drawn together
REPLACED: set[Any] = set()  # classes and names of modules


def replace(modeling_utils: ModuleType) -> None:
    """Make models of transformers use the kernels, while torch's functions are replaced."""
    eager.replace(modeling_utils)
    model_class = getattr(modeling_utils, "PreTrainedModel", None)
    if model_class is None or model_class in REPLACED:
        return
    original = model_class.__init__

    @functools.wraps(original)
    def make_model(self: Any, *args: Any, **kwargs: Any) -> None:
        for kind in type(self).__mro__:
            if issubclass(kind, model_class) and kind is not model_class:
                replace_in(kind.__module__)
        replace_in("transformers.activations")
        original(self, *args, **kwargs)

    model_class.__init__ = make_model
    REPLACED.add(model_class)


def replace_in(module: str) -> None:
    """Replace the usual norms and rotary embeddings that a module has."""
    if module in REPLACED or not module.startswith("transformers.") or module not in sys.modules:
        return
    REPLACED.add(module)
    names = vars(sys.modules[module])
    for value in list(names.values()):
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value not in REPLACED:
            if statements(value.forward, ["self", "hidden_states"]) == NORM:
                value.forward = normalizing(value.forward)
            elif statements(value.forward, ["self", "hidden_states", "input_tensor"]) == RESIDUAL:
                value.forward = adding(value.forward)
            elif statements(value.forward, ["self", "input"]) == TANH_GELU:
                value.forward = activating(value.forward)
            else:
                continue
            REPLACED.add(value)
    rotary = names.get("apply_rotary_pos_emb")
    is_usual = statements(rotary, ["q", "k", "cos", "sin", "unsqueeze_dim"]) == ROTARY
    if is_usual and statements(names.get("rotate_half"), ["x"]) == ROTATE_HALF:
        names["apply_rotary_pos_emb"] = rotating(names["apply_rotary_pos_emb"])


def statements(function: Any, parameters: list[str]) -> str:
    """Return the statements of a function with these parameters, without its docstring; '' for any other object."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return ""
    if not isinstance(definition, ast.FunctionDef) or [name.arg for name in definition.args.args] != parameters:
        return ""
    docstring = ast.get_docstring(definition, clean=False)
    return "\n".join(map(ast.unparse, definition.body[docstring is not None :]))


def normalizing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward method of the usual RMSNorm that computes with the kernel in training, in FP32."""

    @functools.wraps(original)
    def forward(self: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if (
            is_training(hidden_states, weight)
            and hidden_states.dtype == weight.dtype == torch.float32
            and weight.is_contiguous()
            and hidden_states.shape[-1:] == weight.shape
            and hidden_states.numel() > 0
        ):
            return torch.ops.orch.rms_norm(hidden_states, weight, self.variance_epsilon)
        return original(self, hidden_states)

    return forward


def activating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward method of the GELU by tanh that computes it with one operator in training."""

    @functools.wraps(original)
    def forward(self: torch.nn.Module, input: torch.Tensor) -> torch.Tensor:
        if is_training(input) and input.dtype in DTYPES:
            return torch.nn.functional.gelu(input, approximate="tanh")
        return original(self, input)

    return forward


def adding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward method of the end of a layer that computes dropout, sum and LayerNorm with the kernel."""

    @functools.wraps(original)
    def forward(self: Any, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        hidden_states = self.dense(hidden_states)
        if can_add(self.dropout, self.LayerNorm, hidden_states, input_tensor):
            norm = self.LayerNorm
            tensors = (hidden_states, input_tensor, norm.weight, norm.bias)
            return torch.ops.orch.residual_norm(*tensors, self.dropout.p, norm.eps)
        return self.LayerNorm(self.dropout(hidden_states) + input_tensor)

    return forward


def can_add(dropout: Any, norm: Any, hidden_states: torch.Tensor, residual: torch.Tensor) -> bool:
    """Return whether the kernel computes what these modules do, and nothing watches them."""
    return (
        type(dropout) is torch.nn.Dropout
        and dropout.training
        and 0 < dropout.p < 1
        and type(norm) is torch.nn.LayerNorm
        and norm.weight is not None
        and norm.bias is not None
        and is_training(hidden_states, residual, norm.weight, norm.bias)
        and hidden_states.dtype in DTYPES
        and residual.dtype == norm.weight.dtype == norm.bias.dtype == torch.float32
        and hidden_states.shape == residual.shape
        and residual.shape[-1:] == norm.normalized_shape == norm.weight.shape
        and residual.shape[-1] % BLOCK == 0
        and residual.numel() > 0
        and norm.weight.is_contiguous()
        and norm.bias.is_contiguous()
        and not any(has_hooks(module) for module in (dropout, norm))
    )


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether a hook watches a module, or its forward method is replaced."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module) or bool(torch.nn.modules.module._has_any_global_hook())


def rotating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the usual apply_rotary_pos_emb that computes with the kernel in training, by angles in FP32."""

    @functools.wraps(original)
    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if unsqueeze_dim == 1 and is_training(q, k, cos, sin) and can_rotate(q, cos, sin) and can_rotate(k, cos, sin):
            cos, sin = cos.contiguous(), sin.contiguous()
            return torch.ops.orch.rotate(q, cos, sin), torch.ops.orch.rotate(k, cos, sin)
        return original(q, k, cos, sin, unsqueeze_dim)

    return apply_rotary_pos_emb


def is_training(*tensors: torch.Tensor) -> bool:
    """Return whether plain tensors are computed with that need gradients, and torch's functions are replaced."""
    return (
        attention.is_in_use()
        and torch.is_grad_enabled()
        and are_plain(*tensors)
        and any(tensor.requires_grad for tensor in tensors)
    )


def can_rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Return whether the kernel rotates [batch, heads, rows, depth] by [batch or 1, rows, depth]."""
    return (
        heads.dtype in DTYPES
        and cos.dtype == sin.dtype == torch.float32
        and heads.dim() == 4
        and cos.shape == sin.shape
        and cos.shape in ((length, *heads.shape[2:]) for length in (1, heads.shape[0]))
        and heads.shape[3] % 2 == 0
        and heads.numel() > 0
        and not cos.requires_grad
        and not sin.requires_grad
    )
