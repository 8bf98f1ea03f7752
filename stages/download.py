"""Stage 2: the data set in canonical form, its content verified."""

from pipeline.command import Paths, run
from pipeline.data.datasets import prepare
from pipeline.params import Params


def download(params: Params, paths: Paths) -> None:
    print(prepare(params.data.name, paths.raw(params.data.name), params.data.mirror))


if __name__ == "__main__":
    run(download)
