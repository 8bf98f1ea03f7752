"""What the command lines of the experiments have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from pipeline.command import answering


def run(parser: argparse.ArgumentParser, perform: Callable[[argparse.Namespace], None]) -> None:
    """Parse what was typed, with the options that all have, and perform it; mistakes and Ctrl-C end in a plain line."""
    parser.add_argument("--only", default="", help="run only the cells whose name contains this")
    parser.add_argument("--workers", type=int, help="processes; default: one per core, or one for a GPU")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a mistake in params.yaml too")
    arguments = parser.parse_args()
    try:
        answering(lambda: perform(arguments))
    except KeyboardInterrupt:
        print("stopped; what is finished is kept, and the next call goes on.", file=sys.stderr)
        sys.exit(130)
