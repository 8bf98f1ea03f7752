"""Run benchmarks and print their figures; `--record` appends them to benchmarks/records.jsonl.

`python -m benchmarks charts` draws what is recorded into docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks import (
    batching,
    cheaper,
    devices,
    imports,
    local_epochs,
    many_clients,
    memory,
    methods,
    rivals,
    round_cost,
    scaling,
    targets,
)
from benchmarks.timing import device

BENCHMARKS = {
    "round": round_cost,
    "targets": targets,
    "scaling": scaling,
    "memory": memory,
    "devices": devices,
    "methods": methods,
    "batching": batching,
    "cheaper": cheaper,
    "epochs": local_epochs,
    "clients": many_clients,
    "imports": imports,
    "rivals": rivals,
}
if find_spec("nvflare"):
    from benchmarks import answers, sites

    BENCHMARKS |= {"sites": sites, "answers": answers}
RECORDS = Path(__file__).with_name("records.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS, "charts"], help="which; all if none is named")
    parser.add_argument("--record", action="store_true", help="append the figures to the record book")
    options, failed = parser.parse_args(), []
    for name in options.names or BENCHMARKS:
        if name == "charts":
            from benchmarks.charts import draw_all  # matplotlib is not everywhere

            draw_all(RECORDS, Path("docs/benchmarks"))
            continue
        try:
            figures = BENCHMARKS[name].measure()
        except Exception as error:  # the others may still have something to say
            print(f"{name}: failed, {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        if options.record:
            record = {"benchmark": name, **machine(), "repetitions": BENCHMARKS[name].REPETITIONS, "figures": figures}
            with RECORDS.open("a") as file:
                file.write(json.dumps(record) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def machine() -> dict[str, str | int]:
    """Where and when; a commit followed by + had uncommitted changes."""
    commit = _git("rev-parse", "--short", "HEAD") + "+" * bool(_git("status", "--porcelain", "-uno", "--", ":!*.jsonl"))
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": date.today().isoformat(),
        "commit": commit,
        "processor": model,
        "device": torch.cuda.get_device_name() if device().type == "cuda" else "cpu",
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", "-m", "benchmarks", *sys.argv[1:]]),
    }


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []


if __name__ == "__main__":
    main()
