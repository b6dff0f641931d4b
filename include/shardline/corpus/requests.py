"""From a document's columns to its request: the canonical body, its fingerprint, its line.

The canonical body is JSON with sorted keys, in UTF-8, without spaces and without the model's name.
Everything but the columns is the same for all documents, so it is encoded once: rendering joins
constant pieces with escaped columns. `canonical` says what must come out; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from blake3 import blake3

from shardline.job import JobFile
from shardline.template import Column, Template

FINGERPRINT_BYTES = 16
_CHOICE = "choice"
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def canonical(value: object) -> bytes:
    """JSON with sorted keys, UTF-8, no spaces."""
    return orjson.dumps(value, option=_OPTIONS)


def fingerprint_of(body: bytes) -> bytes:
    """blake3-128 of a canonical body."""
    return blake3(body).digest(FINGERPRINT_BYTES)


def response_format(job: JobFile) -> dict[str, Any] | None:
    """The `response_format` that makes the engine answer in the job's form; None for text."""
    if job.output.choices is not None:
        return _schema(
            _CHOICE,
            {
                "type": "object",
                "properties": {_CHOICE: {"type": "string", "enum": list(job.output.choices)}},
                "required": [_CHOICE],
                "additionalProperties": False,
            },
        )
    if job.output.json_schema is not None:
        return _schema("output", job.output.json_schema)
    return None


def _schema(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": schema},
    }


def request_body(job: JobFile, texts: Mapping[str, str]) -> dict[str, Any]:
    """The body as a value: what `BodyRenderer` writes, in the slow and obvious way."""
    asked = [template.render(dict(texts)) for template in job.templates]
    if job.kind != "chat":
        return _asking(job, asked[0])
    messages = zip(job.messages, asked, strict=True)
    return _asking(job, [{"role": m.role, "content": content} for m, content in messages])


def _asking(job: JobFile, asked: object) -> dict[str, Any]:
    body = {**job.parameters, **job.form.fixed, job.form.asks: asked}
    form = response_format(job)
    return body if form is None else body | {"response_format": form}


class BodyRenderer:
    """Writes canonical bodies of one job, given its text columns in the job's order."""

    def __init__(self, job: JobFile) -> None:
        columns = {column.name: n for n, column in enumerate(job.text_columns)}
        asked = [_string(template, columns) for template in job.templates]
        before, after = _around(job)
        pieces = _messages(job, asked) if job.kind == "chat" else asked[0]
        self._pieces = _joined([before, *pieces, after])

    def render(self, texts: list[str]) -> bytes:
        """The canonical body; `texts` are the columns of `job.text_columns`, in that order."""
        escaped = [_escaped(text) for text in texts]
        return b"".join([escaped[p] if type(p) is int else p for p in self._pieces])  # type: ignore[misc]


def _string(template: Template, columns: Mapping[str, int]) -> list[bytes | int]:
    """A JSON string of a template, with the numbers of its columns."""
    pieces = [columns[p.name] if isinstance(p, Column) else _escaped(p) for p in template.pieces]
    return [b'"', *pieces, b'"']


def _messages(job: JobFile, contents: list[list[bytes | int]]) -> list[bytes | int]:
    pieces: list[bytes | int] = []
    for n, (message, content) in enumerate(zip(job.messages, contents, strict=True)):
        pieces.append(b',{"content":' if n else b'[{"content":')
        pieces += [*content, b',"role":' + canonical(message.role) + b"}"]
    return [*pieces, b"]"]


def _around(job: JobFile) -> tuple[bytes, bytes]:
    """The canonical body before and behind what is asked."""
    fields, asks = _asking(job, None), job.form.asks
    encoded = [(key, canonical(key) + b":" + canonical(fields[key])) for key in sorted(fields)]
    before = [text for key, text in encoded if key < asks] + [canonical(asks) + b":"]
    after = [text for key, text in encoded if key > asks]
    return b"{" + b",".join(before), b"".join(b"," + text for text in after) + b"}"


def _escaped(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]


def _joined(pieces: list[bytes | int]) -> tuple[bytes | int, ...]:
    """The same with neighbouring constants made one."""
    joined: list[bytes | int] = []
    for piece in pieces:
        if joined and isinstance(piece, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += piece
        else:
            joined.append(piece)
    return tuple(joined)


def custom_id(job: JobFile, fingerprint: bytes, source: str, row: int) -> str:
    """The request's name: its fingerprint, and with `dedupe: none` also its position."""
    if job.corpus.dedupe == "exact":
        return fingerprint.hex()
    return f"{fingerprint.hex()}-{blake3(source.encode()).hexdigest(4)}/{row}"


def request_line(job: JobFile, body: bytes, custom_id: str) -> bytes:
    """The line of a shard file: OpenAI batch input, the job's name in the place of the model."""
    return b"".join(
        (
            b'{"custom_id":"',
            custom_id.encode(),
            b'","method":"POST","url":"',
            job.form.url.encode(),
            b'","body":{"model":"',
            job.name.encode(),
            b'",',
            body[1:],
            b"}\n",
        )
    )
