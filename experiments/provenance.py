"""Where, when and with which code a cell was run."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

ROOT = Path(__file__).parents[1]
CODE = ("pipeline", "experiments/*.py")
"""What decides a result, besides the cell: pages, results and locks do not."""
CHANGED = "-dirty"
"""How a commit ends if code was changed since."""


def commit() -> str:
    """Of the code, "-dirty" if it was changed since; "unknown" without git."""
    return (_git("describe", "--always") or "unknown") + CHANGED * bool(changes())


def changes() -> str:
    """Changed and new files of code, as git lists them; empty if there are none."""
    return _git("status", "--porcelain", "--", *CODE)


def require_clean() -> None:
    """UserError if code was changed since its commit: a page names the commits that its numbers can be made with."""
    if found := changes():
        files = ", ".join(line.split()[-1] for line in found.splitlines()[:5])
        raise UserError(
            f"the page is not made, because code was changed since the last commit ({files}), and a page names the"
            " commits of its code. Finished cells are kept. Fix: commit or undo the changes, then make the page again."
        )


def machine(device: str, code: str) -> dict[str, Any]:
    """device: torch's name of it. code: the commit. Cells run on one thread."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else _processor(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "threads": 1,
        "commit": code,
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()


def _processor() -> str:
    """The processor's name as the kernel has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
