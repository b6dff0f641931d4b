"""CPU time and memory of programs with all their children, those that have ended among them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Reading:
    """One look at the clock of every program."""

    at_s: float
    cpu_s: Mapping[str, float]
    """Program → its CPU seconds so far."""
    other_s: float
    """CPU seconds of the whole machine that no program named, nor this process, has used."""


@dataclass(frozen=True)
class Span:
    """What happened between two readings."""

    start: Reading
    end: Reading

    @property
    def wall_s(self) -> float:
        return self.end.at_s - self.start.at_s

    @property
    def other_cores(self) -> float:
        """How many cores other work on this machine took."""
        return (self.end.other_s - self.start.other_s) / self.wall_s

    def cpu_s(self, *names: str) -> float:
        return sum(self.end.cpu_s[name] - self.start.cpu_s[name] for name in names)

    def cores(self, *names: str) -> float:
        return self.cpu_s(*names) / self.wall_s


def read(pids: Mapping[str, int]) -> Reading:
    """Read every program's clock."""
    cpu_s = {name: _tree_cpu_s(pid) for name, pid in pids.items()}
    # programs that we have started are in our own tree, and are not to be counted twice
    ours = {p.pid for p in _tree(os.getpid())}
    apart = sum(used for name, used in cpu_s.items() if pids[name] not in ours)
    machine = psutil.cpu_times()
    busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    other_s = busy - apart - _tree_cpu_s(os.getpid())
    return Reading(time.monotonic(), cpu_s, other_s)


def memory_mb(pids: Mapping[str, int]) -> dict[str, int]:
    """Program → megabytes. What forked processes share is counted once (PSS)."""
    return {name: round(sum(map(_pss, _tree(pid))) / (1 << 20)) for name, pid in pids.items()}


def _tree(pid: int) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _tree_cpu_s(pid: int) -> float:
    """Children that were waited for are in their parents' clock, the others have their own."""
    total = 0.0
    for process in _tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0
