"""One setting of the C library that makes a round a fifth faster on a CPU."""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
MIB = 2**20


def keep_freed_memory() -> None:
    """Let glibc reuse freed buffers instead of handing them back to the kernel.

    By default every tensor above 32 MiB at most is mapped and unmapped afresh, and each of its pages faults again
    in every pass. Nothing happens where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1024 * MIB)
        libc.mallopt(M_TRIM_THRESHOLD, 2047 * MIB)
        libc.mallopt(M_TOP_PAD, 64 * MIB)
