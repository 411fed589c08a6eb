"""Run scripts that use torch.distributed and frameworks in unusual ways, and files of all stacks' accelerates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from orch_node.rank import metrics
from orch_node.rank.checks import RankError
from torch._subclasses.fake_tensor import FakeTensorMode

from orchestrator import load
from orchestrator.planning import launchers
from tests.conftest import make_spec
from tests.local.conftest import download_wheels
from tests.local.runs import SCRIPTS, expect_exit, last_run, rank_log, torchrun, write_script
from tests.local.workspaces import Workspace
from tests.support.plans import ONE_NODE, TWO_NODES
from tests.unit.planning.test_accelerate_file import FILE

# A layer on each rank: rank 0 sends its output to rank 1, which returns the gradient.
REMOTE_CALLS = """
import os
import torch
import torch.distributed.rpc as rpc
rank = int(os.environ["RANK"])
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

def train_last_layer(inputs):
    inputs.requires_grad_()
    layer(inputs).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return inputs.grad

rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2)
if rank == 0:
    for step in range(5):
        out = layer(torch.ones(2, 4))
        out.backward(rpc.rpc_sync("rank1", train_last_layer, (out.detach(),)))
        optimizer.step()
        optimizer.zero_grad()
    print("TRAINED", step + 1)
rpc.shutdown()
print("ENDED", rank)
"""

NEW_GROUPS = """
import datetime, os, pickle, time
import torch
import torch.distributed as dist

def show(name):
    total = torch.ones(1)
    dist.all_reduce(total)
    print(name, dist.get_backend(), int(total), flush=True)

dist.init_process_group("gloo", "env://", datetime.timedelta(seconds=7200))
show("ADOPTED")
for function in (dist.get_backend, dist.init_process_group, dist.destroy_process_group, os._exit):
    assert pickle.loads(pickle.dumps(function)) is function
try:
    dist.init_process_group("gloo", None, None, 3)
except ValueError as error:
    print("WRONG-SIZE", error)
try:
    dist.init_process_group("gloo", None, None, 2, 1 - dist.get_rank())
except ValueError as error:
    print("WRONG-RANK", error)
dist.destroy_process_group()
dist.init_process_group(backend="gloo", timeout=datetime.timedelta(seconds=60))
show("KEYWORD")
dist.destroy_process_group()
dist.init_process_group("gloo")
show("POSITION")
dist.init_process_group(timeout=datetime.timedelta(seconds=2))
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        print("TIMED-OUT", str(error).replace(os.linesep, " "))
else:
    time.sleep(6)
"""

ACCELERATORS = """
import datetime, sys
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

def timeout():
    options = dist.group.WORLD._get_backend(torch.device("cpu")).options
    return int(options._timeout.total_seconds())

handlers = [InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=5000))]
accelerator = Accelerator(kwargs_handlers=handlers)
print("FIRST", accelerator.num_processes, dist.get_backend(), timeout())
accelerator.end_training()
accelerator.state._reset_state(reset_partial_state=True)
accelerator = Accelerator(kwargs_handlers=handlers)
total = int(accelerator.reduce(torch.ones(1)))
print("SECOND", accelerator.num_processes, dist.get_backend(), total, timeout())
accelerator.state._reset_state(reset_partial_state=True)
from transformers import TrainingArguments
arguments = TrainingArguments("out", ddp_timeout=7200)
print("THIRD", arguments.world_size, timeout())
"""


ACCELERATOR_WITHOUT_PEERS = """
import os, torch
os.environ["ACCELERATE_USE_CPU"] = "false"
from accelerate import Accelerator
accelerator, layer = Accelerator(), torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(2, 2)).sum())
optimizer.step()
print("DONE")
"""


LIGHTNING_WITHOUT_PEERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.environ["NODE_RANK"] = "0"
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
import torch
fabric = Fabric(
    accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", plugins=[LightningEnvironment()]
)
fabric.launch()
model = torch.nn.Linear(2, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
fabric.backward(model(torch.ones(2, 2)).sum())
optimizer.step()
"""


def test_ranks_that_only_make_remote_calls_may_train(one_host: Workspace) -> None:
    cell = one_host.train_text(REMOTE_CALLS)
    assert cell.printed("TRAINED", 0) == "5"
    assert cell.printed("ENDED", 1) == "1"
    assert all("trains alone" not in cell.logs[rank] for rank in (0, 1))


def test_new_process_groups_have_their_timeout_and_the_backend_of_the_run(one_host: Workspace) -> None:
    """Request gloo in a run with ccl; the timeouts of groups of gloo are read in the next test."""
    cell = one_host.train_text(NEW_GROUPS, "--backend", "ccl")
    for rank in (0, 1):
        assert [cell.printed(name, rank) for name in ("ADOPTED", "KEYWORD", "POSITION")] == ["gloo 2"] * 3
        assert "world_size=3, but orch has started it with 2" in cell.printed("WRONG-SIZE", rank)
        assert f"rank={1 - rank}, but orch has started it with {rank}" in cell.printed("WRONG-RANK", rank)
        assert "process group (gloo); it gets a new one on ccl" in cell.logs[rank]
    assert re.search(r"2000 ?ms", cell.printed("TIMED-OUT", 0))


def test_accelerator_without_cpu_option_trains_on_all_ranks(one_host: Workspace) -> None:
    cell = one_host.train_text(ACCELERATORS, "--backend", "gloo")  # has options to read the timeout from
    for rank in (0, 1):
        assert cell.printed("FIRST", rank) == "2 gloo 5000"
        assert cell.printed("SECOND", rank) == "2 gloo 2 5000"
        assert cell.printed("THIRD", rank) == "2 7200"
        assert "Failed to load" not in cell.logs[rank], "torchao, which transformers imports, lacks libraries for CUDA"


def test_accelerator_with_a_wrong_world_size_ends_before_its_first_step(one_host: Workspace) -> None:
    """Trainer has the same numbers, and the message names its option, too."""
    cell = one_host.train_text(ACCELERATOR_WITHOUT_PEERS, code=1)
    failure = cell.report["failure"]["text"]
    assert "Accelerate trains as rank 0 of 1" in failure
    assert "use_cpu=True to TrainingArguments()" in failure
    assert all("DONE" not in cell.logs[rank] for rank in (0, 1))


def test_lightning_fabric_with_a_wrong_rank_ends_before_its_first_step(two_hosts: Workspace, lightning: str) -> None:
    cell = two_hosts.train_text(LIGHTNING_WITHOUT_PEERS, "--", lightning, code=1)
    text = cell.report["failure"]["text"]
    assert "Lightning trains as rank 0 of 2, but this is rank 1 of 2" in text
    assert "devices=1, num_nodes=2 and strategy='ddp'" in text
    assert "fabric.launch()" in text, "Fabric refuses setup() without it"


CHILD = """
import os, sys
import torch.distributed as dist

def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=1)
    dist.destroy_process_group()

if __name__ == "__main__":
    import accelerate, multiprocessing, torch
    process = multiprocessing.get_context("fork").Process(target=dist.all_reduce, args=(torch.ones(1),))
    process.start()
    process.join()
    print("FORKED", process.exitcode)
    try:
        accelerate.notebook_launcher(work, (0, 20000 + os.getpid() % 10000), num_processes=2)
    except Exception as error:
        print("NOTEBOOK", error)
"""


def test_script_that_starts_its_own_process_group_on_every_rank_fails(one_host: Workspace) -> None:
    cell = one_host.train_text(CHILD, code=1)
    message = "starts further processes, which form a process group"
    assert message in cell.report["failure"]["text"]
    assert cell.printed("FORKED", 0) == "1"
    assert message in cell.printed("NOTEBOOK", 0)


WORKERS = """
import subprocess, sys
import torch
import torch.distributed as dist

CHILD = ("import torch; w = torch.nn.Parameter(torch.ones(1)); w.grad = torch.ones(1);"
         " torch.optim.SGD([w], lr=0.1).step()")

class Shards(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield dist.get_rank() if dist.is_initialized() else -1

if __name__ == "__main__":
    from torch.distributed.checkpoint import state_dict_saver as saver
    process = saver.AsyncCheckpointerType.PROCESS
    saver.async_save({"w": torch.ones(1)}, checkpoint_id="saved", async_checkpointer_type=process).result()
if __name__ == "__main__" and dist.get_rank() == 0:
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Shards(), num_workers=1, multiprocessing_context=method)
        print(method.upper(), [int(batch) for batch in loader])
elif __name__ == "__main__":
    program = f"{CHILD}; import sys; print('HIDDEN', any('child_python' in folder for folder in sys.path))"
    print(subprocess.check_output([sys.executable, "-c", program], text=True))
"""


def test_processes_that_train_no_further_model_work_as_usual(one_host: Workspace) -> None:
    """Save a checkpoint by processes, start workers on rank 0, and train in a process of rank 1, which is seen."""
    process = expect_exit(one_host.orch("train", write_script(one_host.folder, WORKERS), *one_host.options))
    assert "no training step" not in process.stderr
    first, second = (rank_log(last_run(one_host.folder), rank).splitlines() for rank in (0, 1))
    assert {"FORK [0]", "SPAWN [-1]"} <= set(first)
    assert "HIDDEN False" in second


NAN = """
import torch
import torch.distributed as dist
dist.all_reduce(torch.ones(1))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    inputs = torch.full((1, 2), float("nan") if step > 5 else 1.0)
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_loss_that_stays_nan_causes_a_warning(one_host: Workspace) -> None:
    process = expect_exit(one_host.orch("train", write_script(one_host.folder, NAN), *one_host.options))
    warning = "the loss has been NaN in 10 backward passes in a row"
    assert warning in process.stderr
    assert "no training step" not in process.stderr
    assert rank_log(last_run(one_host.folder), 1).count(warning) == 1
    output = process.stdout + process.stderr
    assert "warning: the loss has been NaN on ranks 0-1; --stop-on-nan ends a run after 10" in output
    assert "loss NaN" in one_host.orch("runs").stdout


def test_few_nan_losses_cause_a_warning_only_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Accept what a gradient scaler skips during its first steps."""
    losses, nan = metrics.NanLosses(), torch.tensor(float("nan"))
    for _ in range(3):
        for _ in range(9):
            losses.check(torch, nan)
        losses.check(torch, [torch.tensor(1.0)])
        losses.check(torch, torch.ones(3))
    with FakeTensorMode():
        losses.check(torch, torch.ones(()))  # without a value
    losses.end()
    assert "warning" not in capsys.readouterr().err
    for _ in range(2):
        losses.check(torch, nan)
    losses.end()
    assert "warning: the loss has been NaN in the last backward passes (2)." in capsys.readouterr().err


def test_stop_on_nan_raises_again_if_the_script_handles_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_STOP_ON_NAN", "1")
    losses, nan = metrics.NanLosses(), torch.tensor(float("nan"))
    for _ in range(9):
        losses.check(torch, nan)
    for _ in range(2):
        with pytest.raises(RankError, match="NaN in 10 backward passes"):
            losses.check(torch, nan)


SLOW_TO_JOIN = """
import os, time
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

rank = dist.get_rank()
make_group = c10d._new_process_group_helper

def make_group_slowly(*args, **kwargs):
    group = make_group(*args, **kwargs)
    if rank == 1:
        time.sleep(2)
        open("joined", "w")
    return group

dist.destroy_process_group()
c10d._new_process_group_helper = make_group_slowly
dist.init_process_group()
print("JOINED", os.path.exists("joined"))
"""


def test_gloo_group_is_ready_only_when_all_ranks_have_joined(one_host: Workspace) -> None:
    """Prevent a rank from ending its script while another one still opens its connections."""
    (one_host.folder / "joined").unlink(missing_ok=True)
    cell = one_host.train_text(SLOW_TO_JOIN, "--backend", "gloo")
    assert [cell.printed("JOINED", rank) for rank in (0, 1)] == ["True", "True"]


# Lightning's Trainer, which computes the number of each rank itself.


LIGHTNING_SCRIPT = SCRIPTS / "with_lightning.py"


@pytest.fixture(scope="session")
def torchrun_output(lightning: str) -> dict[int, str]:
    """Return the output of each rank of torchrun with gloo, without orch."""
    process = torchrun(str(LIGHTNING_SCRIPT), "2", "1", lightning, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return {int(rank): text for rank, text in re.findall(r"RANK(\d) (rank .*)", process.stdout)}


def test_lightning_on_two_nodes_trains_like_with_torchrun_and_sets_the_timeout_of_its_strategy(
    two_hosts: Workspace, lightning: str, torchrun_output: dict[int, str]
) -> None:
    text = LIGHTNING_SCRIPT.read_text()
    assert 'strategy="ddp",' in text
    strategy = "lightning.pytorch.strategies.DDPStrategy(timeout=timedelta(seconds=5000))"
    text = text.replace('strategy="ddp",', f"strategy={strategy},")
    cell = two_hosts.train_text(
        f"from datetime import timedelta\n{text}"
        "options = torch.distributed.group.WORLD._get_backend(torch.device('cpu')).options\n"
        "print('TIMEOUT', options._timeout)\n",
        *("--backend", "gloo", "--", "1", "2", lightning),
    )
    assert {rank: cell.printed(f"RANK{rank}", rank) for rank in (0, 1)} == torchrun_output
    assert torchrun_output[0] != torchrun_output[1]
    assert cell.printed("TIMEOUT", 1) == "1:23:20"


# The accelerates of all stacks read our configuration files, and launch with them.


ACCELERATE_VERSIONS = sorted({stack.requirements["accelerate"] for stack in load.all_stacks()})
# Loads each file and runs all of `accelerate launch` up to its command.
PRINT_COMMANDS = """
import json, os, sys
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
import accelerate
for path in sys.argv[1:]:
    args = launch_command_parser().parse_args(["--config_file", path, "script.py", "--x"])
    args, _, _ = _validate_launch_command(args)
    command, environment = prepare_simple_launcher_cmd_env(args)
    print(json.dumps([accelerate.__version__, command, environment["ACCELERATE_MIXED_PRECISION"]]))
"""


@pytest.fixture(scope="session", params=ACCELERATE_VERSIONS)
def accelerate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder to import this version from, without changing the stack."""
    return download_wheels(tmp_path_factory.mktemp("accelerate"), f"accelerate=={request.param}")


def test_config_file_is_read_by_the_accelerate_of_each_stack(accelerate: str, tmp_path: Path) -> None:
    version = launchers.Version(next(Path(accelerate).glob("*.whl")).name.split("-")[1])
    cases = [(nodes, user_config) for nodes in (ONE_NODE, TWO_NODES) for user_config in ({}, FILE)]
    paths = []
    for index, (nodes, user_config) in enumerate(cases):
        spec = make_spec(nodes, ppn=2, precision="bf16", accelerate=user_config)
        config = launchers.accelerate_config(spec, version, starts_mpirun=True)
        paths.append(tmp_path / f"{index}.yaml")
        paths[-1].write_text(yaml.safe_dump(config, sort_keys=False))
        assert yaml.safe_load(paths[-1].read_text()) == config
    command = [sys.executable, "-c", PRINT_COMMANDS, *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": accelerate, "PATH": f"{Path(sys.executable).parent}:/bin"}
    process = expect_exit(subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60))
    lines = [line for line in process.stdout.splitlines() if line.startswith("[")]
    for (nodes, _), line in zip(cases, lines, strict=True):
        imported_version, launch, precision = json.loads(line)
        assert (imported_version, precision) == (str(version), "bf16")
        assert launch[:7] == ["mpirun", "-f", spec.hostfile, "-ppn", "2", "-n", str(2 * len(nodes))]
        assert launch[-2:] == ["script.py", "--x"]
