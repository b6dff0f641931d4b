"""What signals and cancel markers ask of a worker.

A signal handler only sets a flag; whoever feeds looks at the flags. The first SIGTERM (or SIGINT)
stops feeding and lets running rows finish within the budget; the second commits at once.
"""

from __future__ import annotations

import asyncio
import signal


class Stop:
    """Flags of one worker. `feeding` rows ends with the first, waiting for them with the second."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.at_once = asyncio.Event()
        self.is_cancelled = False

    def listen(self) -> None:
        """Let SIGTERM and SIGINT drain. The engine's processes have a group of their own."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal)

    def on_signal(self) -> None:
        if self.draining.is_set():
            self.at_once.set()
        self.draining.set()

    def cancel(self) -> None:
        """The job was cancelled: nobody wants what is running."""
        self.is_cancelled = True
        self.draining.set()
        self.at_once.set()
