"""A whole Airflow on one machine, without containers: for the demo, the tests and a look around.

PostgreSQL from a package on a unix socket, and the api-server, scheduler, dag-processor and
triggerer as four processes. Not `airflow standalone`, which leaves its children running when it is
told to stop, and not SQLite, on which backfills and deferral are not what production does.

    python -m deploy.embedded up | down | status | remove | airflow ...
"""
