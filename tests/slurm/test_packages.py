"""Add packages to the stack of a real Slurm, from its login node and from a laptop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.slurm.laptop import Laptop
from tests.slurm.runs import PROJECT_ON_TWO_NODES
from tests.slurm.site import USER, Site
from tests.support.wheels import make_wheel

SCRIPT = """
import orch_test_greeter, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
print("RESULT", orch_test_greeter.VERSION, orch_test_greeter.__file__, flush=True)
"""
TRAIN = ("train", "packages/greet.py", *PROJECT_ON_TWO_NODES, "--requirements", "packages/needs.txt", "--json")


def write_project(home: Path, seen_as: str) -> None:
    """Write a script, a requirements file and the only index that it names; `seen_as` is the path of the home."""
    folder = home / "packages"
    shutil.rmtree(folder, ignore_errors=True)
    make_wheel(home / "index", "orch_test_greeter", "1.0", module="VERSION = '1.0'")
    folder.mkdir()
    (folder / "greet.py").write_text(SCRIPT)
    (folder / "needs.txt").write_text(f"--no-index\n--find-links {seen_as}/index\norch-test-greeter\n")


def check_logs(logs: str) -> None:
    """Check that both ranks have found the package in the shared folder of runs."""
    assert logs.count(f"RESULT 1.0 /home/{USER}/runs/.orch/store/") == 2


def test_packages_are_added_on_all_nodes(site: Site) -> None:
    write_project(site.home, f"/home/{USER}")
    done = site.orch(*TRAIN)
    assert done.returncode == 0, done.stdout + done.stderr
    check_logs(site.orch("logs", json.loads(done.stdout)["run_id"]).stdout)


def test_packages_of_a_laptop_go_through_the_login_node(site: Site, laptop: Laptop) -> None:
    write_project(laptop.home, str(laptop.home))
    check_logs(laptop.orch("logs", json.loads(laptop.orch(*TRAIN))["run_id"]))
