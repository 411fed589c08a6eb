"""Let rank 1 write a core dump that takes long while rank 0 waits for it in a collective."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from start import RANK, init, print_line

LENGTH = 2 << 40  # bytes
NO_CORE_FILE = 3  # exit code of rank 0


def reserve_memory_that_dumps_slowly() -> int:
    """Map two tebibytes and use one page; a dump visits every page."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    address = libc.mmap(None, LENGTH, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    ctypes.memset(address, 1, 1)
    return address


def dumps_core(pid: int) -> bool:
    try:
        return "CoreDumping:\t1" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> None:
    init(60)
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_CORE, [resource.getrlimit(resource.RLIMIT_CORE)[1]] * 2)
        reserve_memory_that_dumps_slowly()
    pids: list[int] = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    if RANK == 1:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    dumped = False
    while not work.is_completed():
        dumped = dumped or dumps_core(pids[1])
        time.sleep(0.01)
    dumping = dumps_core(pids[1])
    if dumping:
        os.kill(pids[1], signal.SIGKILL)
    try:
        work.wait()
    except dist.DistBackendError as error:
        print_line(error)
    print_line("while it dumps" if dumping else "after it has ended")
    os._exit(0 if dumped else NO_CORE_FILE)


main()
