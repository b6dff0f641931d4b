#!/usr/bin/env bash
# Add nodes that do not exist, with GPUs that do not exist:  run.sh fakenodes.sh COUNT GPUS_EACH
# kwok keeps them alive and plays the pods that the real scheduler puts on them, as
# kwok/stages.yaml says. Only pods that select them (nodeSelector: {type: fake}) and tolerate the
# taint fake:NoSchedule come to them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
count=$1 gpus=$2

if ! kill -0 "$(cat "$STATE/kwok.pid" 2>/dev/null)" 2>/dev/null; then
  setsid kubeall kwok --kubeconfig="$KUBECONFIG" --config="$CLUSTER/kwok/stages.yaml" \
    >"$STATE/logs/kwok.log" 2>&1 </dev/null &
  echo $! >"$STATE/kwok.pid"
fi
for ((n = 1; n <= count; n++)); do
  cat <<YAML
---
apiVersion: v1
kind: Node
metadata:
  name: fake-$n
  labels: {type: fake, kubernetes.io/hostname: fake-$n}
spec:
  taints: [{key: fake, effect: NoSchedule}]
status:
  capacity: &size {cpu: "192", memory: 2Ti, ephemeral-storage: 8Ti, pods: "250", nvidia.com/gpu: "$gpus"}
  allocatable: *size
YAML
done | kubectl apply --filename - >/dev/null
ready=(kubectl wait --for=condition=Ready node --selector type=fake --timeout=180s)
if ! "${ready[@]}" >/dev/null 2>&1; then
  echo "the fake nodes do not get ready, see $STATE/logs/kwok.log" >&2
  exit 1
fi
echo "$count fake nodes of $gpus GPUs"
