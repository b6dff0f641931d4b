"""
### A job on a schedule: one date at a time

**Use.** Unpause it: every day after midnight (UTC) it works on the day before. For one date, *Trigger*
with that date as partition key (or in *Partition*). For many: `airflow backfill create --dag-id NAME
--from-date 2026-11-20 --to-date 2026-11-22 --max-active-runs 1`.

**Resume.** Clear the task that failed, with what follows it; or trigger the same date again: it goes
on where it stopped.

**Replace.** A date whose input or job file has changed is another job: trigger that date again, and
its rows are replaced in one commit. Readers see the old rows or the new ones, and the table keeps its
older versions. When nothing has changed, it says that the date is done; *Rerun* runs it again anyway.

**Consume.** Schedule your dag on the asset of this name with a `PartitionedAssetTimetable`: it is
woken once per date, and the event's `extra` has partition, rows and the table's version.
"""

from __future__ import annotations

from shardline.settings import Settings
from shardline_airflow.scheduled import make_dag, scheduled_jobs

_settings = Settings()
for _found in scheduled_jobs(_settings.jobs_dir):
    globals()[f"dag_{_found.dag_id}"] = make_dag(_found, _settings.root, __doc__)
