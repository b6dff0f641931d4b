#!/usr/bin/env bash
# Start the test cluster and return when its node is ready and has GPUs. What setup.sh installs must
# be there. A cluster that is up already stays as it is.
#
# The cluster lives in a box: its own network, mount and process namespaces. Nothing in it can reach
# the network or be reached, its mounts and firewall rules are seen by nobody else, and killing the
# box's first process ends all of it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

if is_up; then echo "cluster: already up"; exit; fi
[[ -x $BIN ]] || refuse "Kubernetes is not built: run \`make cluster-up\`"
# A socket's path has at most 107 bytes, and the kubelet puts its own 35 below STATE.
((${#STATE} <= 70)) || refuse "$STATE is too long a path for sockets: set CLUSTER_WORK to a shorter one"
"$CLUSTER/down.sh"
mkdir -p "$STATE"
setsid unshare --net --mount --pid --fork --kill-child --mount-proc \
  "$CLUSTER/box/box.sh" >"$STATE/box.log" 2>&1 </dev/null &
outer=$!
while [[ ! -e $STATE/ready ]]; do
  if ! kill -0 "$outer" 2>/dev/null; then
    tail -n 5 "$STATE"/logs/*.log "$STATE/box.log" >&2 || true
    refuse "it did not start; logs are in $STATE/logs"
  fi
  [[ -s $STATE/box.pid ]] || pgrep --parent "$outer" >"$STATE/box.pid" || true
  sleep 0.2
done
sed -n 's/^\[/cluster: [/p' "$STATE/box.log"
echo "cluster: ready; try: tests/cluster/run.sh kubectl get node"
