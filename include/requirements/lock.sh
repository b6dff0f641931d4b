#!/usr/bin/env bash
# Compiles the locks from requirements.txt and the lists here: `make lock`. Needs the network.
# cpu and macos: development, tests and everything on one machine; airflow, local: the images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
lists=include/requirements

compile() { # lock, then more lists and options
  lock=$lists/$1
  shift
  echo "lock: $lock"
  .venv/bin/uv pip compile --quiet requirements.txt "$@" \
    --python-version 3.11 --no-header --no-annotate -o "$lock"
}

compile cpu-lock-3.11.txt "$lists/dev.txt" "$lists/cpu.txt" \
  --overrides "$lists/cpu-overrides.txt" --excludes "$lists/cpu-excludes.txt" \
  --python-platform x86_64-manylinux_2_28
compile macos-lock-3.11.txt "$lists/dev.txt" \
  --excludes "$lists/macos-excludes.txt" --python-platform aarch64-apple-darwin

# of the images, without what only development needs
compile local-lock-3.11.txt "$lists/cpu.txt" \
  --overrides "$lists/cpu-overrides.txt" --excludes "$lists/cpu-excludes.txt" \
  --constraints "$lists/cpu-lock-3.11.txt" --python-platform x86_64-manylinux_2_28
compile airflow-lock-3.11.txt \
  --excludes "$lists/airflow-excludes.txt" \
  --constraints "$lists/cpu-lock-3.11.txt" --python-platform x86_64-manylinux_2_28
