#!/usr/bin/env bash
# End the cluster and remove all it left but the built binary. Safe at any time, also twice.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

# The kernel ends every process of the box, containers included, before its first one is gone.
# Its command line is gone long before itself.
if is_alive; then
  box=$(cat "$STATE/box.pid")
  kill -KILL "$box" || true
  for ((try = 0; try < 600; try++)); do
    if [[ ! -e /proc/$box ]] || grep -qs '^State:.Z' "/proc/$box/status"; then break; fi
    sleep 0.1
  done
fi
# Control groups are the one thing that outlives the box; the last of them stays busy for a moment.
for ((try = 0; try < 300; try++)); do
  groups=$(find /sys/fs/cgroup -depth -type d \
    \( -path "*/$CGROUP" -o -path "*/$CGROUP/*" \) 2>/dev/null || true)
  if [[ -z $groups ]] || xargs rmdir <<<"$groups" 2>/dev/null; then break; fi
  sleep 0.1
done
rm -rf "$STATE"
