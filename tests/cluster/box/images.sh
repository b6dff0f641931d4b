#!/usr/bin/env bash
# Make the images the cluster cannot do without and load them into containerd.
#   localhost/pause:test      what keeps a pod's namespaces open
#   localhost/busybox:test    sh and the usual tools; also under the name of the sidecar that the
#                             KubernetesPodOperator starts for XCom, so that it is never pulled
#   localhost/machine:test    nothing but links into /usr: with this machine's /usr, Python, .venv and
#                             checkout mounted at their own paths it runs the worker as it is on disk
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"

images=$STATE/images
mkdir -p "$images/pause" "$images/busybox/bin" "$images/busybox/tmp"
cp /usr/bin/catatonit "$images/pause/pause"
cp /bin/busybox "$images/busybox/bin/"
busybox --list | grep -vx busybox | while read -r tool; do
  ln -s busybox "$images/busybox/bin/$tool"
done

mkdir -p "$images/machine/etc" "$images/machine/tmp"
for link in bin lib lib64; do ln -s "usr/$link" "$images/machine/$link"; done
printf '%s\n' root:x:0:0::/tmp:/bin/sh worker:x:1000:1000::/tmp:/bin/sh >"$images/machine/etc/passwd"
chmod 1777 "$images/machine/tmp" "$images/busybox/tmp"

load() { # NAME OPTIONS...
  python3 "$CLUSTER/mkimage.py" "$images/$1" "localhost/$1:test" "$images/$1.tar" "${@:2}"
  ctr images import "$images/$1.tar"
}
load pause --entrypoint '["/pause", "-P"]'
load busybox
load machine
ctr images tag localhost/busybox:test docker.io/library/alpine:3.24.2
