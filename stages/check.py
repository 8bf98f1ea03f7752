"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out."""

from pipeline.command import Paths, run
from pipeline.params import Params
from pipeline.params.rules import check_rules


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    paths.checked.write_text("params.yaml is in order\n")


if __name__ == "__main__":
    run(check)
