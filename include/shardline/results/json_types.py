"""How a JSON Schema becomes a type of the published table.

An object with properties is a struct, an array with items a list,
string, integer (64 bits), number, boolean and enums or constants of them are themselves, and a union
with null is nullable as everything is. All else (free objects, mixed unions, recursion) is a string
of JSON. A value that its type cannot hold, such as a whole number over 64 bits or a key that the
schema does not name, is null or absent in the table and counted: the answer stays in `results`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shardline.shards.parquet import arrow_type

_SCALARS = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
_KINDS_OF_VALUES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_INT64 = range(-(2**63), 2**63)


def json_schema_type(schema: Any, root: Any = None, above: tuple[str, ...] = ()) -> Any:
    """The Arrow type of a JSON Schema; a string (of JSON) where there is none.

    `above` are the references that are being followed, so that recursion ends.
    """
    import pyarrow as pa

    root = schema if root is None else root
    if not isinstance(schema, dict):
        return pa.string()
    if isinstance(reference := schema.get("$ref"), str):
        target = _resolve(root, reference)
        if target is None or reference in above:
            return pa.string()
        return json_schema_type(target, root, (*above, reference))
    inner = _without_null(schema)
    if inner is None:
        return pa.string()
    if inner is not schema:
        return json_schema_type(inner, root, above)
    return _typed(schema, root, above)


def _typed(schema: dict[str, Any], root: Any, above: tuple[str, ...]) -> Any:
    import pyarrow as pa

    kind = schema.get("type") or _kind_of_values(schema) or ("properties" in schema and "object")
    if kind == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        fields = schema["properties"].items()
        return pa.struct([(name, json_schema_type(part, root, above)) for name, part in fields])
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(pa.field("element", json_schema_type(schema["items"], root, above)))
    return arrow_type(_SCALARS.get(kind, "string") if isinstance(kind, str) else "string")


def _without_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema without its null: itself where it has none, None for any other union."""
    for union in ("anyOf", "oneOf"):
        if union in schema:
            parts = [part for part in schema[union] if part != {"type": "null"}]
            return parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else None
    if "allOf" in schema or "not" in schema:
        parts = schema.get("allOf") or []
        return parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else None
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    rest = [kind for kind in kinds if kind != "null"]
    return schema | {"type": rest[0]} if len(rest) == 1 else None


def _kind_of_values(schema: dict[str, Any]) -> str | None:
    """The one kind of all values of an enum or a constant."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {_KINDS_OF_VALUES.get(type(value)) for value in values if value is not None}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


def _resolve(root: Any, reference: str) -> Any:
    """The target of a local reference such as #/$defs/Name, or None."""
    if not reference.startswith("#/"):
        return None
    target = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return None
        target = target[name]
    return target


def conform(value: Any, kind: Any) -> tuple[Any, int]:
    """A decoded JSON value as its Arrow type holds it, and how many values were lost on the way."""
    import pyarrow.types as pt

    if value is None:
        return None, 0
    if pt.is_string(kind):
        return (value if isinstance(value, str) else msgspec.json.encode(value).decode()), 0
    if pt.is_struct(kind):
        return _conform_struct(value, kind)
    if pt.is_list(kind):
        if not isinstance(value, list):
            return None, 1
        parts = [conform(part, kind.value_type) for part in value]
        return [part for part, _ in parts], sum(lost for _, lost in parts)
    return _conform_scalar(value, kind)


def _conform_struct(value: Any, kind: Any) -> tuple[Any, int]:
    if not isinstance(value, dict):
        return None, 1
    names = {field.name for field in kind}
    parts = {field.name: conform(value.get(field.name), field.type) for field in kind}
    lost = sum(lost for _, lost in parts.values()) + sum(name not in names for name in value)
    return {name: part for name, (part, _) in parts.items()}, lost


def _conform_scalar(value: Any, kind: Any) -> tuple[Any, int]:
    import pyarrow.types as pt

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if pt.is_boolean(kind) and isinstance(value, bool):
        return value, 0
    if pt.is_floating(kind) and is_number:
        return _as_double(value)
    # JSON Schema calls 3.0 an integer
    is_whole = is_number and (isinstance(value, int) or value.is_integer())
    if pt.is_int64(kind) and is_whole and int(value) in _INT64:
        return int(value), 0
    return None, 1


def _as_double(value: float) -> tuple[float | None, int]:
    try:
        return float(value), 0
    except OverflowError:
        return None, 1
