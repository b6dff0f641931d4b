"""Kubernetes' quantities: 500m, 32Gi, 1e3."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,2}))?"
)
_SUFFIXES = {
    **{name: Decimal(1_000) ** n for n, name in enumerate("num", -3)},
    **{name: Decimal(1_000) ** n for n, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Decimal(1_024) ** n for n, name in enumerate("KMGTPE", 1)},
}


def parse_quantity(text: str) -> Decimal:
    """A quantity that is not negative, in whole units.

    Raises:
        ValueError: it is none.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"expected a quantity of Kubernetes, as 500m or 32Gi, found {text!r}")
    exponent = Decimal(10) ** int(found["exponent"] or 0)
    return Decimal(found["number"]) * exponent * _SUFFIXES.get(found["suffix"] or "", Decimal(1))
