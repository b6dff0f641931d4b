"""Dead letters and rejected rows by reason, each with a few examples and never with a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from shardline.reasons import DeadLetterReason, RejectedReason, can_replay
from shardline.report.figures import (
    DeadExample,
    DeadFigures,
    RejectedExample,
    RejectedFigures,
    sentence_of,
)
from shardline.results.dead_letters import DeadLetter
from shardline.rows import RejectedRow

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

_EXAMPLES = 3
_MAX_FILES = 50
_SHOWN_CHARACTERS = 300


def read_dead(store: Store, plan: Plan, counts: Mapping[str, int]) -> list[DeadFigures]:
    """The counted reasons with examples from the copies for people, the most frequent first."""
    wanted = {reason: min(n, _EXAMPLES) for reason, n in counts.items()}
    examples: dict[str, list[DeadExample]] = {reason: [] for reason in counts}
    for letter in _dead_letters(store, plan):
        found = examples.setdefault(letter.reason, [])
        if len(found) < _EXAMPLES and letter.duplicate_of is None:
            found.append(_example(letter))
        if all(len(examples[reason]) >= n for reason, n in wanted.items()):
            break
    return [
        DeadFigures(
            reason=reason,
            sentence=sentence_of(DeadLetterReason, reason),
            can_replay=can_replay(reason),
            count=n,
            examples=examples[reason],
        )
        for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def read_rejected(store: Store, plan: Plan, counts: Mapping[str, int]) -> list[RejectedFigures]:
    """The counted reasons with examples from the files of rejected rows, the most frequent first."""
    examples: dict[str, list[RejectedExample]] = {reason: [] for reason in counts}
    for row in _rejected_rows(store, plan) if counts else ():
        found = examples.setdefault(row.reason, [])
        if len(found) < _EXAMPLES:
            found.append(RejectedExample(row.source, row.row, row.detail[:_SHOWN_CHARACTERS]))
        if all(len(examples[reason]) >= min(n, _EXAMPLES) for reason, n in counts.items()):
            break
    return [
        RejectedFigures(reason, sentence_of(RejectedReason, reason), n, examples[reason])
        for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def _example(letter: DeadLetter) -> DeadExample:
    message = letter.message[:_SHOWN_CHARACTERS]
    return DeadExample(letter.document_id, letter.source, letter.row, letter.custom_id, message)


def _dead_letters(store: Store, plan: Plan) -> Iterator[DeadLetter]:
    listed = [o.path for o in store.list(plan.layout.dead_letters_prefix)]
    decoder = msgspec.json.Decoder(DeadLetter)
    for path in listed[:_MAX_FILES]:
        for line in store.read(path).splitlines():
            yield decoder.decode(line)


def _rejected_rows(store: Store, plan: Plan) -> Iterator[RejectedRow]:
    planned = [plan.whole.rejected(split) for split in range(len(plan.splits))]
    decoder = msgspec.json.Decoder(RejectedRow)
    for path in [*planned[:_MAX_FILES], plan.whole.rejected_ids]:
        for line in (store.read_or_none(path) or b"").splitlines():
            yield decoder.decode(line)
