"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out.

The problem and the method in use go into files of their own, with their settings, for the stages that depend on them:
dvc.yaml cannot name `problems.<the one in use>` where params.yaml says `auto`, nor the section of a method that stands
there by its dotted path. So does the share of the clients' validation parts, which `auto` takes from the problem, for
the partition.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.command import Paths, run
from pipeline.config import own_code
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    params = resolve(params)
    _write(paths.problem, {"problem": params.problem, **asdict(getattr(params.problems, params.problem))})
    _write(paths.method, {"algorithm": params.algorithm, **asdict(params.hyper)})
    _write(paths.dealing, {"client_validation": params.partition.client_validation})
    paths.checked.write_text("params.yaml is in order\n")
    if "." in params.algorithm and (file := own_code.unwatched(params.algorithm)):
        folders = ", ".join(own_code.FOLDERS)
        print(f"note: DVC watches {folders}, and not {file}: after an edit, dvc repro --force train.", file=sys.stderr)


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    run(check)
