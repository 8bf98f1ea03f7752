"""`make recipe NAME=...`: settings tuned for one data set, written into params.yaml.

python -m stages.recipe NAME         write the recipe and print what changes
python -m stages.recipe [--list]     names and what they are for
"""

import argparse

from pipeline.command import Paths, answering
from pipeline.params.recipes import titles, write_recipe


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.recipe", description="settings tuned for one data set")
    parser.add_argument("name", nargs="?", help="of a file in recipes/; without one, they are listed")
    parser.add_argument("--list", action="store_true", help="names and what they are for")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a mistake too")
    arguments = parser.parse_args()
    answering(list_recipes if arguments.list or not arguments.name else lambda: apply(arguments.name))


def list_recipes() -> None:
    found = titles()
    width = max(map(len, found), default=0)
    print(*(f"{name:{width}}  {title}" for name, title in found.items()), sep="\n")


def apply(name: str) -> None:
    changes = write_recipe(name, Paths.params)
    print("\n".join(map(str, changes)) or f"{Paths.params} holds all of it already")


if __name__ == "__main__":
    main()
