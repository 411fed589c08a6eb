"""Read and write layout.json."""

from __future__ import annotations

import json

import pytest
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout, Spare, parse, render
from orch_node.protocol.values import ProtocolError

LAYOUT = RunLayout(
    world_size=2,
    backend="ccl",
    backend_module="oneccl_bindings_for_pytorch",
    timeout_seconds=1800.0,
    setvars="x/env/setvars.sh",
    spares=(Spare("node9", "10.0.0.9"),),
    nodes=(NodeEntry("node0", "host", "2.13.0", "10.0.0.1", "eth1", {"A": "1"}),),
    ranks=tuple(RankEntry(rank, "node0", rank, 2, (rank,), 1, (), {"B": "it's"}) for rank in (0, 1)),
)


def test_layout_is_read_as_it_was_written() -> None:
    text = render(LAYOUT)
    assert parse(text) == LAYOUT
    assert text.splitlines()[-3].startswith('  {"rank": 1, "node": "node0"'), "one line per rank"


def test_error_names_the_key_of_a_wrong_value() -> None:
    for path, value, message in (
        (("world_size",), "2", "layout.json: world_size is '2', not a whole number"),  # text
        (("world_size",), True, "world_size is True"),  # bool
        (("ranks", 1, "cpus"), [0, "1"], r"ranks\[1\]: cpus\[1\] is '1'"),  # item of a list
        (("ranks", 0, "env"), {"A": 1}, r"ranks\[0\]: env.A is 1, not text"),  # value of a mapping
        (("ranks", 0), None, r"ranks\[0\] is None, not an object"),
        (("nodes",), {}, "nodes is {}, not a list"),
        (("surprise",), 1, "layout.json has the unknown key 'surprise'"),
        (("nodes", 0, "surprise"), 1, r"nodes\[0\] has the unknown key"),
    ):
        layout = json.loads(render(LAYOUT))
        container = layout
        for key in path[:-1]:
            container = container[key]
        container[path[-1]] = value
        with pytest.raises(ProtocolError, match=message):
            parse(json.dumps(layout))
