#!/usr/bin/env bash
# What a shard in a pod costs Airflow and the API server (see benchmarks.bench_airflow.on_cluster, whose
# arguments these are). A cluster that is up is used and stays, else one is started for its time.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

"$CLUSTER/setup.sh"
if ! is_up; then
  trap '"$CLUSTER/down.sh"' EXIT
  "$CLUSTER/up.sh"
fi
cd "$REPO"
export PYTHONPATH=include:.
"$CLUSTER/run.sh" "$PYTHON" -u -m benchmarks.bench_airflow.on_cluster "$@"
