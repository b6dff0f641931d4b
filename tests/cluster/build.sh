#!/usr/bin/env bash
# Compile Kubernetes into one binary, kept in CACHE under a name that changes with its sources. The
# first build takes 12 CPU minutes and 4 GB of Go's own caches, a later one seconds.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

mkdir -p "$CACHE"
exec 9>"$CACHE/building"
flock 9                        # two at once would write the same file
if [[ -x $BIN ]]; then exit; fi

cd "$CLUSTER/kubeall"
wanted=$(sed -n 's/^go //p' go.mod)
command -v go >/dev/null || refuse "there is no go on PATH: install Go $wanted or newer"
have=$(GOTOOLCHAIN=local go env GOVERSION)
printf '%s\n' "$wanted" "${have#go}" | sort --version-sort --check=quiet ||
  refuse "the go on PATH is ${have#go}, Kubernetes needs $wanted or newer"

echo "cluster: building Kubernetes (once: about 8 minutes and 4 GB of Go's caches)"
release=$(sed -n 's|^\tk8s.io/kubernetes ||p' go.mod)
IFS=. read -r major minor _ <<<"${release#v}"
package=k8s.io/component-base/version
# Without a version kubelet and kubectl call themselves v0.0.0. Other flags compile all of it anew.
export CGO_ENABLED=0
three_times go build -trimpath -o "$BIN.unfinished" -ldflags \
  "-s -w -X $package.gitVersion=$release -X $package.gitMajor=$major -X $package.gitMinor=$minor" .
mv "$BIN.unfinished" "$BIN"
echo "cluster: $BIN is Kubernetes $release"
