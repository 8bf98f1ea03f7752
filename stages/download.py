"""Stage 2: the data set in canonical form, its content verified."""

from pipeline.command import Paths, run
from pipeline.data.datasets import prepare
from pipeline.data.sets.registry import TOY
from pipeline.params import Params


def download(params: Params, paths: Paths) -> None:
    folder = paths.raw(params.data.name)
    if params.data.name == TOY:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "note.txt").write_text("The toy problem draws its clients from the seed; nothing is downloaded.\n")
        return
    print(prepare(params.data.name, folder, paths.from_root(params.data.mirror), settings=paths.placed(params.data)))


if __name__ == "__main__":
    run(download)
