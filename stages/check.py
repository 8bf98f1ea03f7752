"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out.

The problem and the method in use go into files of their own, with their settings, for the stages that depend on them:
dvc.yaml cannot name `problems.<the one in use>` where params.yaml says `auto`, nor the section of a method that stands
there by its dotted path. So do the settings of the partition.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.command import Paths, run
from pipeline.config import own_code
from pipeline.data.settings import PartitionSettings
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    params = resolve(params)
    _write(paths.problem, {"problem": params.problem, **asdict(params.problem_settings)})
    _write(paths.method, {"algorithm": params.algorithm, **asdict(params.hyper)})
    _write(paths.dealing, _in_use(params.partition))
    paths.checked.write_text("params.yaml is in order\n")
    for path in (params.algorithm, params.problem, params.partition.scheme):
        if "." in path and (file := own_code.unwatched(path)):
            folders = ", ".join(own_code.FOLDERS)
            print(f"note: DVC watches {folders}, not {file}: after an edit, dvc repro --force.", file=sys.stderr)


def _in_use(partition: PartitionSettings) -> dict[str, Any]:
    """What applies to every scheme, and the section of the one in use."""
    settings, own = asdict(partition), partition.dealing.name
    return {name: value for name, value in settings.items() if name == own or not isinstance(value, dict)}


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    run(check)
