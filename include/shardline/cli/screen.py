"""What a long command shows while it works: bars on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from shardline.status.words import rate_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from shardline.status.fold import JobStatus

T = TypeVar("T")
_LINE_EVERY_S = 15.0


class Screen:
    """Steps of a command, one after the other. Nothing here decides anything."""

    def __init__(self, *, is_silent: bool = False) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True, quiet=is_silent)
        self.is_terminal = self.console.is_terminal and not is_silent
        self._said_at = 0.0

    def silent(self) -> Screen:
        """The same without a word, for commands whose output a program reads."""
        return Screen(is_silent=True)

    def out(self, text: str) -> None:
        """Text for a program: no style, no wrapping."""
        print_lines([text])

    def say(self, text: str, style: str | None = None) -> None:
        """One line; on a terminal it may have a style."""
        self.console.print(text, style=style if self.is_terminal else None, markup=False)

    def each(self, things: Sequence[T], verb: str, noun: str) -> Iterator[T]:
        """Go through things behind a bar, or say once what is done."""
        if not self.is_terminal:
            self.say(f"{verb} {len(things):,} {noun if len(things) == 1 else noun + 's'}")
            yield from things
            return
        with self._bars() as bars:
            task = bars.add_task(f"{verb} {noun}s", total=len(things), note="")
            for thing in things:
                yield thing
                bars.advance(task)

    @contextmanager
    def rows(self, status: JobStatus) -> Iterator[RowBar]:
        """A bar over all rows of the job, for as long as shards run."""
        if not self.is_terminal:
            yield RowBar(self, None, None)
            return
        with self._bars() as bars:
            task = bars.add_task("running rows", total=status.rows_total, note="")
            yield RowBar(self, bars, task)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A step without a length: a spinner, or one line."""
        if not self.is_terminal:
            self.say(text)
            yield
            return
        started = time.monotonic()
        with self.console.status(text):
            yield
        self.say(f"{text}: {time.monotonic() - started:.1f} s", style="dim")

    def is_time_for_a_line(self) -> bool:
        """Whether a log should hear of the progress again."""
        now = time.monotonic()
        if now - self._said_at < _LINE_EVERY_S:
            return False
        self._said_at = now
        return True

    def _bars(self) -> Progress:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )


class RowBar:
    """The bar of the rows; in a log, a status line now and then."""

    def __init__(self, screen: Screen, bars: Progress | None, task: TaskID | None) -> None:
        self._screen, self._bars, self._task = screen, bars, task
        self._said = ""

    def show(self, status: JobStatus) -> None:
        """Show the newest status."""
        if self._bars is None or self._task is None:
            if status.line() != self._said and self._screen.is_time_for_a_line():
                self._said = status.line()
                self._screen.say(self._said)
            return
        note = f"{status.shards_done:,}/{status.shards_total:,} shards"
        if status.shards_starting and status.shards_starting == len(status.running):
            note += ", engine starting"
        if status.rows_per_s:
            note += f", {rate_text(status.rows_per_s)} rows/s"
        self._bars.update(self._task, completed=status.rows_done, note=note)


def print_lines(lines: Iterable[str]) -> None:
    """Lines for a pipe: no style, no wrapping."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
