#!/usr/bin/env bash
# Makes .venv: what `make setup` does when the lock has changed. Needs only Python 3.11.
#
#   PYTHON   the interpreter to use (default python3.11)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONDONTWRITEBYTECODE PYTHONPATH VIRTUAL_ENV

python=${PYTHON:-python3.11}
uv=uv==0.13.9
system="$(uname -s) $(uname -m)"

refuse() {
  echo "setup: $*" >&2
  echo "setup: supported: Linux x86-64 with Python 3.11 (everything); macOS on Apple silicon with" >&2
  echo "       Python 3.11 (everything but inference with vLLM). On a GPU machine, or elsewhere at" >&2
  echo "       your own risk: pip install -r requirements.txt" >&2
  exit 1
}

case $system in
"Linux x86_64") lock=cpu-lock-3.11.txt size="2.7 GB to fetch once, 5.2 GB on disk; 1 to 4 minutes" ;;
"Darwin arm64") lock=macos-lock-3.11.txt size="about 1 GB; 1 to 2 minutes" ;;
*) refuse "this is $system, for which there is no lock." ;;
esac
command -v "$python" >/dev/null ||
  refuse "there is no $python on PATH. Install Python 3.11, or name one: make setup PYTHON=/path/to/python3.11"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || refuse "$python is Python $version, and the lock is for 3.11: make setup PYTHON=python3.11"

# A venv that was moved, copied or cut short does not run its own programs.
is_sound() {
  .venv/bin/uv --version && .venv/bin/pip --version &&
    .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
}

if ! is_sound >/dev/null 2>&1; then
  echo "setup: making .venv with $python (5 s)"
  "$python" -m venv --clear .venv ||
    refuse "$python cannot make a venv; on Debian and Ubuntu: apt install python3.11-venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "$uv" ||
    { echo "setup: pip could not fetch $uv: see its message above (network, proxy or index?)" >&2; exit 1; }
fi

echo "setup: installing $lock ($size; seconds when cached)"
started=$SECONDS
.venv/bin/uv pip install --quiet -p .venv/bin/python --no-deps -r "include/requirements/$lock" || {
  # pip knows mirrors and certificates from its own configuration, which uv does not read.
  echo "setup: uv could not; trying pip (about 4 minutes)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "include/requirements/$lock"
}
echo "setup: installing shardline itself, editable (2 s)"
.venv/bin/uv pip install --quiet -p .venv/bin/python --no-deps --no-build-isolation -e .
[ "$system" = "Linux x86_64" ] || echo "setup: no vLLM on $system: \`make demo\` needs Linux; everything else works"
echo "setup: done in $((SECONDS - started)) s"
