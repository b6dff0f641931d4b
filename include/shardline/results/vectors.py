"""Vectors: float32 numbers, all of one length, from base64 on their way to a fixed-size list column.

How long they are, only the model knows. Where neither the job file (`dimensions`) nor the published
table says it before the model runs, the first vector that is merged decides for the whole job.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.shards.parquet import read_batches

if TYPE_CHECKING:
    from shardline.plan import Plan
    from shardline.store import Store

_NUMBER_BYTES = 4
_LENGTH = b"shardline.dimension"


class BadVector(ValueError):
    """What is no vector of the job; the reader of the line says where it stands."""


class _Dimension(msgspec.Struct, frozen=True):
    dimension: int


def vector_type(dimension: int | None) -> Any:
    """The Arrow type of vectors; of any length while it is not known."""
    import pyarrow as pa

    element = pa.field("element", pa.float32())
    return pa.list_(element) if dimension is None else pa.list_(element, dimension)


def is_vector(kind: Any) -> bool:
    """Whether a type is a list of float32, which nothing but an embedding is published as."""
    import pyarrow as pa
    import pyarrow.types as pt

    is_list = pt.is_list(kind) or pt.is_fixed_size_list(kind)
    return bool(is_list and kind.value_type == pa.float32())


def dimension_of(kind: Any) -> int | None:
    """How many numbers the vectors of a type have; None where that is open."""
    import pyarrow.types as pt

    return int(kind.list_size) if pt.is_fixed_size_list(kind) else None


def without_lengths(schema: Any) -> Any:
    """A schema as Delta can say it: it has no lists of a fixed size, so that stands beside them."""
    import pyarrow as pa
    import pyarrow.types as pt

    fields = [
        pa.field(f.name, pa.list_(f.type.value_field), metadata={_LENGTH: str(f.type.list_size)})
        if pt.is_fixed_size_list(f.type)
        else f
        for f in schema
    ]
    return pa.schema(fields)


def with_lengths(schema: Any) -> Any:
    """The same from Delta, with the lengths that stand beside the fields."""
    import pyarrow as pa

    lengths = [(field.metadata or {}).get(_LENGTH) for field in schema]
    fields = [
        pa.field(f.name, pa.list_(f.type.value_field, int(length))) if length else f
        for f, length in zip(schema, lengths, strict=True)
    ]
    return pa.schema(fields)


def decode_vector(text: str | None, dimension: int | None) -> bytes:
    """The numbers of a vector as bytes.

    Raises:
        BadVector: no base64 of float32 numbers, or another number of them.
    """
    try:
        vector = base64.b64decode(text or "", validate=True)
    except binascii.Error as error:
        raise BadVector(f"is not base64 ({error})") from error
    found, rest = divmod(len(vector), _NUMBER_BYTES)
    if rest or not found:
        raise BadVector(f"has {len(vector)} bytes, which are no float32 numbers")
    if dimension is not None and found != dimension:
        raise BadVector(
            f"has {found} numbers, expected {dimension} as in `dimensions`, the published table or"
            " the job's first vector"
        )
    return vector


def keep_dimension(store: Store, plan: Plan, vector: bytes) -> None:
    """Let a vector decide how long those of the job are, if none has done so before."""
    decided = _Dimension(len(vector) // _NUMBER_BYTES)
    store.put_once(plan.layout.dimension, msgspec.json.encode(decided))


def read_dimension(store: Store, plan: Plan) -> int | None:
    """What a merged vector has decided; None before any has."""
    found = store.read_or_none(plan.layout.dimension)
    return None if found is None else msgspec.json.decode(found, type=_Dimension).dimension


def vector_array(vectors: list[bytes], kind: Any) -> Any:
    """Vectors as one Arrow array, without a Python object per number."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(b"".join(vectors))]
    numbers = len(vectors) * kind.list_size
    values = pa.Array.from_buffers(pa.float32(), numbers, buffers)
    return pa.FixedSizeListArray.from_arrays(values, type=kind)


def count_odd_vectors(path: Path, dimension: int | None) -> int:
    """Rows of a merged file whose vector has another length or a number that is not finite.

    A missing vector is counted as a null output, not here.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    odd = 0
    for batch in read_batches(path, ["output"]):
        vectors = batch.column("output").drop_null()
        expected = pa.scalar(-1 if dimension is None else dimension, pa.int32())
        is_whole = pc.equal(pc.list_value_length(vectors), expected)
        numbers = vectors.flatten()
        bad = pc.invert(pc.fill_null(pc.is_finite(numbers), False))
        rows = pc.list_parent_indices(vectors).filter(bad)
        has_bad = pc.is_in(pa.array(range(len(vectors)), rows.type), value_set=rows)
        odd += pc.sum(pc.or_(pc.invert(is_whole), has_bad)).as_py() or 0
    return odd
