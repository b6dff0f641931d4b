"""Waits for the moment of a fault, then shoots. One marksman for each attempt, in a thread."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil

from benchmarks.faults_deck import Deck, Fault, Kind, Moment
from benchmarks.faults_proxy import StoreProxy
from benchmarks.faults_watch import Watched

OUTAGE_S = 5.0
MIDDLE_S = 7.0
"""The first fault in the middle falls so many seconds after the engine is up, at most."""
LATER_S = 22.0
"""One that follows another in the same attempt; the restart of an engine lies in it."""
DRAIN_S = 1.5
TWICE_S = 1.0
_ENGINE_SIGNALS = {
    Kind.ENGINE_EXIT: signal.SIGUSR1,  # the plug-in's handler calls os._exit
    Kind.ENGINE_OOM: signal.SIGKILL,
    Kind.ENGINE_SEGV: signal.SIGSEGV,
    Kind.ENGINE_HANG: signal.SIGSTOP,
}
_ENDS_ATTEMPT = (Kind.SIGTERM, Kind.SIGTERM_TWICE, Kind.SIGKILL)


class Range:
    """What the marksmen share: the deck, the proxy before the store, and who wants to know."""

    def __init__(self, deck: Deck, proxy: StoreProxy, on_shot: Callable[[Fault, Watched], None]):
        self.deck, self.proxy, self.on_shot = deck, proxy, on_shot
        self.starts_s: list[float] = []
        self._at_put: dict[str, Callable[[bool], bool]] = {}
        self._outage = threading.Lock()
        proxy.on_put = self._on_put

    @property
    def start_s(self) -> float:
        """How long an engine takes to come up here now, as far as is known."""
        lately = sorted(self.starts_s[-5:])
        return lately[len(lately) // 2] if lately else 15.0

    def at_put(self, shard: str, shoot: Callable[[bool], bool] | None) -> None:
        """Have `shoot` called when the shard's results are put, and when that is answered."""
        if shoot:
            self._at_put[shard] = shoot
        else:
            self._at_put.pop(shard, None)

    def _on_put(self, path: str, is_answered: bool) -> bool:
        folder, _, name = path.partition("?")[0].rpartition("/")
        shoot = self._at_put.get(name.removesuffix(".jsonl"))
        return bool(shoot and folder.endswith("/results") and shoot(is_answered))

    def take_store_down(self, kind: Kind) -> None:
        """In the background; outages queue up."""

        def go() -> None:
            with self._outage:
                (self.proxy.hang if kind is Kind.STORE_HANGS else self.proxy.refuse)(OUTAGE_S)

        threading.Thread(target=go, daemon=True).start()


class Marksman:
    """Shoots at one attempt until it is over or the deck is empty."""

    def __init__(self, ground: Range, target: Watched) -> None:
        self._ground, self._target = ground, target
        self._shots = 0

    def run(self) -> None:
        moments, but = set(Moment), list[Kind]()
        while not self._target.over.is_set() and (fault := self._ground.deck.take(moments, but)):
            if not self._try(fault):
                self._ground.deck.put_back(fault)
                if fault.moment is Moment.START:
                    moments.discard(Moment.START)
                self._target.over.wait(0.5)
                continue
            self._shots += 1
            if fault.kind.hits_engine:  # the next one is starting: its hang would take minutes
                but = [Kind.ENGINE_HANG]
            moments.discard(Moment.START)
            if fault.kind in _ENDS_ATTEMPT or fault.moment is Moment.DRAIN:
                return

    def _try(self, fault: Fault) -> bool:
        """Wait for its moment and shoot; False when the moment did not come."""
        if fault.moment is Moment.PUT:
            return self._at_put(fault)
        if fault.moment is Moment.START:
            if self._target.up.wait(fault.share * 0.9 * self._ground.start_s):
                return False
            return self._shoot(fault)
        self._target.up.wait()
        wait_s = MIDDLE_S if not self._shots else LATER_S
        share = fault.lead if fault.moment is Moment.DRAIN else fault.share
        if self._target.over.wait(0.3 + share * wait_s):
            return False
        if fault.moment is Moment.DRAIN:
            self._target.signal(signal.SIGTERM)
            if self._target.over.wait(fault.share * DRAIN_S):
                return False
        return self._shoot(fault)

    def _at_put(self, fault: Fault) -> bool:
        """In the proxy's thread: before the put goes through, or before its reply does."""
        shot = threading.Event()

        def shoot(is_answered: bool) -> bool:
            if shot.is_set() or is_answered is not fault.is_late:
                return False
            if self._shoot(fault):
                shot.set()
            return fault.kind is Kind.SIGKILL  # what it had not sent, or not read, is gone with it

        self._ground.at_put(self._target.shard, shoot)
        self._target.over.wait()
        self._ground.at_put(self._target.shard, None)
        return shot.is_set()

    def _shoot(self, fault: Fault) -> bool:
        self._target.look()
        if fault.kind.hits_store:
            self._ground.take_store_down(fault.kind)
            self._ground.on_shot(fault, self._target)
            return True
        hit = self._hit_engine(fault) if fault.kind.hits_engine else self._hit_worker(fault)
        if hit:
            self._ground.on_shot(fault, self._target)
        if hit and fault.kind is Kind.SIGTERM_TWICE:
            time.sleep(fault.lead * TWICE_S)
            self._target.signal(signal.SIGTERM)
        return hit

    def _hit_worker(self, fault: Fault) -> bool:
        number = signal.SIGKILL if fault.kind is Kind.SIGKILL else signal.SIGTERM
        return self._target.signal(number)

    def _hit_engine(self, fault: Fault) -> bool:
        """Before the first engine, and between two, there is none: wait for it."""
        patience_s = 600.0 if fault.moment is Moment.START else 5.0
        deadline = time.monotonic() + patience_s
        while not (engine := self._target.engine()) or _is_stopped(engine):
            if self._target.over.wait(0.1) or time.monotonic() > deadline:
                return False
        try:
            os.kill(engine.pid, _ENGINE_SIGNALS[fault.kind])
        except ProcessLookupError:
            return False
        return True


def _is_stopped(process: psutil.Process) -> bool:
    """An engine that hangs already takes no other signal."""
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return True
