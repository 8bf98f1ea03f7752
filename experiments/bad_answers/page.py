"""The page of a profile: accuracy with the bad clients against without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.bad_answers.params import Profile, Study
from experiments.bad_answers.plan import Cell


def write_page(study: Study, profile: Profile, cells: Sequence[Cell], results: Path, out: Path) -> Path:
    """README.md in `out`."""
    raise NotImplementedError
