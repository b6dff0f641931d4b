"""What the end of an attempt means for its shard. Pure: records in, a decision out.

PROTOCOL 11 and 12. Only an attempt without progress is charged to the shard; three of those in one
generation, or one permanent outcome, and the shard is dead. Interruptions, store outages and errors
of the control plane are free, with growing delays, under a high ceiling of such attempts in a row
that brought nothing: a shard that gets on is never given up for being interrupted often. A store that
refuses keys heals by a person only: its ceiling is low, so that the job stops and says so.

Where a pod was watched, its outcome decides (reasons.PodOutcome); else the exit code does.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from shardline.isolation import ALONE_AT_MOST
from shardline.reasons import AttemptEnd, Charge, ExitCode, PodOutcome
from shardline.rows import Attempt

MAX_CHARGED = 3
MAX_FREE = 50
MAX_BRIEF = 6
"""With the delays between them ten minutes: as long as a worker waits for a store that is away, and
longer than the keys of a new pod take to be known everywhere."""
# A worker that is asked to stop drains and exits 75. One that dies of the asking had no handler yet
# (its first second) or none any more (its last): that says nothing about the shard either. Negative
# as a parent sees it, above 128 as a shell or a container does.
ASKED_TO_STOP = frozenset(
    code
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for code in (-number, 128 + number)
)
_DELAY_S = 10.0
_LONGEST_DELAY_S = 600.0


class Verdict(Enum):
    """What happens to the shard now."""

    DONE = "done"
    RETRY = "retry"
    DEAD = "dead"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Decision:
    """The verdict on a shard after an attempt; `reason` is one line for people."""

    verdict: Verdict
    reason: str
    is_charged: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended. Without a pod's outcome or an exit code nobody saw it: it vanished."""

    exit_code: int | None
    made_progress: bool
    message: str = ""
    pod: PodOutcome | None = None

    @property
    def charge(self) -> Charge:
        """What it costs the shard if it brought nothing."""
        if self.pod is not None:
            return self.pod.charge
        if self.exit_code in ASKED_TO_STOP:
            return Charge.FREE
        return _CHARGES.get(self.exit_code, Charge.CHARGED)

    @property
    def is_free(self) -> bool:
        """Interruptions and outages say nothing about the shard."""
        return self.charge is Charge.FREE

    @property
    def is_charged(self) -> bool:
        return self.charge is Charge.CHARGED and not self.made_progress

    @property
    def is_done(self) -> bool:
        if self.pod is not None:  # a worker may end well without results
            return self.pod is PodOutcome.DONE
        return self.exit_code == ExitCode.DONE

    @property
    def is_cancelled(self) -> bool:
        if self.pod is not None:
            return self.pod is PodOutcome.CANCELLED
        return self.exit_code == ExitCode.CANCELLED


_CHARGES: dict[int | None, Charge] = {
    None: Charge.FREE,
    ExitCode.DONE: Charge.NOTHING,
    ExitCode.CANCELLED: Charge.NOTHING,
    ExitCode.DRAINED: Charge.FREE,
    ExitCode.STORE_UNREACHABLE: Charge.FREE,
    ExitCode.STORE_REFUSED: Charge.BRIEF,
    ExitCode.WRONG_INPUT: Charge.PERMANENT,
}


def decide(outcomes: Sequence[Outcome], jitter: float = 0.0) -> Decision:
    """What the last of a shard's attempts in one generation means.

    Args:
        outcomes: every attempt of the generation, oldest first; the last has just ended.
        jitter: 0 to 1, stretches the delay by up to half, or is all of it, so that a fleet does not
            come back at once.
    """
    last = outcomes[-1]
    if last.is_done:
        return Decision(Verdict.DONE, "results are committed")
    if last.is_cancelled:
        return Decision(Verdict.CANCELLED, "the job was cancelled")
    if last.charge is Charge.PERMANENT:
        return Decision(Verdict.DEAD, f"permanent: {_say(last)}", is_charged=True)
    charged = sum(outcome.is_charged for outcome in outcomes)
    if charged >= MAX_CHARGED:
        why = f"{charged} attempts without progress, the last: {_say(last)}"
        return Decision(Verdict.DEAD, why, is_charged=last.is_charged)
    in_a_row = _since_progress(outcomes)
    barren = outcomes[len(outcomes) - in_a_row :]
    brief = sum(outcome.charge is Charge.BRIEF for outcome in barren)
    if brief > MAX_BRIEF:
        return Decision(Verdict.DEAD, f"{brief} times without progress, the last: {_say(last)}")
    free = sum(outcome.is_free for outcome in barren)
    if free > MAX_FREE:
        why = f"interrupted {free} times without progress, the last: {_say(last)}"
        return Decision(Verdict.DEAD, why)
    if in_a_row:
        delay = min(_DELAY_S * 2 ** (in_a_row - 1), _LONGEST_DELAY_S) * (1 + jitter / 2)
    else:  # a fleet that lost its machines, or its keys, at once does not come back at once
        delay = 0.0 if last.charge is Charge.CHARGED else _DELAY_S * jitter
    why = f"{'charged' if last.is_charged else 'free'}, {charged} of {MAX_CHARGED}: {_say(last)}"
    return Decision(Verdict.RETRY, why, last.is_charged, delay)


def read_outcomes(attempts: Iterable[Attempt], with_segments: Collection[str]) -> list[Outcome]:
    """Fold a shard's records of one generation, oldest first.

    Progress is a new row, a smaller group of suspects in flight, a suspect that was alone in flight
    for as long as that is still evidence, or a new conviction.

    Args:
        attempts: records, sorted by attempt id (they begin with the time).
        with_segments: ids of the attempts that committed rows.
    """
    outcomes: list[Outcome] = []
    smallest: int | None = None
    alone: Counter[int] = Counter()
    for attempt in attempts:
        suspects = attempt.suspects[-1] if attempt.suspects and not attempt.end else []
        group = len(suspects) or None
        is_smaller = group is not None and (smallest is None or group < smallest)
        alone.update(suspects if group == 1 else ())
        is_evidence = group == 1 and alone[suspects[0]] <= ALONE_AT_MOST
        progress = (
            attempt.attempt in with_segments
            or bool(attempt.convictions)
            or is_smaller
            or is_evidence
        )
        outcomes.append(Outcome(attempt.exit_code, progress, attempt.message, attempt.pod_outcome))
        # a conviction starts a new hunt
        smallest = None if attempt.convictions else group if group is not None else smallest
    return outcomes


def _since_progress(outcomes: Sequence[Outcome]) -> int:
    """Attempts at the end of the list that brought nothing."""
    n = 0
    for outcome in reversed(outcomes):
        if outcome.made_progress:
            break
        n += 1
    return n


def _say(outcome: Outcome) -> str:
    code = outcome.exit_code
    if outcome.pod not in (None, PodOutcome.UNKNOWN):
        how = f"{outcome.pod}: {outcome.pod.sentence}"
    elif code is None:
        how = "it vanished"
    elif code < 0:
        how = f"killed by signal {-code}"
    elif code in ASKED_TO_STOP:
        how = f"killed by signal {code - 128}"
    else:
        how = _WORDS.get(code, f"crashed with exit code {code}")
    return f"{how} ({outcome.message})" if outcome.message else how


_WORDS: dict[int, str] = {
    ExitCode.WRONG_INPUT: AttemptEnd.WRONG_INPUT.sentence,
    ExitCode.STORE_UNREACHABLE: AttemptEnd.STORE_UNREACHABLE.sentence,
    ExitCode.STORE_REFUSED: AttemptEnd.STORE_REFUSED.sentence,
    ExitCode.ENGINE_FAILED: AttemptEnd.ENGINE_FAILED.sentence,
    ExitCode.DRAINED: AttemptEnd.DRAINED.sentence,
    ExitCode.CANCELLED: AttemptEnd.CANCELLED.sentence,
}
