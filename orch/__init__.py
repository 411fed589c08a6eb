"""Train PyTorch models on CPU clusters from Python: the functions of the program `orch`.

import orch

run = orch.train("train.py", inventory="inventory/lab", nodes=4, args=["--epochs", "3"])
print(run.wait(show="0").state)
"""

from orchestrator.api import Job as Job
from orchestrator.api import OrchError as OrchError
from orchestrator.api import Run as Run
from orchestrator.api import RunError as RunError
from orchestrator.api import RunEvent as RunEvent
from orchestrator.api import nodes as nodes
from orchestrator.api import provision as provision
from orchestrator.api import resume as resume
from orchestrator.api import run as run
from orchestrator.api import runs as runs
from orchestrator.api import submit as submit
from orchestrator.api import train as train
