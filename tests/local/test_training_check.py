"""Which trainings the check of a rank ends or warns of, and which ones it accepts."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from orch_node.rank import checks, computation, hooks, training_check, weight_inspection
from torch import nn
from torch.nn.functional import mse_loss

from orchestrator.files import LIB
from tests.support.jobs import start_ranks, wait_for_ranks

STEPS = 25


@pytest.fixture(autouse=True)
def reproducible_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_EVENTS_FD", raising=False)
    torch.manual_seed(0)


@pytest.fixture
def check() -> Iterator[Any]:
    """Check the training of this process, as that of a rank."""
    training = training_check.begin(torch)
    yield training
    training.finish()


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def loss_of(model: nn.Module, step: int = 0) -> torch.Tensor:
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    return mse_loss(model(inputs.to(next(model.parameters()).dtype)).float(), inputs.sum(dim=1, keepdim=True))


def train(
    model: nn.Module,
    *optimizers: torch.optim.Optimizer,
    steps: int = STEPS,
    batches: int | None = None,
    before_step: Callable[[int], object] = lambda step: None,
) -> None:
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step % (batches or steps)).backward()
        before_step(step)
        for optimizer in optimizers:
            optimizer.step()


def adam(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **settings})


def make_masters(model: nn.Module) -> list[nn.Parameter]:
    """Return FP32 copies of the model's weights."""
    return [nn.Parameter(weight.detach().float()) for weight in model.parameters()]


def copy_gradients(model: nn.Module, masters: list[nn.Parameter]) -> None:
    for master, weight in zip(masters, model.parameters(), strict=True):
        master.grad = weight.grad.float()


def test_optimizer_of_copied_weights_is_ended_before_the_third_step(check: Any) -> None:
    model = make_model()
    with pytest.raises(checks.RankError, match="It holds 4 others, which get no gradients") as exc_info:
        train(model, adam(copy.deepcopy(model)))
    message = "after 2 optimizer steps none of these 4 weights has changed, and no optimizer holds them"
    assert message in str(exc_info.value)
    assert check.step == 3


def test_master_weights_that_are_never_copied_back_are_ended_after_a_long_warm_up(check: Any) -> None:
    """End the training as soon as the update would be visible in BF16."""
    model = make_model(torch.bfloat16)
    masters = make_masters(model)
    optimizer = torch.optim.SGD(masters, lr=0.0)

    def before_step(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.0 if step < 8 else 0.5
        copy_gradients(model, masters)

    with pytest.raises(checks.RankError, match="which do change"):
        train(model, optimizer, before_step=before_step)
    assert check.step == 10


def test_restored_weights_are_warned_of(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    initial_state = copy.deepcopy(model.state_dict())
    optimizer = adam(model)
    for step in range(5):
        model.load_state_dict(initial_state)
        train(model, optimizer, steps=1)
        assert ("the weights have not changed" in capsys.readouterr().err) == (step == 2)


def test_layer_replaced_after_making_the_optimizer_is_warned_of(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    optimizer = adam(model)
    model[0] = nn.Linear(6, 16)
    train(model, optimizer)
    assert "2 weights that get gradients are in no optimizer" in capsys.readouterr().err


def test_constant_loss_is_warned_of(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Compute the loss like a kernel with a packed copy of its weight."""
    model = make_model()
    packed = copy.deepcopy(model)
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        (loss - loss.detach() + loss_of(packed).detach()).backward()
        optimizer.step()
    output = capsys.readouterr().err
    assert "in each of the first 20 steps" in output
    assert output.count("warning") == 1


def test_torch_1_11_without_precision_of_products_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "get_float32_matmul_precision")
    training_check.begin(torch).finish()


# Correct trainings.


def accumulated_gradients(model: nn.Module) -> None:
    optimizer = adam(model)
    for step in range(STEPS):
        for batch in range(7):
            (loss_of(model, 7 * step + batch) / 7).backward()
        optimizer.step()
        optimizer.zero_grad()


def zero_gradients(model: nn.Module) -> None:
    def clear(step: int) -> None:
        for weight in model.parameters():
            weight.grad.zero_()

    train(model, adam(model, weight_decay=0.0), before_step=clear)


def steps_before_any_gradient(model: nn.Module) -> None:
    """Step first, as some scripts do to avoid a scheduler's warning."""
    optimizer = adam(model)
    for _ in range(4):
        optimizer.step()
    train(model, optimizer)


def master_weights(model: nn.Module) -> None:
    model.to(torch.bfloat16)
    masters = make_masters(model)
    optimizer = torch.optim.SGD(masters, lr=1e-6)
    for step in range(STEPS):
        loss_of(model, step).backward()
        copy_gradients(model, masters)
        optimizer.step()
        for master, weight in zip(masters, model.parameters(), strict=True):
            weight.grad = None
            weight.data.copy_(master.data)


def adversarial_models(model: nn.Module) -> None:
    """Train a GAN: each of two optimizers has its own backward(), one steps three times as often."""
    critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer, critic_optimizer = adam(model), adam(critic)
    for _ in range(STEPS):
        for _ in range(3):
            critic_optimizer.zero_grad()
            real, generated = torch.randn(8, 1), model(torch.randn(8, 6)).detach()
            (critic(generated).mean() - critic(real).mean()).backward()
            critic_optimizer.step()
        optimizer.zero_grad()
        (-critic(model(torch.randn(8, 6))).mean()).backward()
        optimizer.step()


def step_in_backward(model: nn.Module) -> None:
    """Use one optimizer per weight, which steps as soon as the gradient exists."""
    for weight in model.parameters():
        weight_optimizer = torch.optim.SGD([weight], lr=1e-3)

        def hook(_: torch.Tensor, optimizer: torch.optim.Optimizer = weight_optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        weight.register_post_accumulate_grad_hook(hook)
    train(model)


def checkpointed_activations(model: nn.Module) -> None:
    """Keep the weights out of the outer graph."""

    class Checkpointed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=True)

    wrapped = Checkpointed()
    wrapped.inner = model
    train(wrapped, adam(model))


def sparse_embedding(model: nn.Module) -> None:
    """Give 3 of 50,000 rows a gradient."""
    table = nn.Embedding(50_000, 6, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(table(torch.tensor([7, 8, 9]))).sum().backward()
        optimizer.step()


def inputs_in_the_optimizer(model: nn.Module) -> None:
    """Optimize an input, as for adversarial examples."""
    inputs = torch.zeros(8, 6, requires_grad=True)
    optimizer = torch.optim.SGD([inputs], lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(inputs).mean() - 1).square().backward()
        optimizer.step()


def gradients_without_backward(model: nn.Module) -> None:
    optimizer = adam(model)
    for step in range(STEPS):
        gradients = torch.autograd.grad(loss_of(model, step), list(model.parameters()))
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient
        optimizer.step()


CORRECT_TRAININGS: dict[str, Callable[[Any], None]] = {
    "plain": lambda model: train(model, adam(model)),
    "one-batch": lambda model: train(model, adam(model), batches=1),
    "fused": lambda model: train(model, adam(model, fused=True)),
    "compiled": lambda model: train(torch.compile(model, backend="aot_eager"), adam(model)),
    "zero-learning-rate": lambda model: train(model, adam(model, lr=0.0)),
    "tiny-learning-rate-bf16-one-batch": lambda model: train(model.to(torch.bfloat16), adam(model, lr=1e-9), batches=1),
    "only-the-last-layer-in-the-optimizer": lambda model: train(model, adam(list(model.children())[-1])),
    **{
        training.__name__: training
        for training in (
            *(accumulated_gradients, zero_gradients, steps_before_any_gradient),
            *(master_weights, adversarial_models, step_in_backward, checkpointed_activations),
            *(sparse_embedding, inputs_in_the_optimizer, gradients_without_backward),
        )
    },
}


@pytest.mark.parametrize("training", CORRECT_TRAININGS.values(), ids=CORRECT_TRAININGS.keys())
def test_correct_training_causes_no_message(training: Any, check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    training(make_model())
    assert capsys.readouterr().err == ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that torch imports
def test_hooks_of_a_compiled_step_are_not_compiled() -> None:
    compiling: list[bool] = []
    hooks.watch_steps(lambda *_: compiling.append(torch.compiler.is_compiling()))
    optimizer = torch.optim.SGD(make_model().parameters())
    torch.compile(lambda: optimizer.step(), backend="eager")()
    assert compiling == [False]


def test_failure_of_the_check_itself_does_not_end_the_training(
    check: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_inspection, "SAMPLE_SIZE", None)
    model = make_model()
    train(model, adam(model))
    assert "the training check failed and is off: TypeError" in capsys.readouterr().err


def test_check_without_hooks_for_steps_releases_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch as on torch 2.0."""
    monkeypatch.setattr(training_check, "watch_steps", lambda _: False)
    check, model = training_check.begin(torch), make_model()
    train(model, adam(model), steps=40)
    assert check.finished
    assert not check.computing.by_id


# On several ranks.

WARM = pytest.mark.xdist_group("recipes")  # tests that share a server of warm programs
RANKS = """
import os, sys
sys.path.insert(0, {train!r})
from pathlib import Path
import torch, torch.distributed as dist
from orch_node.rank import communication, manual_updates, training_check, weight_comparison
from orch_node.rank.hooks import watch_steps
rank = int(sys.argv[1])
communication.begin(torch)
dist.init_process_group("gloo", init_method="file://{file}", rank=rank, world_size=2)
check = training_check.begin(torch)
comparison = weight_comparison.WeightComparison(
    torch,
    rank=rank,
    store=dist.distributed_c10d._get_default_store(),
    restarted=bool(os.environ.get("RESTARTED")),
    equal_mark=Path({mark!r}),
    hint=lambda: "Wrap the model",
    losses=check.losses,
)
watch_steps(comparison.before_step, comparison.after_step)
updates = manual_updates.begin(torch, comparison)
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 1))
# Training steps on different data, whose loss is all-reduced for a log.
def steps(call, optimizer, count=5, logged=True, after=lambda step: None):
    generator = torch.Generator().manual_seed(rank)
    for step in range(count):
        optimizer.zero_grad()
        loss = call(torch.randn(4, 6, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if logged:
            dist.all_reduce(loss.detach().clone())
        after(step)
def average(*_):
    for weight in model.parameters():
        dist.all_reduce(weight.data)
        weight.data /= 2
def by_hand(call, weights, count=25, logged=True):
    # Train without an optimizer.
    generator = torch.Generator().manual_seed(rank)
    for step in range(count):
        loss = call(torch.randn(4, 6, generator=generator)).pow(2).mean()
        loss.backward()
        for weight in weights:
            weight.data -= 0.05 * weight.grad
            weight.grad = None
        if logged:
            dist.all_reduce(loss.detach())
def functional(period):
    # Train with torch.func, and average the weights after so many steps.
    from torch.func import functional_call, grad
    weights = {{name: weight.detach() for name, weight in model.named_parameters()}}
    gradient = grad(lambda weights, inputs: functional_call(model, weights, (inputs,)).pow(2).mean())
    generator = torch.Generator().manual_seed(rank)
    for step in range(1, 26):
        update = gradient(weights, torch.randn(4, 6, generator=generator))
        weights = {{name: weight - 0.05 * update[name] for name, weight in weights.items()}}
        for weight in weights.values() if step % period == 0 else ():
            dist.all_reduce(weight); weight /= 2
def slope(x: torch.Tensor):
    return torch.autograd.grad([x.pow(2).sum()], [x])[0]
class Sum(torch.autograd.Function):
    # A sum over ranks whose gradient is passed on, as in tensor parallelism.
    @staticmethod
    def forward(ctx, x):
        total = x.clone(); dist.all_reduce(total); return total
    @staticmethod
    def backward(ctx, gradient):
        return gradient
adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
try:
{body}
    comparison.check_end()
    updates.check_end()
    print("finished")
except BaseException as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


def run_on_two_ranks(folder: Path, body: str) -> str:
    script = folder / "script.py"
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    mark = str(folder / "equal-weights")
    script.write_text(RANKS.format(train=str(LIB), file=folder / "store", mark=mark, body=lines))
    ranks = [rank for number in (0, 1) for rank in start_ranks(script, number)]
    return "".join(out + err for _, out, err in wait_for_ranks(ranks))


ENDED_AT_THIRD_STEP = {
    "ddp-is-not-called": "ddp = DDP(model); steps(model, adam, logged=False)",
    "another-module": "import copy; used = copy.deepcopy(model); ddp = DDP(model)\n"
    "steps(used, torch.optim.SGD(used.parameters(), lr=0.1))",
    "small-learning-rate": "ddp = DDP(model); steps(model, torch.optim.AdamW(model.parameters(), lr=1e-7))",
    "by-hand": "ddp = DDP(model); by_hand(ddp.module, list(model.parameters()), 6)",
    "error-is-caught": "ddp = DDP(model)\nfor _ in range(6):\n    try:\n        steps(model, adam, 1)\n"
    "    except Exception:\n        pass",
    "another-optimizer-on-rank-0": "import copy\nddp = DDP(model)\nif rank == 0:\n    used = copy.deepcopy(model)\n"
    "    steps(used, torch.optim.SGD(used.parameters(), lr=0.1), logged=False)\nsteps(model, adam)",
    "second-optimizer": "ddp = DDP(model); steps(ddp, adam); head = DDP(torch.nn.Linear(6, 1))\n"
    "steps(head.module, torch.optim.SGD(head.parameters(), lr=0.1))",
}
ENDED_AT_END = {
    "functional": "functional(99)",
    "tensors-without-a-module": "del model, adam; w = torch.zeros(6, 1, requires_grad=True)\n"
    "by_hand(lambda x: x @ w - 1, [w])",
    "no-logged-loss": "steps(model, adam, logged=False)",
    "outputs-and-weights-are-shown": "def show(_):\n    dist.all_gather([torch.ones(99)] * 2, torch.ones(99))\n"
    "steps(model, adam, after=show)\n"
    "weight = model[0].weight.data; dist.all_gather([torch.zeros_like(weight) for _ in range(2)], weight)\n"
    "model.bfloat16()",
    "hook-without-exchange": "ddp = DDP(model)\n"
    "def keep(state, bucket):\n"
    "    future = torch.futures.Future(); future.set_result(bucket.buffer()); return future\n"
    "ddp.register_comm_hook(None, keep); steps(ddp, adam)",
    "clamped-weights": "steps(model, adam, after=lambda _: model[0].weight.data.clamp_(-0.1, 0.1))",
    "gradients-of-one-layer": "for step in range(5):\n"
    "    adam.zero_grad(); model(torch.rand(4, 6) + rank).sum().backward()\n"
    "    dist.all_reduce(model[0].weight.grad); dist.all_reduce(model[0].bias.grad); adam.step()",
    "gradients-after-the-step": "def reduce(step):\n    for weight in model.parameters():\n"
    "        dist.all_reduce(weight.grad)\nsteps(model, adam, after=reduce)",
    "gradients-after-the-update": "def call(inputs):\n"
    "    dist.all_reduce(torch.ones(6, 16)); return model(inputs)\nby_hand(call, list(model.parameters()))",
    "one-of-two-models-in-ddp": "head = DDP(torch.nn.Linear(1, 1))\n"
    "steps(lambda x: head(model(x)), torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-2))",
    "head-outside-and-predictions-as-objects": "ddp = DDP(model); head = torch.nn.Linear(1, 1)\n"
    "steps(lambda x: head(ddp(x)), torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1))\n"
    "dist.all_gather_object([None] * 2, list(range(20)))",
}
# Rank 0, which has the store, has ended before the other rank makes a step.
WITHOUT_RANK_0 = """
def fail(*_):
    raise RuntimeError("Connection was likely closed.")
if rank:
    comparison.store = type("Store", (), {"compare_set": fail})
"""
ENDED_WITHOUT_RANK_0 = {
    "ddp-is-not-called": f"{WITHOUT_RANK_0}ddp = DDP(model); steps(model, adam, logged=False)",
    "equal-start": f"{WITHOUT_RANK_0}dist.barrier(); steps(model, adam, logged=False)",
    "by-hand": f"{WITHOUT_RANK_0}dist.barrier(); by_hand(model, list(model.parameters()), logged=False)",
}
AVERAGED = {
    "at-the-sixth-step": "steps(model, adam, 8, after=lambda step: average() if step == 5 else None)",
    "after-the-last-step": "steps(model, adam); average()",
    "functional": "functional(5)",
    "another-model-at-the-end": "steps(model, adam)\n"
    "for weight in model.state_dict().values():\n    dist.all_reduce(weight.clone())",
    "by-parts": "steps(model, adam)\n"
    "for weight in (model[0].weight, model[1].weight):\n"
    "    dist.reduce_scatter_tensor(torch.zeros(weight.numel() // 2), weight.detach().flatten())",
    "by-objects": "import copy\nfor part in range(2):\n"
    "    used = copy.deepcopy(model); steps(used, torch.optim.SGD(used.parameters(), lr=0.1))\n"
    "    states = [None, None]; dist.all_gather_object(states, used.state_dict())\n"
    "    model.load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})",
    "as-an-object": "steps(model, adam); dist.gather_object(model.state_dict(), [None] * 2 if rank == 0 else None)",
    "an-optimizer-per-round": "for _ in range(40):\n"
    "    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3); average()\n"
    "assert sum(comparison.kinds.values()) == 11",
    "in-the-optimizer": "adam.register_step_post_hook(average); steps(model, adam)",
    "chains-whose-samples-are-gathered": "del model, adam; state = torch.zeros(50, requires_grad=True); samples = []\n"
    "by_hand(lambda x: samples.append(state.detach().clone()) or state - rank - 1, [state])\n"
    "dist.all_gather([torch.zeros(25, 50) for _ in range(2)], torch.stack(samples))",
    "separate-models-on-purpose": "os.environ['ORCH_SEPARATE_MODELS'] = '1'; steps(model, adam)",
}
TOGETHER = {
    "without-rank-0": f"{WITHOUT_RANK_0}ddp = DDP(model); steps(ddp, adam, 13)",
    "ddp": "ddp = DDP(model, gradient_as_bucket_view=True, static_graph=True); steps(ddp, adam)",
    "fsdp2": "from torch.distributed.fsdp import fully_shard\n"
    "fully_shard(model, ignored_params={*model[1].parameters()})\n"
    "steps(model, torch.optim.AdamW(model.parameters()))",
    "fsdp": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "shards = FSDP(model, device_id=torch.device('cpu'), use_orig_params=True)\n"
    "steps(shards, torch.optim.AdamW(shards.parameters()))",
    "zero": "from torch.distributed.optim import ZeroRedundancyOptimizer as Zero\n"
    "ddp = DDP(model); steps(ddp, Zero(ddp.parameters(), torch.optim.AdamW, lr=1e-3))",
    "perturbed-inputs": "delta = torch.zeros(4, 6, requires_grad=True); by_hand(lambda x: model(x + delta), [delta])",
    "copies-of-meta-learning": "import copy\nddp = DDP(model)\nfor step in range(5):\n"
    "    fast = copy.deepcopy(model); by_hand(fast, list(fast.parameters()), 4)\n"
    "    fast(torch.ones(1, 6)).sum().backward()\n"
    "    for weight, trained in zip(model.parameters(), fast.parameters()):\n"
    "        dist.all_reduce(trained.grad); weight.grad = trained.grad / 2\n"
    "    adam.step()",
    "loss-of-all-ranks": "from torch.distributed.nn import all_gather\nddp = DDP(model)\n"
    "steps(lambda x: torch.cat(all_gather(ddp(x).repeat(1, 9))), adam)",
    "loss-averaged-before-backward": "import warnings; warnings.simplefilter('ignore'); ddp = DDP(model)\n"
    "def call(x):\n    loss = ddp(x).pow(2).mean(); dist.all_reduce(loss); return loss / 2\nsteps(call, adam)",
    "different-numbers-of-steps": "ddp = DDP(model)\n"
    "with torch.distributed.algorithms.join.Join([ddp]):\n    steps(ddp, adam, 2 + 5 * rank, logged=False)",
    "inputs-of-each-rank": "ddp = DDP(model); x = torch.zeros(4, 6, requires_grad=True)\n"
    "steps(lambda data: model(x + data), torch.optim.SGD([x], 0.1), logged=False); steps(ddp, adam)",
    "weights-in-another-order": "ddp = DDP(model); held = list(model.parameters())\n"
    "steps(ddp, torch.optim.SGD(held[::-1] if rank else held, 0.1))",
    "layers-of-each-rank": "model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))\n"
    "ddp = DDP(model)\ndef share(_):\n    for weight in model.parameters():\n"
    "        dist.broadcast(weight.data, int(any(weight is w for w in model[1].parameters())))\n"
    "steps(ddp, torch.optim.SGD(model[rank].parameters(), lr=0.1), after=share)",
    "ignored-weights": "DDP._set_params_and_buffers_to_ignore_for_model(model, ['1.weight', '1.bias'])\n"
    "steps(DDP(model), adam)",
    "copy-for-a-range-test": "import copy; ddp = DDP(model); used = copy.deepcopy(model)\n"
    "finder = torch.optim.SGD(used.parameters(), lr=0.1)\n"
    "for _ in range(4):\n    used(torch.ones(1, 6)).sum().backward(); finder.step()\nsteps(ddp, adam)",
    "experts": "class Exchange(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
    "        out = torch.empty_like(x); dist.all_to_all_single(out, x); return out\n"
    "    backward = staticmethod(lambda ctx, x: Exchange.forward(ctx, x.contiguous()))\n"
    "ddp = DDP(model); torch.manual_seed(rank); expert = torch.nn.Linear(6, 6)\n"
    "weights = [*model.parameters(), *expert.parameters()]\n"
    "steps(lambda x: ddp(Exchange.apply(expert(x))), torch.optim.SGD(weights, lr=0.1))",
    "pickled-functions": "import pickle\n"
    "for function in (dist.destroy_process_group, dist.all_reduce, torch.autograd.backward):\n"
    "    assert pickle.loads(pickle.dumps(function)) is function",
    "iterators-names-and-scripts": "torch.autograd.backward(part for part in [model(torch.ones(1, 6)).sum()])\n"
    "assert model[0].weight.grad is not None\n"
    "torch.autograd.grad(outputs=model(torch.ones(1, 6)).sum(), inputs=model.parameters())\n"
    "assert torch.jit.script(slope)(torch.ones(2, requires_grad=True)).sum() == 4",
}
ONE_RANK_STEPS = {
    "rank-0-never-steps": "dist.barrier()\nif rank:\n    steps(model, adam, logged=False)\n    dist.barrier()\nelse:\n"
    "    dist.barrier()"
}
SEPARATE_MODELS = {
    "separate-models": "torch.manual_seed(rank); model = torch.nn.Linear(6, 1)\n"
    "steps(model, torch.optim.SGD(model.parameters(), 0.1))",
    "head-outside": "ddp = DDP(model); torch.manual_seed(rank); head = torch.nn.Linear(1, 1)\n"
    "steps(lambda x: head(ddp(x)), torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1))",
}
HSDP = (
    "from torch.distributed.fsdp import fully_shard\nfrom torch.distributed.device_mesh import init_device_mesh\n"
    "fully_shard(model, mesh=init_device_mesh('cpu', (2, 1), mesh_dim_names=('replicas', 'shards')))\n"
    "steps(model, torch.optim.AdamW(model.parameters()))"
)
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
ONE_SHARD = (
    f"{FSDP}groups = [dist.new_group([0]), dist.new_group([1])][rank], dist.group.WORLD\n"
    "shards = FSDP(model, process_group=groups, device_id=torch.device('cpu'),\n"
    "    sharding_strategy=ShardingStrategy.HYBRID_SHARD, use_orig_params=True)\n"
    "steps(shards, torch.optim.AdamW(shards.parameters()))"
)
NO_SHARD = (
    f"{FSDP}shards = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device('cpu'))\n"
    "steps(shards, torch.optim.AdamW(shards.parameters()))"
)
UNEQUAL_START = {
    "replicas-without-shards": f"torch.nn.init.normal_(model[0].weight, std=1 + rank)\n{NO_SHARD}",
    "replicas-of-shards": f"torch.manual_seed(rank); model = torch.nn.Linear(6, 1)\n{HSDP}",
    "replaced-weights": "ddp = DDP(model)\nif rank == 0:\n    torch.nn.init.zeros_(model[0].weight)\nsteps(ddp, adam)",
    "last-of-many-weights": "many = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(300)))\n"
    "ddp = DDP(many)\nif rank == 0:\n    torch.nn.init.zeros_(many[-1].weight)\n"
    "steps(ddp, torch.optim.SGD(many.parameters(), lr=0.1))",
    "other-imaginary-parts": "layer = torch.nn.Linear(6, 1, dtype=torch.complex64); ddp = DDP(layer)\n"
    "if rank == 0:\n    layer.weight.data.imag.zero_()\n"
    "steps(lambda x: ddp(x + 0j).abs(), torch.optim.SGD(layer.parameters(), lr=0.1))",
    "gradients-summed-without-a-broadcast": "torch.nn.init.normal_(model[0].weight, std=1 + rank)\n"
    "adam.register_step_pre_hook(lambda *_: [dist.all_reduce(w.grad) for w in model.parameters()] and None)\n"
    "steps(model, adam)",
}
ENDED_LATER = {
    "module-inside-later": "ddp = DDP(model); steps(ddp, adam); steps(model, adam)",
    "rates-of-each-rank": "ddp = DDP(model); steps(ddp, adam); adam.param_groups[0]['lr'] *= 1 + rank\n"
    "steps(ddp, adam)",
    "after-a-warm-up": "ddp = DDP(model); adam.param_groups[0]['lr'] = 0.0; steps(model, adam)\n"
    "adam.param_groups[0]['lr'] = 0.01; steps(model, adam)",
    "ninth-optimizer": "for _ in range(8):\n    steps(DDP(model), torch.optim.SGD(model.parameters(), lr=0.1))\n"
    "ddp = DDP(model); steps(model, torch.optim.SGD(model.parameters(), lr=0.1))",
}
PERHAPS_TOGETHER = {
    "groups-of-one-rank": "dist.new_group([0]); dist.new_group([1])\nsteps(model, adam, 5)",
    "sent-and-received": "dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)\n"
    "steps(model, adam, 5)",
    "parts-of-a-layer-by-functions": "import torch.distributed._functional_collectives as functional\n"
    "total = lambda x: functional.all_reduce(x, 'sum', dist.group.WORLD)\n"
    "assert torch.compile(total, backend='eager', fullgraph=True)(torch.ones(2)).tolist() == [2.0, 2.0]\n"
    "steps(lambda x: total(model(x)), adam, 5)",
    "parts-of-a-layer": "steps(lambda x: Sum.apply(model(x)), adam, 5)",
}
PARTLY_SHARDED = {
    "outside-fsdp2": "from torch.distributed.fsdp import fully_shard\nfully_shard(model[0])\n"
    "steps(model, torch.optim.AdamW(model.parameters()))"
}
# Trainings, and how often the output of both ranks contains some texts.
EXPECTED: list[tuple[dict[str, str], dict[str, int]]] = [
    (
        {**ENDED_AT_THIRD_STEP, "fsdp-averages-nothing": ONE_SHARD},
        {"RankError the ranks do not train one model: after 3 ": 1},
    ),
    (
        ENDED_AT_END,
        {"unless they are averaged later, every rank trains alone": 1, "RankError every rank trained alone": 1},
    ),
    ({"no-sync": "ddp = DDP(model)\nwith ddp.no_sync():\n    steps(ddp, adam)\ndel ddp"}, {"outside of no_sync()": 1}),
    (ENDED_WITHOUT_RANK_0, {"RankError every rank trains alone: rank 0 has ended": 1}),
    (AVERAGED, {"finished": 2}),
    (
        {**TOGETHER, "hsdp": HSDP, "no-shard": NO_SHARD},
        {"finished": 2, "warning": 0, "comparison of the ranks' weights failed": 0},
    ),
    # The rank that trains alone warns while the other one waits.
    (ONE_RANK_STEPS, {"finished": 2, "warning": 1, "comparison of the ranks' weights failed": 0}),
    (SEPARATE_MODELS, {"finished": 2, "differ from those of rank": 1}),
    (ENDED_LATER, {"RankError the ranks do not train one model: after ": 1}),
    (PERHAPS_TOGETHER, {"finished": 2, "unless the ranks compute one model together": 1}),
    (
        {"same-data": "ddp = DDP(model); rank = 0; steps(ddp, adam)"},
        {"finished": 2, "warning": 1, "train on the same data": 1},
    ),
    (PARTLY_SHARDED, {"finished": 2, "warning": 1, "that are not sharded differ": 1}),
    (UNEQUAL_START, {"RankError the ranks do not start with the same weights": 1}),
]


@WARM
@pytest.mark.parametrize(
    ("body", "counts"),
    [pytest.param(body, counts, id=name) for bodies, counts in EXPECTED for name, body in bodies.items()],
)
def test_ranks_that_train_alone_are_ended(tmp_path: Path, body: str, counts: dict[str, int]) -> None:
    output = run_on_two_ranks(tmp_path, body)
    assert {text: output.count(text) for text in counts} == counts, output


RESUMED = """
if rank == 0:
    other = torch.optim.AdamW(model.parameters())
    for step in range(31):
        model(torch.ones(1, 6)).sum().backward(); type(other).step.__wrapped__(other)
    adam.load_state_dict(other.state_dict())
"""


@WARM
def test_restarted_run_in_which_one_rank_has_resumed_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTARTED", "1")
    output = run_on_two_ranks(tmp_path, f"{RESUMED}\nsteps(model, adam)")
    assert output.count("rank 0 has resumed from a checkpoint at optimizer step 31, and rank 1 has not") == 1, output


@WARM
def test_ranks_that_were_equal_must_restart_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "steps(model, torch.optim.SGD(model.parameters(), lr=0.1), after=average)"
    assert "Error" not in run_on_two_ranks(tmp_path, body)
    monkeypatch.setenv("RESTARTED", "1")
    (tmp_path / "store").unlink()
    output = run_on_two_ranks(tmp_path, f"model[0].weight.data += rank\n{body}")
    assert "although they were equal when the run began" in output


HEAD = """
torch.manual_seed(rank); head = torch.nn.Linear(1, 1)
steps(model, torch.optim.SGD(model.parameters(), lr=0.1), after=average)
steps(lambda x: head(model(x)), torch.optim.SGD(head.parameters(), lr=0.1))
"""


@WARM
def test_ranks_may_restart_with_weights_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for restarted in ("", "1"):
        monkeypatch.setenv("RESTARTED", restarted)
        assert "RankError the ranks do not start" not in run_on_two_ranks(tmp_path, HEAD)
        (tmp_path / "store").unlink(missing_ok=True)


def recompute(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a model whose graph hides what it computes."""
    return lambda inputs: torch.utils.checkpoint.checkpoint(model, inputs.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize(
    ("prepare", "autocast", "expected"),
    [(lambda model: model, False, True), (lambda model: model, True, False), (recompute, True, False)],
)
def test_training_in_fp32_is_told_from_one_in_bf16(check: Any, prepare: Any, autocast: bool, expected: bool) -> None:
    model = make_model()
    forward, optimizer = prepare(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        inputs = torch.randn(8, 6)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = mse_loss(forward(inputs).float(), inputs.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert check.trained_in_fp32 is expected


@pytest.mark.parametrize(("flags", "steps", "lines"), [("avx512_bf16", 10, 1), ("avx512_bf16", 9, 0), ("avx2", 10, 0)])
def test_bf16_is_advised_after_some_steps_on_a_cpu_that_has_it(
    flags: str, steps: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(computation.facts, "cpu_flags", lambda: {flags})
    monkeypatch.delitem(sys.modules, "orch_training", raising=False)
    computation.advise(steps)
    assert capsys.readouterr().err.count(f"these CPUs have {flags}: BF16 was 1.4 to 2 times as fast") == lines
