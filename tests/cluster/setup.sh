#!/usr/bin/env bash
# Install and build what the test cluster is made of, or say in one line why this machine cannot.
# Nothing to do: half a second. The first time: some 8 minutes, for the build.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

[[ $(uname -sm) == "Linux x86_64" ]] || refuse "it needs Linux on x86-64, this is $(uname -sm)"
((EUID == 0)) || refuse "it needs root, for namespaces, mounts and a bridge: sudo make cluster-up"

# what is looked for, and the Debian package it comes with
needed=(
  containerd:containerd runc:runc /usr/lib/cni/bridge:containernetworking-plugins
  /usr/bin/catatonit:catatonit /bin/busybox:busybox-static
  ip:iproute2 openssl:openssl pgrep:procps unshare:util-linux python3:python3
)
missing=() packages=()
for entry in "${needed[@]}"; do
  command -v "${entry%:*}" >/dev/null || { missing+=("${entry%:*}") packages+=("${entry#*:}"); }
done
if ((${#missing[@]})); then
  command -v apt-get >/dev/null || refuse "not found, and there is no apt-get to install it: ${missing[*]}"
  echo "cluster: installing ${packages[*]}"
  mkdir -p "$WORK"
  export DEBIAN_FRONTEND=noninteractive
  install() {
    local options=(--option Acquire::Retries=3 --option DPkg::Lock::Timeout=300 --yes)
    apt-get update "${options[@]}" &&
      apt-get install "${options[@]}" --no-install-recommends "${packages[@]}"
  }
  three_times install >"$WORK/apt.log" 2>&1 </dev/null ||
    { tail -3 "$WORK/apt.log" >&2; refuse "apt-get could not install ${packages[*]}"; }
fi
[[ ! -e /bin/busybox ]] || ! ldd /bin/busybox >/dev/null 2>&1 ||
  refuse "/bin/busybox is not a static program: apt-get install busybox-static"

unshare --net --mount --pid --fork true 2>/dev/null ||
  refuse "it may not make namespaces here (a container without --privileged?)"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
  refuse "the kernel has no overlayfs, which containerd needs"
"$PYTHON" -c 'import grpc' 2>/dev/null ||
  refuse "$PYTHON has no grpcio, which the fake GPUs need: run \`make setup\`"
[[ -x $BIN ]] || "$CLUSTER/build.sh"
