"""Whether a quota is why the API made no pod. Pure: the API's own objects in.

The refusal does not say it: a used-up quota, a policy and a missing right are all 403 Forbidden, and
only their texts differ. What a quota has left stands in its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from shardline.runners.gpu.quantity import parse_quantity

_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""What a quota may also name without `requests.`."""


def is_used_up(quotas: Iterable[Mapping[str, Any]], pod: Mapping[str, Any]) -> bool:
    """Whether the pod must wait until others of the namespace have gone.

    A pod that is larger than a whole quota waits for nothing. A quota that was not counted yet does
    refuse pods, for a moment. Scopes are not looked at: a full quota counts, whomever it is for.
    """
    asked = dict(_asked(pod))
    return any(_has_no_room(quota.get("status") or {}, asked) for quota in quotas)


def _has_no_room(status: Mapping[str, Any], asked: Mapping[str, Decimal]) -> bool:
    used = status.get("used")
    if used is None:
        return True
    for name, limit in (status.get("hard") or {}).items():
        wanted, most = asked.get(name, Decimal(0)), parse_quantity(limit)
        can_come = (
            wanted <= most or not most
        )  # with 0 somebody has closed the namespace for a while
        if can_come and most < parse_quantity(used.get(name, "0")) + wanted:
            return True
    return False


def _asked(pod: Mapping[str, Any]) -> Iterator[tuple[str, Decimal]]:
    """What the pod counts for, under every name that a quota may have for it."""
    yield "pods", Decimal(1)
    yield "count/pods", Decimal(1)
    (container,) = pod["spec"]["containers"]
    for kind, amounts in (container.get("resources") or {}).items():
        for name, amount in (amounts or {}).items():
            yield f"{kind}.{name}", parse_quantity(amount)
            if kind == "requests" and name in _PLAIN:
                yield name, parse_quantity(amount)
