"""Tracebacks are shortened to the user's frames; stacks of fatal signals are read."""

from __future__ import annotations

from orchestrator.runs.tracebacks import HEADER, error_key, parse_last, shorten, stack_of_signal, summary

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules"
SHAPES = f"""Traceback (most recent call last):
  File "/home/me/net/train.py", line 9, in <module>
    main()
  File "/home/me/net/train.py", line 4, in step
    return model(x)
  File "{TORCH}/module.py", line 1778, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{TORCH}/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
           ~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x2 and 3x2)"""
WORKER = f"""Traceback (most recent call last):
  File "/home/me/net/train.py", line 20, in <module>
    for batch in loader:
  File "{TORCH}/dataloader.py", line 701, in __next__
    data = self._next_data()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{TORCH}/worker.py", line 308, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/net/data.py", line 5, in __getitem__
    raise ValueError("sample 7 is empty")
ValueError: sample 7 is empty
"""
# The end of the log of a rank whose script called ctypes.string_at(0).
SEGMENTATION_FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f6e2b1fd6c0 (most recent call first):
  File "/opt/orch/train/lib/orch_node/rank/heartbeat.py", line 72 in send_heartbeats
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f6e4d528b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/net/segv.py", line 3 in main
  File "/home/me/net/segv.py", line 4 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/opt/orch/train/lib/orch_node/rank/main.py", line 163 in run_script

Extension modules: numpy._core._multiarray_umath (total: 1)"""


def shortened(text: str, folder: str = "/home/me/net") -> list[str]:
    traceback = parse_last(text) or stack_of_signal(text)
    return list(shorten(traceback, folder))


def test_frames_of_libraries_and_of_the_parent_of_a_worker_are_folded_and_paths_are_relative() -> None:
    assert shortened(SHAPES) == [
        'File "train.py", line 9, in <module>',
        "  main()",
        'File "train.py", line 4, in step',
        "  return model(x)",
        "... 2 frames of torch",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x2 and 3x2)",
    ]
    assert shortened(WORKER) == [
        'File "data.py", line 5, in __getitem__',
        '  raise ValueError("sample 7 is empty")',
        "ValueError: sample 7 is empty",
    ]


def test_stack_of_a_fatal_signal_ends_at_the_line_of_the_script() -> None:
    assert shortened(SEGMENTATION_FAULT) == [
        'File "segv.py", line 4, in <module>',
        'File "segv.py", line 3, in main',
        "... 1 frame",
    ]


def test_long_tracebacks_and_messages_fit_on_a_screen() -> None:
    frame = '  File "/home/me/net/train.py", line 3, in visit\n    visit(node)\n'
    text = f"Traceback (most recent call last):\n{frame * 500}RecursionError: too deep\n" + "detail\n" * 50 + "x" * 9000
    lines = shortened(text)
    assert len(lines) <= 25
    assert lines[0] == "... 494 frames"
    assert max(map(len, lines)) < 500


def test_errors_of_ranks_are_the_same_if_only_numbers_differ() -> None:
    assert error_key(SHAPES) == error_key(SHAPES.replace("8x2", "4x2"))
    assert error_key(SHAPES) != error_key(SHAPES.replace("line 4", "line 5"))
    assert error_key("sys.exit('no data')") != error_key("sys.exit('no model')")


def test_summary_has_the_line_and_the_exception() -> None:
    assert summary(SHAPES) == "/home/me/net/train.py, line 4: " + SHAPES.splitlines()[-1]
    assert summary("error: the node has another torch") == ""
    in_group = f"  + Exception Group {HEADER}\n  | ExceptionGroup: g (1 sub-exception)\n  +-+------ 1 ------\n"
    in_group += f'    | {HEADER}\n    |   File "/me/train.py", line 4, in f\n    | ValueError: a\n    +------'
    assert summary(in_group) == "/me/train.py, line 4: ValueError: a"
