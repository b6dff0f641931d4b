"""Makes vLLM's worker process fail on a prompt that holds a marker token: a real poison document.

A plug-in of vLLM for tests only. FAULT_TOKEN=<token id>, FAULT_MODE=raise|exit|segv|hang|kill_worker.
"""

import os
import signal
from typing import Any


def register() -> None:
    if not os.environ.get("FAULT_TOKEN"):
        return
    token, mode = int(os.environ["FAULT_TOKEN"]), os.environ.get("FAULT_MODE", "raise")
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # the CPU runner inherits from it

    if getattr(GPUModelRunner, "_fault", False):
        return
    GPUModelRunner._fault = True
    run = GPUModelRunner.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            if token in (request.prompt_token_ids or ()):
                fail(mode)
        return run(self, scheduler_output, *args, **kwargs)

    GPUModelRunner.execute_model = execute_model


def fail(mode: str) -> None:
    if mode == "exit":
        os._exit(139)
    if mode == "segv":
        import ctypes

        ctypes.string_at(0)
    if mode == "kill_worker":  # as an out-of-memory kill of the whole container does
        os.kill(int(os.environ["SHARDLINE_WORKER_PID"]), signal.SIGKILL)
        signal.pause()
    if mode == "hang":
        import time

        time.sleep(1e6)
    raise RuntimeError("injected fault")
