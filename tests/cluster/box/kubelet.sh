#!/usr/bin/env bash
# The node: run the kubelet in the cluster's box. Started by box.sh, again a second after its end.
# For a node that is lost but may come back, stop and continue it, by STATE/kubelet.pid.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"

cat >"$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_IP
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs               # there is no systemd to ask
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
podLogsDir: $STATE/pod-logs
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: $STATE/cert.pem}
authorization: {mode: AlwaysAllow}
# The machine's disk and memory are not the cluster's to judge: no eviction because of others.
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s        # how soon a change of the GPUs is seen; default 10s
nodeLeaseDurationSeconds: 8          # renewed every 2 s, for NODE_GRACE; default 40
YAML
echo $$ >"$STATE/kubelet.pid"
exec kubeall kubelet --config="$STATE/kubelet.yaml" --kubeconfig="$STATE/kubeconfigs/kubelet" \
  --hostname-override="$NODE" --node-ip="$NODE_IP" --root-dir="$STATE/kubelet"
