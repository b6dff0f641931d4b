"""Whether a component of Airflow is well, asked in a container: `python -m deploy.images.health NAME`.

Airflow's own command for it starts all of Airflow: four CPU seconds at each look, of each component.
The api-server knows how the others are.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 10.0
WATCHED = ("scheduler", "dag_processor", "triggerer")
# The execution API is built at its first call, which is slow: tasks must not be the ones to wait.
API_SERVER = ("/api/v2/version", "/execution/health")


def is_well(component: str, url: str) -> bool:
    """Ask the api-server at `url`; it is asked about itself too."""
    try:
        if component == "api_server":
            return all(_get(f"{url}{path}") is not None for path in API_SERVER)
        found = json.loads(_get(f"{url}/api/v2/monitor/health") or b"{}")
    except (OSError, ValueError, urllib.error.URLError):
        return False
    return bool(found.get(component, {}).get("status") == "healthy")


def _get(url: str) -> bytes | None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def main(arguments: list[str]) -> int:
    """0 well, 1 not, 2 no such component."""
    component = arguments[0].replace("-", "_") if arguments else ""
    if component not in ("api_server", *WATCHED):
        print(f"expected one of api-server, scheduler, dag-processor, triggerer; found {arguments}")
        return 2
    return 0 if is_well(component, os.environ.get("API_SERVER_URL", "http://127.0.0.1:8080")) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
