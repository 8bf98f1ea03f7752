"""What importing the mathematical core adds to importing torch, in seconds (new processes, median of five)."""

from __future__ import annotations

import statistics
import subprocess
import sys

REPETITIONS = 5
CORE = "pipeline.methods, pipeline.models, pipeline.problems.client_weighting, pipeline.problems.toy"


def measure() -> dict[str, float]:
    """Seconds in a fresh process, byte code warm."""
    script = f"import time, torch; t = time.perf_counter(); import {CORE}; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(REPETITIONS + 1)
    ]
    return {"core_after_torch_s": statistics.median(times[1:])}
