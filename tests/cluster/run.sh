#!/usr/bin/env bash
# Run a command in the cluster's box, with kubectl on the PATH and the environment that tests read:
#   run.sh .venv/bin/python -m pytest -m cluster
# There is no outside network in there. What is started there ends with the cluster at the latest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

is_up || refuse "it is not up: run \`make cluster-up\`"
export CLUSTER_STATE=$STATE    # logs/, and the programs' *.pid, numbers that hold in the box
export PATH=$STATE/bin:$PATH
export TEST_IMAGE=localhost/busybox:test
export TEST_HOST=$NODE_IP
# Workers run this machine's Python and this checkout, see box/images.sh.
export TEST_WORKER_IMAGE=localhost/machine:test
export TEST_WORKER_PYTHON=$PYTHON
prefixes=$("$PYTHON" -c 'import sys; print(sys.base_prefix, sys.prefix, sep=":")')
export TEST_WORKER_MOUNTS=/usr:/etc/ssl/certs:$REPO:$prefixes
exec nsenter --target "$(cat "$STATE/box.pid")" --net --mount --pid --wd="$PWD" "$@"
