"""
### Woken when a date is published

An example of a dag that goes on with what a scheduled job has published: it runs once per partition,
backfills included, and logs what the event tells. Copy it and put your work in place of the log.

Read the very version that the event names, and a partition that is replaced meanwhile does not
change under you: `DeltaTable(uri, version=version)`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from shardline.job_reader import load_job
from shardline.settings import Settings
from shardline_airflow.scheduled import asset_of

_settings = Settings()
_job_file = _settings.jobs_dir / "daily_reviews.yaml"

if _job_file.exists():
    with DAG(
        "consume_example",
        schedule=PartitionedAssetTimetable(assets=asset_of(load_job(_job_file), _settings.root)),
        start_date=datetime(2026, 1, 1),
        catchup=False,
        doc_md=__doc__,
        tags=["shardline", "example"],
    ):

        @task
        def log_news(triggering_asset_events: Any = None) -> None:
            from shardline_airflow.news import log_news

            log_news(triggering_asset_events)

        log_news()
