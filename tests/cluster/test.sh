#!/usr/bin/env bash
# Run the tests that need a cluster; further arguments are pytest's. A cluster that is up is used and
# stays, else one is started for the time of the tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

cd "$REPO"
PYTHONPATH=include "$PYTHON" -m samples.reviews   # the demo's, which cannot be fetched in the box
"$CLUSTER/setup.sh"
if ! is_up; then
  trap '"$CLUSTER/down.sh"' EXIT
  "$CLUSTER/up.sh"
fi
"$CLUSTER/run.sh" "$PYTHON" -m pytest -q -m cluster "$@"
