"""Write the names of a cluster's nodes to /etc/hosts."""

from __future__ import annotations

from pathlib import Path

from tests.roles.modules import load_module, run_play


def test_comments_in_another_encoding_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "etc-hosts"
    path.write_bytes(b"# B\xfcro\n127.0.1.1 node0 # B\xfcro\n10.0.0.9 printer # B\xfcro\n")
    assert "127.0.1.1 node0" in load_module("orch_probe").read(str(path))
    task = {"orch_hosts": {"cluster": "lab", "path": str(path), "nodes": [{"address": "10.0.0.1", "names": ["node0"]}]}}
    assert "CHANGED" in run_play(tmp_path, {"tasks": [task]})
    block = b"# begin orch cluster lab\n10.0.0.1 node0\n# end orch cluster lab\n"
    assert path.read_bytes() == block + b"# B\xfcro\n10.0.0.9 printer # B\xfcro\n"
