"""The attention of transformers' models with attn_implementation="eager", with the kernel.

Models get their attention function by its name; for "eager", each model defines one. The kernel replaces only functions
that compute softmax(query x key * scaling + mask), dropout and the product with the value, and nothing else;
and only if nothing can read the attention weights, which the kernel does not compute.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from orch_kernels import attention

LOOKUP = "get_interface"
PARAMETERS = ["module", "query", "key", "value", "attention_mask"]
OPTIONS = {"scaling", "dropout"}
STATEMENTS = re.compile(
    r"(if scaling is None:\n    scaling = query\.size\(-1\) \*\* \(?-0\.5\)?\n)?"
    r"(key = repeat_kv\(key, module\.num_key_value_groups\)\n"
    r"value = repeat_kv\(value, module\.num_key_value_groups\)\n)?"
    r"attn_weights = torch\.matmul\(query, key\.transpose\((2, 3|-1, -2|-2, -1)\)\) \* scaling\n"
    r"if attention_mask is not None:\n    attn_weights = attn_weights \+ attention_mask\n"
    r"attn_weights = nn\.functional\.softmax\(attn_weights, dim=-1(, dtype=torch\.float32\)\.to\(query\.dtype)?\)\n"
    r"attn_weights = nn\.functional\.dropout\(attn_weights, p=dropout, training=module\.training\)\n"
    r"attn_output = torch\.matmul\(attn_weights, value\)\n"
    r"attn_output = attn_output\.transpose\(1, 2\)\.contiguous\(\)\n"
    r"return \(attn_output, attn_weights\)"
)
REPLACED: set[Any] = set()  # classes


def replace(modeling_utils: ModuleType) -> None:
    """Make transformers' models with eager attention use the kernel while torch's attention is replaced."""
    lookup_class = getattr(modeling_utils, "AttentionInterface", None)
    original = getattr(lookup_class, LOOKUP, None)
    if original is None or lookup_class in REPLACED:  # models of older releases do not look eager attention up
        return

    @functools.wraps(original)
    def get_interface(self: Any, attn_implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, attn_implementation, default)
        is_eager = attn_implementation == "eager" and function is default
        if torch.compiler.is_compiling() or not is_eager or not attention.is_in_use() or not is_standard(default):
            return function
        return with_kernel(default)

    setattr(lookup_class, LOOKUP, get_interface)
    REPLACED.add(lookup_class)


@functools.cache
def is_standard(function: Callable[..., Any]) -> bool:
    """Return whether a function of transformers computes what the kernel computes, by its statements."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return False
    parameters = [argument.arg for argument in definition.args.args]
    docstring = ast.get_docstring(definition, clean=False)
    text = "\n".join(map(ast.unparse, definition.body[docstring is not None :])).replace("_states", "")
    return (
        parameters[:5] == PARAMETERS
        and {*parameters[5:]} <= OPTIONS
        and not definition.args.kwonlyargs
        and STATEMENTS.fullmatch(text) is not None
    )


@functools.cache
def with_kernel(standard: Callable[..., Any]) -> Callable[..., Any]:
    """Return a standard attention function that computes with the kernel if nothing needs the weights."""

    @functools.wraps(standard)
    def kernel_attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        p = dropout if module.training else 0.0
        if (
            options.get("output_attentions")
            or is_recorded(module)
            or not discards_weights(type(module))
            or (attention_mask is not None and attention_mask.dtype == torch.bool)  # added as 0 and 1
            or not attention.is_supported(query, key, value, attention_mask, p)
        ):
            arguments = {} if scaling is None else {"scaling": scaling}
            return standard(module, query, key, value, attention_mask, dropout=dropout, **arguments, **options)
        tensors = attention.in_autocast_dtype(query, key, value)
        output = torch.ops.orch.attention(*tensors, attention_mask, p, False, scaling)
        return output.transpose(1, 2).contiguous(), None

    return kernel_attention


def is_recorded(module: torch.nn.Module) -> bool:
    """Return whether a hook may read what the module returns, or transformers records the weights of this call."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    recorded = (capturing._active_collector.get() if capturing else None) or ()
    hooks = (*module._forward_hooks, *torch.nn.modules.module._global_forward_hooks)
    return bool(hooks) or "forward" in vars(module) or any("attentions" in key for key in recorded)


@functools.cache
def discards_weights(kind: type[torch.nn.Module]) -> bool:
    """Return whether a module works without the weights, as with scaled_dot_product_attention, which has none."""
    names = getattr(sys.modules.get(kind.__module__), "__dict__", {})  # scripts may import a module without an entry
    classes = [value for value in names.values() if isinstance(value, type)]
    return "output_attentions" not in inspect.signature(kind.forward).parameters and any(
        vars(model_class).get("_supports_sdpa") for model_class in classes
    )
