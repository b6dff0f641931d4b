# shellcheck shell=bash disable=SC2034  # sourced by the other scripts
# Where the test cluster lives and what it is called. All that it writes is below WORK; two clusters
# with different WORKs do not know of each other.
CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$CLUSTER/../.." && pwd)
WORK=$(realpath -m "${CLUSTER_WORK:-$REPO/var/cluster}")
STATE=$WORK/state              # logs, databases, images; removed by down.sh

# The binary takes minutes to build, so it outlives WORK and is shared by all checkouts.
CACHE=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/shardline}
BIN=$CACHE/kubeall-$(cat "$CLUSTER"/kubeall/{go.mod,go.sum,main.go} | sha256sum | cut -c1-12)

PYTHON=${CLUSTER_PYTHON:-$REPO/.venv/bin/python}   # of the device plugin, and of workers in pods
GPUS=${CLUSTER_GPUS:-4}        # how many GPUs the node claims to have

export KUBECONFIG=$STATE/kubeconfigs/admin
NODE=test-node
NODE_IP=10.88.7.1              # the pod bridge: where pods reach a server that a test started
API_PORT=6443
NODE_GRACE=10s                 # how long a silent node counts as ready; Kubernetes has 50s
CGROUP=test-cluster-$(cksum <<<"$WORK" | cut -d' ' -f1)
# Folders that the programs insist on, whatever their options say: the box has its own, empty.
BOX_DIRS=(/run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

is_alive() { [[ -s $STATE/box.pid ]] && grep -qs /box.sh "/proc/$(cat "$STATE/box.pid")/cmdline"; }
is_up() { [[ -e $STATE/ready ]] && is_alive; }   # a start that was killed leaves a box that is not
three_times() { "$@" || { sleep 10; "$@"; } || { sleep 60; "$@"; }; }   # what asks the network
refuse() { echo "cluster: $*" >&2; exit 1; }
