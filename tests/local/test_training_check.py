"""Which trainings are told that they do not reach their weights, and which ones are left alone."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from orch_node.rank import checks, training_check, weight_inspection
from torch import nn
from torch.nn.functional import mse_loss

from orchestrator.paths import LIB
from tests.jobs import ended, started

STEPS = 25
Watched = Callable[..., Any]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_EVENTS_FD", raising=False)
    torch.manual_seed(0)


@pytest.fixture
def watch() -> Iterator[Any]:
    """The watch of a rank, on this process."""
    begun = training_check.begin(torch, lambda: 0)
    yield begun
    begun.uninstall()


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def loss_of(model: nn.Module, step: int = 0) -> torch.Tensor:
    made = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 6, generator=made)
    dtype = next(model.parameters()).dtype
    return mse_loss(model(inputs.to(dtype)).float(), inputs.sum(dim=1, keepdim=True))


def train(
    model: nn.Module,
    *optimizers: torch.optim.Optimizer,
    steps: int = STEPS,
    each: Callable[[int], object] = lambda step: None,
) -> None:
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step).backward()
        each(step)
        for optimizer in optimizers:
            optimizer.step()


def adam(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **settings})


def stopped(run: Callable[[], object]) -> tuple[str, int]:
    """The words by which a training was ended, and how many backward() it had made."""
    count = 0
    before = torch.autograd.backward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return before(*args, **kwargs)

    torch.autograd.backward = counted
    try:
        kind = checks.RankError
        with pytest.raises(kind) as caught:
            run()
    finally:
        torch.autograd.backward = before
    return str(caught.value), count


# What is told.


def test_an_optimizer_of_copies_is_ended_before_the_third_step(watch: Any) -> None:
    model = network()
    optimizer = adam(copy.deepcopy(model))
    words, backwards = stopped(lambda: train(model, optimizer))
    assert "after 2 optimizer steps none of these 4 weights has changed" in words
    assert "It holds 4 others, which get no gradients" in words
    assert backwards == 3


def test_a_model_that_was_copied_after_its_optimizer_was_made(watch: Any) -> None:
    model = network()
    optimizer = adam(model)
    words, _ = stopped(lambda: train(copy.deepcopy(model), optimizer))
    assert "no optimizer holds them" in words


def test_copies_that_are_trained_but_never_copied_back(watch: Any) -> None:
    """Master weights in FP32, of weights in BF16, without the way back."""
    model = network(torch.bfloat16)
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)

    def hand_over(step: int) -> None:
        for master, weight in zip(masters, model.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()

    words, backwards = stopped(lambda: train(model, optimizer, each=hand_over))
    assert "which do change" in words
    assert backwards == 3


def test_copies_are_told_also_when_the_warm_up_is_long(watch: Any) -> None:
    """Nothing is visible in BF16 at first; then it is."""
    model = network(torch.bfloat16)
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.0)

    def hand_over(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.0 if step < 8 else 0.5
        for master, weight in zip(masters, model.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()

    _, backwards = stopped(lambda: train(model, optimizer, each=hand_over))
    assert backwards == 10


def test_weights_that_something_puts_back(watch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    kept = copy.deepcopy(model.state_dict())
    optimizer = adam(model)
    for step in range(5):
        model.load_state_dict(kept)
        train(model, optimizer, steps=1, each=lambda _: None)
        assert ("the weights have not changed" in capsys.readouterr().err) == (step == 2)


def test_an_optimizer_that_does_not_step(watch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    class AdamW(torch.optim.AdamW):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    model = network()
    train(model, AdamW(model.parameters(), lr=1e-3))
    assert "the weights have not changed after 2 optimizer steps" in capsys.readouterr().err


def test_a_part_that_was_replaced_after_the_optimizer_was_made(watch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    optimizer = adam(model)
    model[0] = nn.Linear(6, 16)
    train(model, optimizer)
    assert "2 weights that get gradients are in no optimizer" in capsys.readouterr().err


def test_a_loss_that_does_not_depend_on_the_weights_in_use(watch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """As a kernel that keeps a packed copy of its weight does it."""
    model = network()
    packed = copy.deepcopy(model)
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss_of(model, 0)
        (value - value.detach() + loss_of(packed, 0).detach()).backward()
        optimizer.step()
    words = capsys.readouterr().err
    assert "in each of the first 20 steps" in words
    assert words.count("warning") == 1


# What is left alone.


def plain(model: nn.Module) -> None:
    train(model, adam(model))


def warm_up(model: nn.Module) -> None:
    optimizer = adam(model, lr=0.0)

    def rate(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 * step / STEPS

    train(model, optimizer, each=rate)


def no_rate_at_all(model: nn.Module) -> None:
    train(model, adam(model, lr=0.0))


def accumulation(model: nn.Module) -> None:
    optimizer = adam(model)
    for step in range(STEPS):
        for part in range(7):
            (loss_of(model, 7 * step + part) / 7).backward()
        optimizer.step()
        optimizer.zero_grad()


def frozen_layers(model: nn.Module) -> None:
    for weight in next(iter(model.children())).parameters():
        weight.requires_grad = False
    train(model, adam(model))


def left_out_layers(model: nn.Module) -> None:
    """They get gradients and are in no optimizer: a way to freeze them."""
    head = list(model.children())[-1]
    train(model, adam(head))


def unused_layers(model: nn.Module) -> None:
    unused = nn.Linear(6, 16)
    train(model, torch.optim.AdamW([*model.parameters(), *unused.parameters()], lr=1e-3))


def zero_gradients(model: nn.Module) -> None:
    def clear(step: int) -> None:
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad.zero_()

    train(model, adam(model, weight_decay=0.0), each=clear)


def steps_before_any_gradient(model: nn.Module) -> None:
    """Some do so to keep the scheduler from complaining."""
    optimizer = adam(model)
    for _ in range(4):
        optimizer.step()
    train(model, optimizer)


def skipped_by_a_scaler(model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    optimizer = adam(model, fused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step) * (1e38 if step < 6 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


def tiny_rate_in_bf16(model: nn.Module) -> None:
    model.to(torch.bfloat16)
    train(model, adam(model, lr=1e-9, weight_decay=0.0))


def tiny_rate_in_bf16_on_one_batch(model: nn.Module) -> None:
    model.to(torch.bfloat16)
    optimizer = adam(model, lr=1e-9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        optimizer.step()


def master_weights(model: nn.Module) -> None:
    model.to(torch.bfloat16)
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=1e-6)
    for step in range(STEPS):
        loss_of(model, step).backward()
        for master, weight in zip(masters, model.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
            weight.grad = None
        optimizer.step()
        for master, weight in zip(masters, model.parameters(), strict=True):
            weight.data.copy_(master.data)


def foreach(model: nn.Module) -> None:
    train(model, adam(model, foreach=True))


def fused(model: nn.Module) -> None:
    train(model, adam(model, fused=True))


def momentum(model: nn.Module) -> None:
    train(model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9))


def lbfgs(model: nn.Module) -> None:
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> float:
        optimizer.zero_grad()
        value = loss_of(model, 0)
        value.backward()
        return float(value.detach())

    for _ in range(STEPS):
        optimizer.step(closure)


def two_optimizers(model: nn.Module) -> None:
    first, last = next(iter(model.children())), list(model.children())[-1]
    train(model, adam(first), adam(last))


def adversaries(model: nn.Module) -> None:
    """A GAN: each of two optimizers has its own backward(), one steps three times as often."""
    judge = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    of_model, of_judge = adam(model), adam(judge)
    for _ in range(STEPS):
        for _ in range(3):
            of_judge.zero_grad()
            real, made = torch.randn(8, 1), model(torch.randn(8, 6)).detach()
            (judge(made).mean() - judge(real).mean()).backward()
            of_judge.step()
        of_model.zero_grad()
        (-judge(model(torch.randn(8, 6))).mean()).backward()
        of_model.step()


def step_in_backward(model: nn.Module) -> None:
    """One optimizer for each weight, which steps as soon as its gradient is there."""
    for weight in model.parameters():
        own = torch.optim.SGD([weight], lr=1e-3)

        def hook(_: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        weight.register_post_accumulate_grad_hook(hook)
    for step in range(STEPS):
        loss_of(model, step).backward()


def low_rank(model: nn.Module) -> None:
    """LoRA: a frozen weight and a small product that starts at zero."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(base.in_features, 2))
            self.up = nn.Parameter(torch.zeros(2, base.out_features))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + x @ self.down @ self.up  # type: ignore[no-any-return]

    adapted = nn.Sequential(*(Adapted(m) if isinstance(m, nn.Linear) else m for m in model))  # type: ignore[arg-type]
    train(adapted, torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad]))


def checkpointed(model: nn.Module) -> None:
    """The weights are not in the outer graph."""

    class Again(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=True)

    wrapped = Again()
    wrapped.inner = model
    train(wrapped, adam(model))


def embedding_of_few_words(model: nn.Module) -> None:
    """Of 50,000 rows three get a gradient."""
    table = nn.Embedding(50_000, 6, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(table(torch.tensor([7, 8, 9]))).sum().backward()
        optimizer.step()


def compiled(model: nn.Module) -> None:
    train(torch.compile(model, backend="aot_eager"), adam(model))


def flat_gradients_by_hand(model: nn.Module) -> None:
    """torch.autograd.grad() instead of backward()."""
    optimizer = adam(model)
    for step in range(STEPS):
        found = torch.autograd.grad(loss_of(model, step), list(model.parameters()))
        for weight, gradient in zip(model.parameters(), found, strict=True):
            weight.grad = gradient
        optimizer.step()


def one_batch_again_and_again(model: nn.Module) -> None:
    optimizer = adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, 0).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "training",
    [
        plain,
        warm_up,
        no_rate_at_all,
        accumulation,
        frozen_layers,
        left_out_layers,
        unused_layers,
        zero_gradients,
        steps_before_any_gradient,
        skipped_by_a_scaler,
        tiny_rate_in_bf16,
        tiny_rate_in_bf16_on_one_batch,
        master_weights,
        foreach,
        fused,
        momentum,
        lbfgs,
        two_optimizers,
        adversaries,
        step_in_backward,
        low_rank,
        checkpointed,
        embedding_of_few_words,
        compiled,
        flat_gradients_by_hand,
        one_batch_again_and_again,
    ],
)
def test_a_training_that_is_right_is_left_alone(
    training: Callable[[nn.Module], None], watch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    training(network())
    assert capsys.readouterr().err == ""


def test_nothing_is_left_behind_once_it_is_clear(watch: Any) -> None:
    module = importlib.import_module("torch.optim.optimizer")
    hooks = len(module._global_optimizer_pre_hooks)
    plain(network())
    assert len(module._global_optimizer_pre_hooks) == hooks - 1
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_what_cannot_be_looked_at_ends_no_training(
    watch: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_inspection, "SAMPLE_SIZE", None)
    plain(network())
    assert "the training check failed and is off: TypeError" in capsys.readouterr().err


# On several ranks.

WARM = pytest.mark.xdist_group("recipes")  # whose lane has a server of warm programs
RANKS = """
import os, sys
sys.path.insert(0, {train!r})
import torch, torch.distributed as dist
from orch_node.rank import communication, training_check
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{file}", rank=rank, world_size=2)
training_check.begin(torch, lambda: communication.collectives(torch))
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Linear(16, 1))
def train(call, weights, steps=5):
    optimizer = torch.optim.AdamW(weights)
    for step in range(steps):
        optimizer.zero_grad()
        call(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()
    print("trained")
try:
{body}
except BaseException as error:
    print(type(error).__name__, error)
sys.stdout.flush()
os._exit(0)
"""


def on_two_ranks(folder: Path, body: str) -> str:
    script = folder / "script.py"
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    script.write_text(RANKS.format(train=str(LIB), file=folder / "store", body=lines))
    ranks = [rank for number in (0, 1) for rank in started(script, number)]
    return "".join(out + err for _, out, err in ended(ranks))


@WARM
@pytest.mark.parametrize(
    "body",
    [
        "ddp = DDP(model); train(ddp, ddp.parameters())",
        "ddp = DDP(model, gradient_as_bucket_view=True); train(ddp, model.parameters())",
        "ddp = DDP(model, static_graph=True); train(ddp, ddp.parameters())",
        # Averaged later: the wrapper says so.
        "ddp = DDP(model)\nwith ddp.no_sync():\n    train(ddp, ddp.parameters())",
        "from torch.distributed.fsdp import fully_shard\n"
        "fully_shard(model, mesh=dist.device_mesh.init_device_mesh('cpu', (2,)))\n"
        "train(model, model.parameters())",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "shards = FSDP(model, device_id=torch.device('cpu'))\n"
        "train(shards, shards.parameters())",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "shards = FSDP(model, device_id=torch.device('cpu'), use_orig_params=True)\n"
        "train(shards, shards.parameters())",
        "from torch.distributed.optim import ZeroRedundancyOptimizer as Zero\n"
        "ddp = DDP(model)\n"
        "optimizer = Zero(ddp.parameters(), torch.optim.AdamW, lr=1e-3)\n"
        "for step in range(5):\n"
        "    optimizer.zero_grad(); ddp(torch.randn(4, 6)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
        "print('trained')",
    ],
    ids=["ddp", "bucket-views", "static-graph", "no-sync", "fsdp2", "fsdp", "fsdp-parts", "zero"],
)
def test_ranks_that_train_together_are_left_alone(tmp_path: Path, body: str) -> None:
    said = on_two_ranks(tmp_path, body)
    assert said.count("trained") == 2, said
    assert "Error" not in said
    no_sync = "no_sync" in body
    assert ("warning" in said) == no_sync, said


@WARM
@pytest.mark.parametrize(
    "body",
    [
        "ddp = DDP(model); train(model, ddp.parameters())",
        "import copy; own = copy.deepcopy(model); ddp = DDP(model); train(own, own.parameters())",
    ],
    ids=["module-inside", "another-module"],
)
def test_who_trains_past_its_wrapper_is_ended(tmp_path: Path, body: str) -> None:
    said = on_two_ranks(tmp_path, body)
    assert said.count("RankError every rank trains alone: 2 optimizer steps") == 2, said


@WARM
def test_a_wrapper_around_a_copy(tmp_path: Path) -> None:
    said = on_two_ranks(tmp_path, "import copy; ddp = DDP(copy.deepcopy(model)); train(ddp, model.parameters())")
    assert said.count("RankError training does not change the weights that the model uses") == 2, said
