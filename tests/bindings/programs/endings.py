"""End one or all ranks abnormally while the others are in a collective: endings.py ENDING [SECONDS]."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from start import RANK, init, print_line

ending = sys.argv[1]
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 300
init(seconds)
data = torch.ones(1000)
for _ in range(3):
    dist.all_reduce(data)
group = dist.new_group([0, 1])

if ending == "in-other-collective":
    if RANK == 1:
        dist.broadcast(data, 0)
        time.sleep(seconds * 3)
elif ending == "late-twice":
    # The other ranks wait twice; the second Work may have the address of the first.
    time.sleep(seconds / 2 if RANK == 1 else 0)
    dist.all_reduce(data)
    time.sleep(seconds * 3 if RANK == 1 else 0)
elif RANK == 1:
    if ending == "raise":
        raise RuntimeError("this rank gives up")
    if ending == "exit0":
        sys.exit(0)
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "late":
        time.sleep(seconds * 3)
if ending == "forget":
    print_line("forgets")
    sys.exit(0)
if ending == "pending":
    dist.all_reduce(torch.ones(3_000_000), async_op=True)
    print_line("leaves work pending")
    sys.exit(0)
if ending == "destroy-then-raise":
    dist.destroy_process_group()
    raise RuntimeError("after destroy")
if ending == "abort-at-exit":
    # Like a library that was first used after the group was created and whose threads still run.
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)
    dist.destroy_process_group()
    sys.exit(0)
if ending == "busy-gloo":
    # A thread of gloo works longer than the caller waits for its operation, and then needs the interpreter.
    gloo_group = dist.new_group(backend="gloo")
    time.sleep(1 if RANK == 1 else 0)
    future = dist.all_reduce(data, group=gloo_group, async_op=True).get_future()
    if RANK == 0:
        future.then(lambda _: hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000))
    future.wait()
    print_line("ends")
    dist.destroy_process_group()
    sys.exit(0)

try:
    dist.all_reduce(data)
    print_line("got through")
except Exception as error:
    print_line(type(error).__name__, error)
    raise
dist.destroy_process_group()
