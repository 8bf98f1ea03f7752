"""Stage 1: is params.yaml in order? Everything else depends on this stage's constant out.

What decides each of the other stages goes into a file of its own, which that stage depends on: dvc.yaml could not name
the section of a method that stands there by its dotted path, nor a key that is left out.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from pipeline import models
from pipeline.command import Paths, run
from pipeline.config import own_code
from pipeline.config.loading import read_yaml
from pipeline.data.sets.registry import DATASETS
from pipeline.data.settings import Data
from pipeline.errors import UserError
from pipeline.masking import masked
from pipeline.params import Params
from pipeline.params.decides import STAGES, of_stage
from pipeline.params.resolve import foreseen, switched
from pipeline.params.rules import check_rules
from pipeline.sweep.plan import check_values
from pipeline.text import clipped


def check(params: Params, paths: Paths) -> None:
    check_rules(params)
    check_values(params)
    try_network(params)
    for name in strangers(params, read_yaml(paths.params)):
        print(
            f"note: {name} is ignored: neither shipped nor in use. Fix: correct its name, or remove it.",
            file=sys.stderr,
        )
    if without := without_effect(params.data):
        print(
            f"note: {', '.join(without)}: without effect, as data.name: {params.data.name} is not your own data. Fix:"
            " data.name: folder, table or arrays.",
            file=sys.stderr,
        )
    if said := switched(params):
        print(f"check: {said}", file=sys.stderr)
    paths.checked.parent.mkdir(parents=True, exist_ok=True)
    params = foreseen(params)
    for stage in STAGES:
        place = paths.settings(stage)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(masked(json.dumps(of_stage(params, stage), indent=2)) + "\n")
    paths.checked.write_text("params.yaml is in order\n")
    watch(params, paths)
    for path in (params.data.name, params.algorithm, params.problem, params.partition.scheme):
        if "." in path and (file := own_code.unwatched(path)):
            folders = ", ".join(own_code.FOLDERS)
            print(f"note: DVC watches {folders}, not {file}: after an edit, dvc repro --force.", file=sys.stderr)


def strangers(params: Params, tree: dict[str, Any]) -> list[str]:
    """Sections by dotted name that belong to custom code which is not in use, or to nothing. tree: of the file."""
    rooms = {room: getattr(params, room) for room in ("algorithms", "partition", "problems")}
    return [
        f"{room}.{name}"
        for room, known in rooms.items()
        for name in tree.get(room) or {}
        if name not in {field.name for field in dataclasses.fields(known)}
    ]


def without_effect(data: Data) -> list[str]:
    """The keys that are set and concern own data alone, where the data are a set of the registry."""
    if data.name not in DATASETS or data.dataset.own:
        return []
    keys = [field.name for field in dataclasses.fields(data) if field.name not in ("name", "mirror")]
    return [f"data.{key}" for key in keys if getattr(data, key) != getattr(Data(), key)]


def try_network(params: Params) -> None:
    """UserError for a network that cannot be had, or does not fit the data set."""
    resolved, info = foreseen(params), params.data.dataset.info
    name = resolved.model.name
    if info:
        classes = resolved.partition.few_shot.ways if info.few_shot else info.classes or 1
        models.build(name, info.channels, info.size, classes, resolved.model.options)
    elif name != "auto" and not params.data.dataset.problem:
        models.source_files(name)


def watch(params: Params, paths: Paths) -> None:
    """Put a link to a user's own data where DVC looks for them, or for other data a file that never changes: dvc.yaml
    cannot name a place that params.yaml names."""
    place, data = paths.source, paths.placed(params.data)
    if place.is_symlink() or place.exists():
        place.unlink()
    if not params.data.dataset.own or not data.path:
        place.write_text("no data of your own\n")
        return
    if "://" in data.path:  # what a data set of your own makes of an address is its own affair
        place.write_text("an address\n")
        return
    source = located(data.path)
    # Of a link to a file DVC would see the link alone.
    folder = source if source.is_dir() else source.parent
    if paths.root.is_relative_to(folder) or (folder != source and _many(folder)):
        place.write_text(f"{source}\n")
        fix = "put it into a folder of its own, or after an edit dvc repro --force."
        print(f"note: DVC does not watch {source}: {fix}", file=sys.stderr)
        return
    place.symlink_to(folder)


def located(path: str) -> Path:
    """The file or folder there; UserError if there is none, or a device or a pipe, which DVC would read without end."""
    try:
        source = Path(path).resolve()
        if (source.is_file() or source.is_dir()) and not source.is_relative_to("/dev"):
            return source
    except (OSError, RuntimeError):  # too long a name, links in a circle
        pass
    raise UserError(f"data.path: {clipped(path, 200)} is neither a file nor a folder. Fix: the path of your data.")


def _many(folder: Path, limit: int = 200) -> bool:
    """Whether the folder holds too many files, below it too, to hash them all for the sake of one."""
    return sum(1 for _, file in zip(range(limit + 1), folder.rglob("*"), strict=False)) > limit


if __name__ == "__main__":
    run(check)
