"""Physical lines out of chunks of bytes. Only a line feed ends a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number from 1, line without its line feed); None for a line over `max_bytes`.

    A line that is too long is passed over in bounded memory. What follows the last line feed is a
    line if there is anything.
    """
    number, held, size = 1, [], 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        size += len(first)
        if size <= max_bytes:
            held.append(first)
        else:
            held.clear()
        if not others:
            continue
        yield number, (b"".join(held) if size <= max_bytes else None)
        number += 1
        last = others.pop()
        for line in others:
            yield number, (line if len(line) <= max_bytes else None)
            number += 1
        held, size = [last] if len(last) <= max_bytes else [], len(last)
    if size:
        yield number, (b"".join(held) if size <= max_bytes else None)
