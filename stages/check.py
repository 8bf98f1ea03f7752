"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out.

What decides each of the other stages goes into a file of its own, which that stage depends on: dvc.yaml could not name
the section of a method that stands there by its dotted path, nor a key that is left out.
"""

import json
import sys

from pipeline.command import Paths, run
from pipeline.config import own_code
from pipeline.params import Params
from pipeline.params.decides import STAGES, of_stage
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    params = resolve(params)
    for stage in STAGES:
        place = paths.settings(stage)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(of_stage(params, stage), indent=2) + "\n")
    paths.checked.write_text("params.yaml is in order\n")
    for path in (params.data.name, params.algorithm, params.problem, params.partition.scheme):
        if "." in path and (file := own_code.unwatched(path)):
            folders = ", ".join(own_code.FOLDERS)
            print(f"note: DVC watches {folders}, not {file}: after an edit, dvc repro --force.", file=sys.stderr)


if __name__ == "__main__":
    run(check)
