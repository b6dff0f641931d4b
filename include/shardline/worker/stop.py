"""What signals and cancel markers ask of a worker: flags, which whoever feeds looks at."""

from __future__ import annotations

import asyncio
import signal


class Stop:
    """`draining`: no new rows, those that run may finish. `at_once`: not even that."""

    def __init__(self) -> None:
        self.draining, self.at_once = asyncio.Event(), asyncio.Event()
        self.is_cancelled = False

    def listen(self) -> None:
        """Let SIGTERM and SIGINT drain. The engine's processes have a group of their own."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal)

    def on_signal(self) -> None:
        """The first stops feeding, the second commits at once."""
        if self.draining.is_set():
            self.at_once.set()
        self.draining.set()

    def cancel(self) -> None:
        """The job was cancelled: nobody wants what is running."""
        self.is_cancelled = True
        self.draining.set()
        self.at_once.set()
