"""Ranks that end in every way but the polite one, while the others are in a collective."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from start import RANK, init, say

how = sys.argv[1]
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 300
init(seconds)
size = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
data = torch.ones(size)
for _ in range(3):
    dist.all_reduce(data)
group = dist.new_group([0, 1])

if how == "in-other-collective":
    if RANK == 1:
        dist.broadcast(data, 0)
        time.sleep(seconds * 3)
elif how == "late-twice":
    # The others wait long twice; the second Work may have the address of the first.
    time.sleep(seconds / 2 if RANK == 1 else 0)
    dist.all_reduce(data)
    time.sleep(seconds * 3 if RANK == 1 else 0)
elif RANK == 1:
    if how == "raise":
        raise RuntimeError("this rank gives up")
    if how == "exit3":
        sys.exit(3)
    if how == "exit0":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(seconds * 3)
if how == "all-raise":
    raise RuntimeError("every rank gives up")
if how == "forget":
    say("forgets")
    sys.exit(0)
if how == "pending":
    dist.all_reduce(torch.ones(3_000_000), async_op=True)
    say("leaves work pending")
    sys.exit(0)
if how == "destroy-then-raise":
    dist.destroy_process_group()
    raise RuntimeError("after destroy")
if how == "abort-at-exit":
    # As a library does that was first used after the group was made, and whose threads still run.
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    dist.destroy_process_group()
    sys.exit(0)
if how == "busy-gloo":
    # A thread of gloo's is at work a while longer than what waits for its operation, and then wants
    # the interpreter.
    beside = dist.new_group(backend="gloo")
    time.sleep(1 if RANK == 1 else 0)
    future = dist.all_reduce(data, group=beside, async_op=True).get_future()
    if RANK == 0:
        future.then(lambda _: hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000))
    future.wait()
    say("ends")
    dist.destroy_process_group()
    sys.exit(0)
if how == "slow-end":
    dist.destroy_process_group()
    time.sleep(3 if RANK == 0 else 0)
    say("ends")
    sys.exit(0)

try:
    dist.all_reduce(data)
    say("got through")
except Exception as error:
    say(type(error).__name__, error)
    raise
dist.destroy_process_group()
