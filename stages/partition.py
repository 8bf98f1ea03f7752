"""Stage 3: who holds what. Writes the partition (one file) and its summary."""

import sys

from pipeline.command import Paths, run
from pipeline.data.datasets import load
from pipeline.data.own_partition import dealt_anew, partition_of
from pipeline.data.partition import summary_table
from pipeline.data.sets.registry import TOY
from pipeline.params import Params
from pipeline.params.resolve import resolve


def partition(params: Params, paths: Paths) -> None:
    if params.data.name == TOY:
        paths.partition.parent.mkdir(parents=True, exist_ok=True)
        paths.partition.write_text("none\n")
        paths.partition_summary.write_text("The toy problem has no samples to deal out.\n")
        return
    raw = load(paths.raw(params.data.name)).first(params.subset)
    result = partition_of(raw, params.data, resolve(params, raw.info).partition, params.seed)
    for note in dealt_anew(raw, result):
        print(f"note: {note}", file=sys.stderr)
    paths.partition.parent.mkdir(parents=True, exist_ok=True)
    result.save(paths.partition)
    paths.partition_summary.write_text(summary_table(result) + "\n")
    print(summary_table(result))


if __name__ == "__main__":
    run(partition)
