"""What the end of an attempt means for its shard. Pure: records in, a decision out.

PROTOCOL 11 and 12. Only an attempt without progress is charged to the shard; three of those in one
generation, or one permanent outcome, and the shard is dead. Interruptions and store outages are
free under a high ceiling, with growing delays.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from shardline.isolation import ALONE_AT_MOST
from shardline.reasons import AttemptEnd, ExitCode
from shardline.rows import Attempt

MAX_CHARGED = 3
MAX_FREE = 50
# A worker that is asked to stop drains and exits 75. One that dies of the asking had no handler yet
# (its first second) or none any more (its last): that says nothing about the shard either. Negative
# as a parent sees it, above 128 as a shell or a container does.
_ASKED_TO_STOP = frozenset(
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
    """How one attempt ended. Without an exit code nobody saw its end: it vanished."""

    exit_code: int | None
    made_progress: bool
    message: str = ""

    @property
    def is_free(self) -> bool:
        """Interruptions and outages say nothing about the shard."""
        free = (None, ExitCode.DRAINED, ExitCode.STORE_UNREACHABLE)
        return self.exit_code in free or self.exit_code in _ASKED_TO_STOP

    @property
    def is_charged(self) -> bool:
        return not (self.made_progress or self.is_free or self.exit_code == ExitCode.DONE)


def decide(outcomes: Sequence[Outcome], jitter: float = 0.0) -> Decision:
    """What the last of a shard's attempts in one generation means.

    Args:
        outcomes: every attempt of the generation, oldest first; the last has just ended.
        jitter: 0 to 1, stretches the delay by up to half, so that a fleet does not come back at once.
    """
    last = outcomes[-1]
    if last.exit_code == ExitCode.DONE:
        return Decision(Verdict.DONE, "results are committed")
    if last.exit_code == ExitCode.CANCELLED:
        return Decision(Verdict.CANCELLED, "the job was cancelled")
    if last.exit_code == ExitCode.WRONG_INPUT:
        return Decision(Verdict.DEAD, f"permanent: {_say(last)}", is_charged=True)
    charged = sum(outcome.is_charged for outcome in outcomes)
    if charged >= MAX_CHARGED:
        why = f"{charged} attempts without progress, the last: {_say(last)}"
        return Decision(Verdict.DEAD, why, is_charged=last.is_charged)
    if len(outcomes) - charged > MAX_FREE:
        why = f"interrupted {len(outcomes) - charged} times, the last: {_say(last)}"
        return Decision(Verdict.DEAD, why)
    in_a_row = _since_progress(outcomes)
    delay = min(_DELAY_S * 2 ** (in_a_row - 1), _LONGEST_DELAY_S) if in_a_row else 0.0
    why = f"{'charged' if last.is_charged else 'free'}, {charged} of {MAX_CHARGED}: {_say(last)}"
    return Decision(Verdict.RETRY, why, last.is_charged, delay * (1 + jitter / 2))


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
        outcomes.append(Outcome(attempt.exit_code, progress, attempt.message))
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
    if code is None:
        how = "it vanished"
    elif code < 0:
        how = f"killed by signal {-code}"
    elif code in _ASKED_TO_STOP:
        how = f"killed by signal {code - 128}"
    else:
        how = _WORDS.get(code, f"crashed with exit code {code}")
    return f"{how} ({outcome.message})" if outcome.message else how


_WORDS: dict[int, str] = {
    ExitCode.WRONG_INPUT: AttemptEnd.WRONG_INPUT.sentence,
    ExitCode.STORE_UNREACHABLE: AttemptEnd.STORE_UNREACHABLE.sentence,
    ExitCode.ENGINE_FAILED: AttemptEnd.ENGINE_FAILED.sentence,
    ExitCode.DRAINED: AttemptEnd.DRAINED.sentence,
    ExitCode.CANCELLED: AttemptEnd.CANCELLED.sentence,
}
