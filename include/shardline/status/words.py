"""Numbers as people read them: one spelling for the log line, the command line and the report."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def duration_text(seconds: float) -> str:
    """Two units at most: `8.4 s`, `6 min 20 s`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    s = round(seconds)
    if s < _MINUTE:
        return f"{s} s"
    if s < _HOUR:
        return f"{s // _MINUTE} min {s % _MINUTE:02d} s"
    if s < _DAY:
        return f"{s // _HOUR} h {s % _HOUR // _MINUTE:02d} min"
    return f"{s // _DAY} d {s % _DAY // _HOUR} h"


def rate_text(per_second: float) -> str:
    """Three figures where they mean something: `0.31`, `9.8`, `1,240`."""
    if per_second >= 100:
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 1 else f"{per_second:.2f}"


def bytes_text(size: float) -> str:
    """Decimal units: `912 B`, `1.4 MB`."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return (
        f"{size:,.0f} {_UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {_UNITS[unit]}"
    )


def count_text(n: int, noun: str) -> str:
    """`1 shard`, `1,240 shards`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def share_text(part: float, whole: float) -> str:
    """A percentage that never rounds something to nothing, nor almost all to all."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1 %"
    if 99.9 < share < 100:
        return ">99.9 %"
    return f"{share:.0f} %" if share in (0, 100) or share >= 99.95 else f"{share:.1f} %"
