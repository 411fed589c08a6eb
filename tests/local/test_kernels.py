"""Train an unmodified script without orch's kernels bit for bit as under torchrun.

test_user_python.py checks that ranks use the kernels otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.local.runs import Orch, expect_exit, last_run, rank_log, write_script
from tests.support.ports import free_port

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(4, 8, 16)).pow(3).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
sums = [p.double().sum().item().hex() for p in model.parameters()]
os.write(1, f"RESULT {loss.item().hex()} {sums}\\n".encode())  # whole: ranks share torchrun's output
"""


def test_script_without_the_kernels_trains_as_under_torchrun(orch: Orch, tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    process = expect_exit(orch("train", script, "--ppn", "2", "--kernels", "torch", "-v"))
    run = last_run(tmp_path)
    results = [line for rank in (0, 1) for line in rank_log(run, rank).splitlines() if "RESULT" in line]
    assert "kernels: torch (" in process.stderr
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert torchrun.returncode == 0, torchrun.stderr
    assert sorted(results) == sorted(line for line in torchrun.stdout.splitlines() if "RESULT" in line)
    assert len(results) == 2
