"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out.

The problem in use and its settings go into a file of their own, for the stages that depend on them: dvc.yaml cannot
name `problems.<the one in use>` where params.yaml says `auto`. So does the share of the clients' validation parts,
which `auto` takes from the problem, for the partition.
"""

import json
from dataclasses import asdict

from pipeline.command import Paths, run
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    named, params = params.algorithm, resolve(params)
    settings = {"problem": params.problem, **asdict(getattr(params.problems, params.problem))}
    if params.algorithm != named:  # its section is not the one that dvc.yaml names by `algorithm`
        settings[params.algorithm] = asdict(getattr(params.algorithms, params.algorithm))
    paths.problem.write_text(json.dumps(settings, indent=2) + "\n")
    dealing = {"client_validation": params.partition.client_validation}
    paths.dealing.write_text(json.dumps(dealing, indent=2) + "\n")
    paths.checked.write_text("params.yaml is in order\n")


if __name__ == "__main__":
    run(check)
