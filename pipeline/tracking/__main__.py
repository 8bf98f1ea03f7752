"""`make publish`: send what is in results/ to the tracker, again or for the first time."""

from __future__ import annotations

import sys

from pipeline.command import Paths, run
from pipeline.params import Params


def main(params: Params, paths: Paths) -> None:
    from pipeline.tracking.publish import publish

    info, error = publish(paths.results, paths.model.parent, params.tracking, paths.root)
    if error is not None:
        sys.exit(1)  # publish has said what is the matter
    print(f"published run {info.run_id} to {info.tracking_uri}")


if __name__ == "__main__":
    run(main)
