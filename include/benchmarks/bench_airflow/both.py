"""Both parts of `make bench-airflow`, and their figures in one JSON object as the last line.

The first needs no cluster (`benchmarks.bench_airflow`), the second has one started where none is up
(tests/cluster/bench.sh). One after the other: each is measured alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from deploy.embedded.environment import PROJECT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, required=True, help="of the first part")
    parser.add_argument("--pods", type=int, required=True, help="at once in the second part")
    given = parser.parse_args()
    waves = [sys.executable, "-m", "benchmarks.bench_airflow", "--shards", str(given.shards)]
    cluster = [str(PROJECT / "tests" / "cluster" / "bench.sh"), "--pods", str(given.pods)]
    figures: dict[str, Any] = {}
    for command in (waves, cluster):
        figures |= figures_of(command)
    print(json.dumps(figures))


def figures_of(command: list[str]) -> dict[str, Any]:
    """Run one part, show what it says, and return its last line.

    Raises:
        CalledProcessError: it failed.
    """
    last = ""
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as part:
        assert part.stdout
        for line in part.stdout:
            last = line
            print(line, end="", flush=True)
    if part.returncode:
        raise subprocess.CalledProcessError(part.returncode, command)
    found: dict[str, Any] = json.loads(last)
    return found


if __name__ == "__main__":
    main()
