"""Known errors are recognized in logs and explained; errors of the user's script are not."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.runs import store
from orchestrator.runs.explanations import explain, known_signatures
from orchestrator.runs.outcome import outcome_of
from tests.support.recorded import make_outcome, make_run, write_events, write_json

ENTRY = re.compile(r"^\[(.+)\] (.+)\n((?:.+\n)+)", re.MULTILINE)
GPU_ERROR = "AssertionError: Torch not compiled with CUDA enabled\n"  # a script may handle it
KNOWN_ERRORS = ENTRY.findall(Path(__file__).with_name("known_errors.txt").read_text())


def test_known_error_is_explained() -> None:
    for name, cause, lines in KNOWN_ERRORS:
        (explanation,) = explain(f"step 1\n{lines}step 2\n")
        assert explanation.subject == name
        assert explanation.evidence == lines.splitlines()[-1]
        assert cause in explanation.message
        assert explanation.hint
        assert "{" not in explanation.message + explanation.hint.replace("${", "")
        (explanation,) = explain(lines, on_gpus=True)
        assert not re.search(r'ranks train on CPUs|accelerator="cpu"', explanation.message + explanation.hint)
    assert {signature.name for signature in known_signatures()} == {name for name, *_ in KNOWN_ERRORS}


def test_assertion_on_the_gpu_comes_before_the_error_that_follows_it() -> None:
    log = "x.cu:15: f: block: [0,0,0] Assertion `i < n` failed.\nRuntimeError: CUDA error: device-side assert triggered"
    for text in (log, "\n".join(reversed(log.splitlines()))):
        (explanation,) = explain(text)
        assert "Assertion `i < n` failed" in explanation.evidence
        assert "CUDA_LAUNCH_BLOCKING=1" in explanation.hint


def test_causes_come_before_their_effects() -> None:
    cause, effect = "could not open the library: libmpi.so.12", "DistNetworkError: Failed to recv, got 0 bytes"
    result = explain("\n".join([effect, cause, cause]))
    assert [explanation.subject for explanation in result] == ["no libmpi", "the other rank went away"]


def make_traceback(error: str, *frames: str) -> str:
    lines = (f'  File "{path}", line 3, in bind\n    socket.bind(address)' for path in frames)
    return "\n".join(["Traceback (most recent call last):", *lines, error])


TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
RECORD = "/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors.py"
SCRIPT_ERRORS = [
    "FileNotFoundError: [Errno 2] No such file or directory: 'model.tmp' -> 'model.pt'",  # another rank has renamed it
    make_traceback("OSError: [Errno 98] Address already in use", "/home/me/train.py"),
    make_traceback("OSError: [Errno 98] Address already in use", RECORD, "/home/me/train.py"),
    make_traceback("OSError: [Errno 98] Address already in use", "/venv/lib/site-packages/hydra/main.py"),
    make_traceback("OSError: [Errno 113] No route to host", TORCH, "/home/me/api.py"),
    make_traceback("AttributeError: module 'os' has no attribute 'exit'", "/home/me/train.py"),
    make_traceback("TypeError: train() got an unexpected keyword argument 'use_ipex'", "/t.py"),
    "NameResolutionError: Failed to resolve 'api.example' ([Errno -2] Name or service not known)",
    "KeyError: 'environment variable RANK expected, but not set'",
    "max locked memory           (kbytes, -l) 64",
    "can't find interface Shape in the schema",
    make_traceback("EOFError: Ran out of input", "/home/me/train.py"),  # pickle
    make_traceback("KeyError: 'SLURM_PROCID'", "/home/me/config.py"),
    "train.py: error: the following arguments are required: --data, --ranking",
    make_traceback("ImportError: cannot import name 'f' (most likely due to a circular import) (/a.py)", "/b.py"),
    "FileNotFoundError: [Errno 2] No such file or directory: 'git'",  # a program
    "git@github.com: Permission denied (publickey).",
]


def test_error_of_the_script_itself_is_not_explained() -> None:
    for log in SCRIPT_ERRORS:
        assert explain(log) == explain(log, exception=log) == ()


def test_port_that_the_script_opens_is_not_blamed_on_an_earlier_job() -> None:
    warning = "[W1126 socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29877 (errno: 98 - "
    log = make_traceback("torch.distributed.DistNetworkError: EADDRINUSE", "/home/me/t.py", TORCH)
    assert explain(make_traceback("OSError: [Errno 98] Address already in use", TORCH))[0].subject == "port taken"
    for text in (log, f"{warning}Address already in use).\n{log}"):
        (explanation,) = explain(text, exception=log)
        assert explanation.subject == "port of the script"
        assert "earlier job" not in explanation.message + explanation.hint


SPAWNED = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 297, in _fixup_main_from_path
    main_content = runpy.run_path(main_path,
  File "/home/me/train.py", line 3, in <module>
    dist.init_process_group("gloo")
  File "/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 199, in _create_c10d_store
    return TCPStore(
torch.distributed.DistNetworkError: The server socket has failed to listen. port: 26325, code: -98, name: EADDRINUSE
"""


def test_script_without_a_guard_is_not_blamed_on_its_port() -> None:
    exception = make_traceback("RuntimeError: DataLoader worker (pid(s) 534) exited unexpectedly", "/home/me/train.py")
    (explanation,) = explain(SPAWNED + exception, exception=exception)
    assert explanation.subject == "no main guard"
    assert '`if __name__ == "__main__":`' in explanation.hint


def test_error_that_the_script_has_handled_is_not_explained() -> None:
    warning = "[W1126 16:51:26.97 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    for line in ("ModuleNotFoundError: No module named 'apex'", warning):
        context = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
        last = make_traceback("ValueError: the reason", "/home/me/train.py")
        assert explain(f"warning: {line}\n{last}", exception=last) == ()
        assert explain(line) != ()
        handled = make_traceback(line, "/home/me/train.py")
        assert explain(handled + context + last, exception=handled + context + last) == ()
        assert explain(last + context + handled, exception=last + context + handled) != ()
    assert [explanation.subject for explanation in explain(warning)] == ["name of the client"]
    assert explain(warning, all_joined=True) == (), "it explains only a start"


def test_lines_of_ranks_explain_only_what_they_ended(tmp_path: Path) -> None:
    for number, (failure, event, is_explained) in enumerate(
        (
            (None, {"event": "lost", "rank": -1, "text": "n1 was lost", "nodes": ["n1"]}, False),  # lost host
            ({"rank": 1, "node": "node0", "signal": "SIGKILL", "text": GPU_ERROR}, {}, False),
            ({"rank": 1, "node": "node0", "signal": "SIGABRT", "text": GPU_ERROR}, {}, True),
            (None, {}, True),  # launcher
            (None, {"event": "launched", "rank": -1, "time": 2e9, "attempt": 2, "ranks": 2}, False),  # earlier attempt
        )
    ):
        folder = make_run(tmp_path / str(number), ranks=2, nodes=1, seconds=10)
        for rank in range(2):
            (folder / f"ranks/rank-{rank}.log").write_text(GPU_ERROR)
            (folder / f"ranks/rank-{rank}.times").write_text("0 1.000\n")
        write_events(folder, [event or {"event": "finished", "rank": -1, "time": 0}], "a")
        outcome = make_outcome("failed") | {"first_failure": failure, "problem": "the run has ended early"}
        write_json(folder / "outcome.json", outcome)
        evidence = {explanation.evidence for explanation in outcome_of(store.load(folder)).explanations}
        assert (GPU_ERROR.strip() in evidence) == is_explained
