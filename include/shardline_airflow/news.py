"""What a consumer of a published table is told."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

log = logging.getLogger(__name__)


def log_news(events: Mapping[Any, Iterable[Any]]) -> None:
    """Log partition, rows and version of each event that woke this run."""
    for asset, told in events.items():
        for event in told:
            news = event.extra
            log.info(
                "%s: partition %s, %s rows, version %s of %s",
                getattr(asset, "name", asset),
                news["partition"],
                news["rows"],
                news["version"],
                news["uri"],
            )
