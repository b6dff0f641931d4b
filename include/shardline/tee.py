"""A program's log: to standard error for whoever looks on, and to a file that can be kept.

What the engine's processes write to standard error is kept too: after a crash their last words are
all there is. Standard error is a pipe whose other end copies to both.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_PIECE_BYTES = 65_536
_MOST_BYTES = 20_000_000


def log_to(file: Path, level: str) -> None:
    """Send the log, and all that lands on standard error, to both places."""
    console = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    os.set_inheritable(2, True)
    threading.Thread(target=_copy, args=(read_end, console, file), name="log", daemon=True).start()
    logging.basicConfig(level="WARNING", format=_FORMAT, stream=sys.stderr, force=True)
    logging.getLogger("shardline").setLevel(level.upper())


def flush_log() -> None:
    """Wait until what was written so far has been copied."""
    for thread in threading.enumerate():
        if thread.name == "log":
            sys.stderr.flush()
            os.close(2)
            thread.join(timeout=1)


def _copy(read_end: int, console: int, file: Path) -> None:
    with file.open("ab", buffering=0) as kept:
        while piece := os.read(read_end, _PIECE_BYTES):
            _write_all(console, piece)
            if kept.tell() < _MOST_BYTES:
                # the disk may be full, and who writes to the pipe must not wait for a reader
                with suppress(OSError):
                    kept.write(piece)


def _write_all(console: int, piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(console, piece) :]
    except OSError:  # whoever looked on is gone; the file still wants it
        return
