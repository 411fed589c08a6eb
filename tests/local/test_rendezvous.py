"""torchrun's rendezvous takes words from nobody but the nodes of its run.

Who listens where, over all launchers, is part of tests/support/matrix.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.local.runs import Orch, last_run
from tests.local.workspaces import Workspace

# Writes into the store of torchrun's rendezvous what a stranger would: a pickle that runs code.
STRANGER = """
import base64, os, pathlib, pickle, time
import torch
from torch.distributed import TCPStore

class Payload:
    def __reduce__(self):
        return os.system, ("touch " + os.environ["ORCH_RUN_DIR"] + "/obeyed",)

run = pathlib.Path(os.environ["ORCH_RUN_DIR"]).name
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 500, is_master=False)
for _ in range(20):
    store.set(f"torch.rendezvous.{run}-1", base64.b64encode(pickle.dumps(Payload())))
    time.sleep(0.1)
"""


def test_torchrun_obeys_no_stranger(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(STRANGER)
    process = orch("train", "stranger.py", "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    assert not (last_run(tmp_path) / "obeyed").exists()
    assert process.returncode == 1, "the rendezvous is not what its nodes have written"


FAILS_ONCE = """
import os, pathlib
import torch.distributed as dist
dist.init_process_group()
tries = pathlib.Path(os.environ["ORCH_RUN_DIR"], "tries")
dist.barrier()
if dist.get_rank() == 1:
    if not tries.exists():
        tries.touch()
        raise ValueError("boom")
dist.barrier()
print("TRAINED", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_torchrun_starts_the_ranks_of_all_nodes_again(two_hosts: Workspace) -> None:
    script = two_hosts.folder / "fails_once.py"
    script.write_text(FAILS_ONCE)
    cell = two_hosts.train(str(script), "--launcher", "torchrun", "--backend", "gloo", "--max-restarts", "1")
    assert [cell.printed("TRAINED", rank) for rank in (0, 1)] == ["1", "1"]
