"""A project of several files, whose script trains only if it finds all of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.files import write_files

FILES = {
    "train.py": """
import json, sys
from pathlib import Path
import torch, torch.distributed as dist
from net import layers
import helper
steps = json.loads(Path("conf/small.json").read_text())["steps"]
value = torch.ones(1) * layers.WIDTH
dist.all_reduce(value)
print("RESULT", value.item(), steps, helper.NAME, sys.argv[1:], flush=True)
if dist.get_rank() == 0:
    Path("out").mkdir()
    Path("out/model.txt").write_text("trained")
    Path("conf/small.json").write_text('{"steps": 4}')
""",
    "helper.py": "NAME = 'helper'\n",
    "net/__init__.py": "",
    "net/layers.py": "from .width import WIDTH\n",
    "net/width.py": "WIDTH = 3\n",
    "conf/small.json": '{"steps": 3}\n',
    "data/huge.bin": "ignored",
    ".gitignore": "data/\n",
}
ARGUMENTS = ("--lr", "$(x)")
RESULT = "6.0 3 helper ['--lr', '$(x)']"  # what each of two ranks prints with these arguments


def write_project(folder: Path, *, git: bool = True) -> None:
    """Write the project to a new folder, which is a git repository unless the machine of orch has no git."""
    write_files(folder, FILES)
    if git:
        subprocess.run(["git", "init", "--quiet", folder], check=True)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def commit(repository: Path, path: str = ".") -> None:
    git(repository, "add", path)
    git(repository, "commit", "--quiet", "-m", "message")
