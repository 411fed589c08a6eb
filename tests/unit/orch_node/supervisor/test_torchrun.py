from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orch_node import program
from orch_node.protocol import files, layout
from orch_node.reach import BY_STEP

from tests.support.layouts import make_layout
from tests.support.ports import free_port

RANK = """
import os, sys, time
node, restarts = os.environ["ORCH_NODE"], os.environ["ORCH_TORCHRUN_RESTARTS"]
print(node, restarts, flush=True)
if restarts == "0":
    time.sleep(1 if node == "node1" else 60)
    sys.exit(1)
"""


def test_ranks_of_all_nodes_have_the_same_number_of_restarts(tmp_path: Path) -> None:
    """Let a rank fail whose peer on another node does not fail."""
    (tmp_path / files.LAYOUT).write_text(layout.render(make_layout("node0", "node1")))
    options = (f"--meet=127.0.0.1:{free_port()}", "--max-restarts=1")
    command = program.command("torchrun", str(tmp_path), *options, "--", sys.executable, "-c", RANK)
    environment = {**os.environ, BY_STEP: "env"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert sorted(result.stdout.split("\n")) == ["", "node0 0", "node0 1", "node1 0", "node1 1"], result.stderr
