"""A program's log goes to two places, and neither can hold the program up."""

from __future__ import annotations

import subprocess
import sys

_TALKS = """
import sys
from pathlib import Path
from shardline.tee import log_to

log_to(Path("/dev/full"), "INFO")
for _ in range(300):
    sys.stderr.write("x" * 1_000 + "\\n")
sys.stderr.flush()
print("said all")
"""


def test_a_full_disk_for_the_log_holds_nobody_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TALKS], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "said all\n"
