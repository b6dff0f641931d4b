"""What must know Airflow: tasks, operators, the executor. Nothing else in include/ imports it."""
