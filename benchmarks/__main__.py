"""Run benchmarks and print their tables; `--record` appends the figures to benchmarks/records.jsonl."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from datetime import date
from pathlib import Path

import torch

from benchmarks import imports, local_epochs, many_clients, rivals, round_cost

BENCHMARKS = {
    "round": round_cost.measure,
    "epochs": local_epochs.measure,
    "clients": many_clients.measure,
    "imports": imports.measure,
    "rivals": rivals.measure,
}
RECORDS = Path(__file__).with_name("records.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="which; all of them if none is named")
    parser.add_argument("--record", action="store_true", help="append the figures to the record book")
    options = parser.parse_args()
    for name in options.names or BENCHMARKS:
        figures = BENCHMARKS[name]()
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        if options.record:
            with RECORDS.open("a") as file:
                file.write(json.dumps({"benchmark": name, **machine(), "figures": figures}) + "\n")


def machine() -> dict[str, str | int]:
    """Where and when."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": date.today().isoformat(),
        "commit": commit,
        "processor": model,
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []


if __name__ == "__main__":
    main()
