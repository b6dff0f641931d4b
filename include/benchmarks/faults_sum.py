"""What the rounds of a campaign add up to."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults_count import Count
from benchmarks.faults_deck import Fault, Kind
from benchmarks.faults_run import Campaign


@dataclass
class Found:
    """What the rounds of a campaign add up to."""

    counts: list[Count] = field(default_factory=list)
    campaigns: list[Campaign] = field(default_factory=list)
    shots: list[Fault] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    doubled_ends: int = 0


def sum_up(found: Found, given: argparse.Namespace, wall_s: float) -> dict[str, Any]:
    """The last line of a campaign."""
    tallies = [campaign.tally for campaign in found.campaigns]
    sizes = {name: size for count in found.counts for name, size in count.sizes.items()}
    redone = [each for tally in tallies for each in tally.redone]
    kills = [each for each in redone if each.seconds is not None]
    shots = Counter(fault.kind.value for fault in found.shots)
    moments = Counter(fault.moment.value for fault in found.shots)
    codes: Counter[str] = sum((Counter(t.exit_codes) for t in tallies), Counter())
    return {
        "faults": len(found.shots),
        "not_shot": given.faults - len(found.shots),
        "lost": sum(len(c.lost) + len(c.dead) + len(c.other) for c in found.counts)
        + len(found.mixed),
        "doubled": sum(len(c.doubled) for c in found.counts),
        "redone_rows": found.doubled_ends + sum(len(each.rows) for each in redone),
        "rows": sum(c.rows for c in found.counts),
        "dead_letters": sum(len(c.dead) for c in found.counts),
        "seed": given.seed,
        "engine": given.engine,
        "by_kind": {kind.value: shots[kind.value] for kind in Kind},
        "by_moment": dict(moments),
        "attempts": sum(t.attempts for t in tallies),
        "exit_codes": dict(sorted(codes.items())),
        "charged_attempts": sum(t.charged for t in tallies),
        "charged_with_progress": sum(len(t.charged_with_progress) for t in tallies),
        "dead_shards": sum(len(t.dead_shards) for t in tallies),
        "engine_restarts": sum(t.engine_restarts for t in tallies),
        "rows_fed_apart": sum(t.rows_apart for t in tallies),
        "orphans": sum(len(t.orphans) for t in tallies),
        "runner_outages": sum(t.runner_outages for t in tallies),
        "answers_compared": 0 if given.no_calm else sum(len(c.answers) for c in found.counts),
        "answers_differ": len(found.differing),
        "longest_drain_s": round(max((t.longest_drain_s for t in tallies), default=0), 1),
        "max_redone_per_kill": {
            "rows": max((len(each.rows) for each in kills), default=0),
            "bytes": max((sum(sizes.get(n, 0) for n in each.rows) for each in kills), default=0),
            "seconds": round(max((each.seconds or 0.0 for each in kills), default=0.0), 1),
        },
        "wall_s": round(wall_s),
    }
