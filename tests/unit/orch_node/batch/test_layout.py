"""Check the layout that a job creates on its nodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from orch_node.batch import layout as job_layout
from orch_node.batch.slurm import SYSTEM
from orch_node.batch.system import JobError
from orch_node.protocol import batch as protocol
from orch_node.protocol import layout as layouts
from orch_node.protocol import values
from orch_node.protocol.batch import Hello
from orch_node.protocol.cores import Core

from orchestrator.targets.batch.plan import plan_run
from tests.support.slurm_plans import make_request, plan_request

REQUEST = {"nodes": 2, "ppn": 2, "launcher": "mpirun", "max_restarts": 1, "spare_nodes": 1}


def make_config(fields: dict[str, object]) -> protocol.JobConfig:
    _, config = plan_request(make_request(fields), planner=plan_run)
    return protocol.parse(json.dumps(values.record(config)))


def make_hello(number: int, cores: int = 4) -> Hello:
    return Hello(
        node=f"n{number}",
        host=f"n{number}.site",
        confined=True,
        flags=("avx512f", "avx512_bf16"),
        cores=tuple(Core(numa=0, socket=0, core=core_id, cpus=(core_id + 8, core_id + 40)) for core_id in range(cores)),
        address=f"10.0.0.{number}",
        interface="ib0",
    )


def test_ranks_get_the_cores_of_the_allocation() -> None:
    config = make_config(REQUEST)
    layout = job_layout.create_layout(config, [make_hello(1), make_hello(2), make_hello(3)])
    assert [(rank.rank, rank.node, rank.cpus, rank.threads) for rank in layout.ranks] == [
        (0, "n1", (8, 9), 2),
        (1, "n1", (10, 11), 2),
        (2, "n2", (8, 9), 2),
        (3, "n2", (10, 11), 2),
    ]
    assert layout.spares == {"n3": "n3"}
    assert layout.entry("n2").env["GLOO_SOCKET_IFNAME"] == "ib0"
    files = job_layout.run_files(config, [make_hello(1), make_hello(2), make_hello(3)], {})
    assert files["hostfile"] == "n1:2\nn2:2\n"
    assert json.loads(files["env.json"])["MASTER_ADDR"] == "10.0.0.1"
    # Jobs that share a node and are not confined to their cores must not all use the same ones.
    unconfined = [replace(make_hello(number), confined=False) for number in (1, 2)]
    assert {(rank.cpus, rank.threads) for rank in job_layout.create_layout(config, unconfined).ranks} == {((), 2)}


def test_ranks_on_gpus_get_the_cores_near_them() -> None:
    config = replace(make_config({**REQUEST, "spare_nodes": 0}), on_gpus=True, nodes=1)
    hello = make_hello(1, cores=8)
    hello = replace(hello, cores=tuple(replace(core, numa=core.core // 4) for core in hello.cores), gpus=(1, 1))
    for gpus, first in (((1, 1), 12), ((), 8), ((-1, -1), 8)):
        (rank, _) = job_layout.create_layout(config, [replace(hello, gpus=gpus)]).ranks
        assert rank.cpus[0] == first


def test_spare_nodes_without_bf16_count_for_the_precision() -> None:
    config = make_config(REQUEST)
    slow = replace(make_hello(3), flags=("avx2",))
    layout = job_layout.create_layout(config, [make_hello(1), make_hello(2), slow])
    assert layout.spares_without_bf16 == ("n3",)
    assert layouts.parse(layouts.render(layout)) == layout
    assert job_layout.create_layout(config, [make_hello(1), make_hello(2), make_hello(3)]).spares_without_bf16 == ()


def test_job_whose_nodes_cannot_run_it_is_refused() -> None:
    no_flags, wrong_flags = ((),), (("avx2", "avx512_bf16"),)
    for fields, cores, flags, message in (
        ({"spare_nodes": 0}, (4,), (), "gave the job 1 of the 2 nodes of the run: n1"),
        ({}, (1, 4), (), "n1 gives this job 1 core, but --ppn is 2"),
        ({"precision": "bf16"}, (4, 4), no_flags, "n2 has no BF16 instructions"),
        ({}, (4, 4), wrong_flags, "n2 reports wrong CPU flags: avx512_bf16 without avx512f"),
    ):
        hellos = [make_hello(number, count) for number, count in enumerate(cores, 1)]
        hellos = [*hellos[: len(hellos) - len(flags)], *(replace(hellos[-1], flags=changed) for changed in flags)]
        with pytest.raises(JobError, match=message):
            job_layout.check_nodes(SYSTEM, make_config({**REQUEST, **fields}), hellos)


def test_cpus_of_the_job_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, number, granted in (("2(x3),4", 2, 2), ("2(x3),4", 3, 4), ("8", 0, 8), ("", 0, 16)):
        monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", text)
        monkeypatch.setenv("SLURM_NODEID", str(number))
        assert SYSTEM.granted_cpus(16) == granted
