#!/usr/bin/env bash
# Compiles the locks from requirements.txt and the lists here: `make lock`. Needs the network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lists=include/requirements

compile() { # lock, then more options
  lock=$lists/$1
  shift
  echo "lock: $lock"
  .venv/bin/uv pip compile --quiet requirements.txt "$lists/dev.txt" "$@" \
    --python-version 3.11 --no-header --no-annotate -o "$lock"
}

compile cpu-lock-3.11.txt "$lists/cpu.txt" \
  --overrides "$lists/cpu-overrides.txt" --excludes "$lists/cpu-excludes.txt" \
  --python-platform x86_64-manylinux_2_28
compile macos-lock-3.11.txt \
  --excludes "$lists/macos-excludes.txt" --python-platform aarch64-apple-darwin
