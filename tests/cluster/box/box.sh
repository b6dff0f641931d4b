#!/usr/bin/env bash
# What runs in the cluster's box, as its first process. Started by up.sh, never by hand.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"
(($$ == 1)) || refuse "box.sh runs in the box only: use up.sh"
here=$CLUSTER/box

logs=$STATE/logs
mkdir -p "$logs" "$STATE/bin"
ln -sf "$BIN" "$STATE/bin/kubeall"
ln -sf "$BIN" "$STATE/bin/kubectl"
PATH=$STATE/bin:$PATH

start() { # NAME COMMAND...; again when it ends: most give up where the machine stands still for 10 s
  local name=$1
  shift
  while true; do
    "$@" >>"$logs/$name.log" 2>&1 &
    echo $! >"$STATE/$name.pid"    # a pid of the box, for commands started by run.sh
    wait $! || echo "$name ended with $?, and is started again" >>"$logs/$name.log"
    sleep 1
  done &
}
wait_for() { # WHAT COMMAND...
  local what=$1 limit=$((SECONDS + 180))
  shift
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > limit)); then echo "$what: not ready, see $logs" >&2; exit 1; fi
    sleep 0.2
  done
  echo "[${SECONDS} s] $what"
}

has_port() { true <"/dev/tcp/127.0.0.1/$1"; }
has_gpus() {
  local path='{.status.allocatable.nvidia\.com/gpu}'
  [[ $(kubectl --request-timeout=20s get node "$NODE" --output "jsonpath=$path") == "$GPUS" ]]
}

for dir in "${BOX_DIRS[@]}"; do
  mkdir -p "$dir"
  mount -t tmpfs tmpfs "$dir"
done
# Pods live below a control group of this cluster's own, which the kubelet wants to find in every
# hierarchy: one on cgroup v2, one per controller before.
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
  mkdir -p "/sys/fs/cgroup/$CGROUP"
else
  for dir in /sys/fs/cgroup/*/; do mkdir -p "$dir$CGROUP"; done
fi
ip link set lo up
# Without an address of its own the bridge takes that of a pod, and changes it when that pod goes: the
# others then talk to nobody for seconds.
ip link add cni0 address 0a:58:0a:58:07:01 type bridge
ip addr add "$NODE_IP/24" dev cni0
ip link set cni0 up

"$here/credentials.sh"

# ---- containers ----
mkdir -p "$STATE/cni"
cat >"$STATE/cni/pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true,
   "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.88.7.0/24", "gateway": "$NODE_IP"}]]}}]}
JSON
cat >"$STATE/containerd.toml" <<TOML
version = 2
root = "$STATE/containerd"
state = "/run/containerd/state"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true        # works without CAP_SYS_RESOURCE
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  cni = {bin_dir = "/usr/lib/cni", conf_dir = "$STATE/cni"}
  containerd.runtimes.runc.runtime_type = "io.containerd.runc.v2"
TOML
export CONTAINERD_NAMESPACE=k8s.io
start containerd containerd --config "$STATE/containerd.toml"
wait_for containerd ctr --timeout=20s version
"$here/images.sh"

# ---- control plane ----
start etcd kubeall etcd "$STATE/etcd" 2379 2380
wait_for etcd has_port 2379          # the API server looks for it for 20 s only
start apiserver kubeall kube-apiserver \
  --etcd-servers=http://127.0.0.1:2379 --allow-privileged=true \
  --bind-address=127.0.0.1 --secure-port="$API_PORT" --advertise-address="$NODE_IP" \
  --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/24 \
  --tls-cert-file="$STATE/cert.pem" --tls-private-key-file="$STATE/key.pem" \
  --client-ca-file="$STATE/cert.pem" --token-auth-file="$STATE/tokens.csv" \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file="$STATE/key.pub" --service-account-signing-key-file="$STATE/key.pem" \
  --kubelet-client-certificate="$STATE/cert.pem" --kubelet-client-key="$STATE/key.pem" \
  --kubelet-preferred-address-types=InternalIP
wait_for "API server" kubectl --request-timeout=20s get --raw /readyz
for program in controller-manager scheduler; do
  config=$STATE/kubeconfigs/$program
  options=(--leader-elect=false --bind-address=127.0.0.1 --kube-api-qps=500 --kube-api-burst=500
    --kubeconfig="$config" --authentication-kubeconfig="$config"
    --authorization-kubeconfig="$config")
  if [[ $program == controller-manager ]]; then
    options+=(--root-ca-file="$STATE/cert.pem" --service-account-private-key-file="$STATE/key.pem"
      --use-service-account-credentials
      --node-monitor-period=1s --node-monitor-grace-period="$NODE_GRACE")
  fi
  start $program kubeall kube-$program "${options[@]}"
done

# ---- node ----
start kubelet "$here/kubelet.sh"
wait_for node kubectl wait --for=condition=Ready "node/$NODE" --timeout=120s
wait_for "default service account" kubectl --request-timeout=20s get serviceaccount default
start fakegpu "$PYTHON" "$CLUSTER/fakegpu.py" "$GPUS"
wait_for "$GPUS GPUs" has_gpus

touch "$STATE/ready"
wait
