#!/usr/bin/env bash
# The demo's job on the test cluster. What it downloads is fetched outside of the box, which has no
# network. A cluster that is up is used and stays; by run.sh, it is the one that this runs in.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

cd "$REPO"
export PYTHONPATH=include:.
"$PYTHON" -m samples.reviews
"$PYTHON" -m samples.smollm2
if [[ -n ${CLUSTER_STATE:-} ]]; then
  exec "$PYTHON" -m tests.cluster.demo
fi
"$CLUSTER/setup.sh"
if ! is_up; then
  trap '"$CLUSTER/down.sh"' EXIT
  "$CLUSTER/up.sh"
fi
"$CLUSTER/run.sh" "$PYTHON" -m tests.cluster.demo
