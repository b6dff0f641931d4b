#!/usr/bin/env python3
"""Make a container image from a folder, with no registry, no Docker and no network.

The result is an OCI image layout in a tar file, which containerd (`ctr images import`), kind
(`kind load image-archive`), podman and skopeo all read. The same folder always gives the same
bytes: owners and times are dropped.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

OCI = "application/vnd.oci.image"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_image(rootfs: Path, name: str, out: Path, entrypoint: list[str], env: list[str]) -> None:
    """Write `rootfs` as the one layer of image `name` to the tar file `out`."""
    with tempfile.TemporaryFile() as layer, tarfile.open(out, "w") as tar:
        layer_digest = pack(rootfs, layer)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [PATH, *env], "Entrypoint": entrypoint or None},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        }
        config_entry = add_json(tar, config, f"{OCI}.config.v1+json")
        layer_entry = add_blob(tar, layer, layer_digest, f"{OCI}.layer.v1.tar")
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": config_entry,
            "layers": [layer_entry],
        }
        manifest_entry = add_json(tar, manifest, manifest["mediaType"])
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        index = {"schemaVersion": 2, "manifests": [manifest_entry | {"annotations": names}]}
        add_file(tar, "index.json", io.BytesIO(json.dumps(index).encode()))
        add_file(tar, "oci-layout", io.BytesIO(b'{"imageLayoutVersion":"1.0.0"}'))


def pack(rootfs: Path, layer: io.BufferedRandom) -> str:
    """Write the folder as an uncompressed tar and return its digest."""
    with tarfile.open(fileobj=layer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(rootfs.iterdir()):
            tar.add(entry, arcname=entry.name, filter=forget_owner_and_time)
    layer.seek(0)
    return "sha256:" + hashlib.file_digest(layer, "sha256").hexdigest()


def forget_owner_and_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


def add_json(tar: tarfile.TarFile, content: dict, media_type: str) -> dict:
    body = json.dumps(content).encode()
    return add_blob(tar, io.BytesIO(body), "sha256:" + hashlib.sha256(body).hexdigest(), media_type)


def add_blob(tar: tarfile.TarFile, body, digest: str, media_type: str) -> dict:
    """Add a blob under its digest and return the descriptor other blobs refer to it by."""
    size = add_file(tar, "blobs/" + digest.replace(":", "/"), body)
    return {"mediaType": media_type, "digest": digest, "size": size}


def add_file(tar: tarfile.TarFile, path: str, body) -> int:
    member = tarfile.TarInfo(path)
    member.size = body.seek(0, os.SEEK_END)
    body.seek(0)
    tar.addfile(member, body)
    return member.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rootfs", type=Path, help="folder that becomes the image's file system")
    parser.add_argument("name", help="image name with its tag, such as localhost/busybox:test")
    parser.add_argument("out", type=Path, help="tar file to write")
    parser.add_argument("--entrypoint", type=json.loads, default=[], help="JSON list")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    make_image(args.rootfs, args.name, args.out, args.entrypoint, args.env)


if __name__ == "__main__":
    main()
