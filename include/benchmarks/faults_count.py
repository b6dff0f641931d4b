"""The law of a campaign, counted from the bytes of its files by means of its own.

Nothing of Shardline is imported: the files are what anybody would download, read as JSON Lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Count:
    """What is wrong, one line each; and each answer by its custom_id."""

    rows: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    """Dead letters. Without poison in the corpus each of them is a lost document too."""
    other: list[str] = field(default_factory=list)
    """Lines out of order or of nobody."""
    answers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """custom_id → text and prompt tokens."""
    sizes: dict[str, int] = field(default_factory=dict)
    """custom_id → bytes of its line in the results."""


def count_law(
    texts: Iterable[str], shards: Mapping[str, bytes], results: Mapping[str, bytes | None]
) -> Count:
    """Every text in exactly one request, every request in exactly one line, in the shard's order."""
    count = Count()
    asked: Counter[str] = Counter()
    for shard, content in shards.items():
        requests = [json.loads(line) for line in content.splitlines()]
        asked.update(request["body"]["messages"][-1]["content"] for request in requests)
        _count_shard(count, shard, [request["custom_id"] for request in requests], results[shard])
    wanted = Counter(texts)
    count.rows = wanted.total()
    count.lost += [f"no request: {text[:40]}" for text in (wanted - asked).elements()]
    count.doubled += [f"asked again: {text[:40]}" for text in (asked - wanted).elements()]
    return count


def _count_shard(count: Count, shard: str, wanted: list[str], results: bytes | None) -> None:
    if results is None:
        count.lost += [f"{shard}: {name}: the shard has no results" for name in wanted]
        return
    lines = results.splitlines()
    found = [json.loads(line) for line in lines]
    names = [line["custom_id"] for line in found]
    count.lost += [f"{shard}: {name}" for name in (Counter(wanted) - Counter(names)).elements()]
    for name in (Counter(names) - Counter(wanted)).elements():
        (count.doubled if name in wanted else count.other).append(f"{shard}: {name}")
    if names != wanted and sorted(names) == sorted(wanted):
        count.other.append(f"{shard}: lines out of order")
    for line, parsed in zip(lines, found, strict=True):
        _count_line(count, shard, parsed)
        count.sizes[parsed["custom_id"]] = len(line) + 1


def _count_line(count: Count, shard: str, line: dict[str, object]) -> None:
    name, response, error = str(line["custom_id"]), line.get("response"), line.get("error")
    if isinstance(error, dict) and not response:
        count.dead.append(f"{shard}: {name}: {error['code']}: {error['message']}")
    elif isinstance(response, dict) and not error:
        body = response["body"]
        text = body["choices"][0]["message"]["content"]
        count.answers[name] = (text, body["usage"]["prompt_tokens"])
    else:
        count.lost.append(f"{shard}: {name}: neither a response nor an error, or both")


def compare_answers(
    found: Mapping[str, tuple[str, int]], calm: Mapping[str, tuple[str, int]]
) -> tuple[list[str], list[str]]:
    """Custom ids whose prompts differ in length (another row's answer), and whose texts differ."""
    shared = sorted(found.keys() & calm.keys())
    mixed = [name for name in shared if found[name][1] != calm[name][1]]
    return mixed, [name for name in shared if found[name][0] != calm[name][0]]


def count_ends(segments: Iterable[bytes]) -> Counter[str]:
    """How often each custom_id ended, over all segments of a shard."""
    return Counter(
        json.loads(line)["custom_id"] for content in segments for line in content.splitlines()
    )


def uncommitted(
    record: Mapping[str, object] | None, ids: list[str], ended: Mapping[str, int]
) -> list[str]:
    """Rows that an attempt's record says were fed, and that no segment holds."""
    fed: list[list[int]] = (record or {}).get("fed", [])  # type: ignore[assignment]
    rows = [row for first, last in fed for row in range(first, last + 1)]
    return [ids[row] for row in rows if not ended.get(ids[row])]
