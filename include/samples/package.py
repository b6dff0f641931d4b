"""One file of a package, fetched by pip and trusted by its hash, never installed."""

import subprocess
import sys
import tempfile
from pathlib import Path


def fetch_package(requirement: str, *options: str) -> bytes:
    """Return the distribution that a requirement with its `--hash` names.

    Raises:
        RuntimeError: pip could not fetch it, or it has another hash.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed, target = Path(folder, "requirement.txt"), Path(folder, "fetched")
        listed.write_text(requirement + "\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
        done = subprocess.run(
            [*pip, "--require-hashes", "--dest", str(target), "--requirement", str(listed)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            name = requirement.split()[0]
            raise RuntimeError(f"pip could not fetch {name}:\n{done.stderr.strip()}")
        (found,) = target.iterdir()
        return found.read_bytes()
