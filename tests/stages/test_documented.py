"""Every command of README and docs/ is run, page by page, in a project like its reader's: few rounds, a linear model.

`make test` runs what takes seconds, `make nightly` the commands that train too.
"""

from __future__ import annotations

import itertools
import re

import pytest

from tests.docs.pages import ROOT, blocks, commands_of, commands_within_sentences
from tests.nightly import NIGHTLY
from tests.stages.project import Project

NOT_RUN = {
    "git clone ": "the project is a clone",
    "cd fedbilevel": "the project is a clone",
    "make setup": "made the environment that runs this",
    "make check": ".ci/run",
    "make audit": ".ci/run; needs a network",
    "make docs": ".ci/run; needs Sphinx",
    "make test": "runs this",
    "make fuzz": "tests/fuzz, with more cases",
    "make nightly": "runs this",
    "make ui": "does not end",
    "make paper": "ten minutes and more: tests/experiments",
    "make experiments": "ten minutes and more: tests/experiments",
    ".venv/bin/python -m experiments primal_dual_weighting run full": "hours: tests/experiments",
    "make bench": "an hour: tests/benchmarks",
    "OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks": "minutes each: tests/benchmarks",
    ".venv/bin/python -m benchmarks": "minutes each: tests/benchmarks",
    "make federation-demo": "needs NVFlare: tests/federation",
    ".venv/bin/python -m pipeline.federation": "needs NVFlare: tests/federation",
    ".venv/bin/dvc exp run -S data.name=mnist": "downloads MNIST",
    ".venv/bin/python -m examples.heart_disease": "needs a file from elsewhere: tests/examples",
    ".venv/bin/python -m examples.cifar10": "needs files from elsewhere: tests/examples",
    ".venv/bin/python -m examples.schools": "needs a file from elsewhere: tests/examples",
    "mlflow models serve": "does not end: test_served.py",
    'PATH="$PWD/.venv/bin:$PATH" mlflow models serve': "does not end: test_served.py",
    "curl localhost:5001": "asks that server: test_served.py",
    ".venv/bin/torchrun --nnodes 2": "two machines; in two processes: test_processes.py",
    "#!/bin/bash\n#SBATCH": "needs Slurm",
    ".venv/bin/dvc queue start": "goes on in the background",
}
"""How the commands begin that are not run: why."""
INSTEAD = {
    r"^make sweep": "sed -i 's/^  seeds: \\[\\]/  seeds: [0, 1]/' params.yaml; make -o .venv/.installed sweep",
    r"^make ": "make -o .venv/.installed ",  # as it is where `make setup` has run
    r"train\.rounds=\d+": "train.rounds=4",
    r"train\.devices=8": "train.devices=2",
    r"/shared/dvc": "../storage",
    r"KEY=VALUE|seed=\.\.\.": "seed=1",
    r"STUDY plan PROFILE": "simfbo plan quick",
}
"""What a page leaves to its reader, or what would take long, and what stands for it here."""
LONG = re.compile(r"dvc exp run(?! --queue)|--force|make sweep|make recipe NAME|experiments STUDY")
"""Commands that `make nightly` alone runs: most take half a minute."""

PAGES = {
    page.relative_to(ROOT).as_posix(): [commands_of(block) for block in found]
    for page, found in itertools.groupby(blocks("bash", "sh"), key=lambda block: block.page)
}
WRITTEN = [command for page in PAGES.values() for block in page for command in block]
SENTENCES = [command for command in dict.fromkeys(commands_within_sentences()) if command not in WRITTEN]


def is_run(command: str) -> bool:
    return not command.startswith(tuple(NOT_RUN)) and (NIGHTLY or not LONG.search(command))


def run_block(project: Project, commands: list[str]) -> None:
    """In one shell, as a reader pastes it, from the committed settings."""
    project.git("checkout", "-q", "params.yaml")
    lines = [command for command in commands if is_run(command)]
    for (pattern, other), number in itertools.product(INSTEAD.items(), range(len(lines))):
        lines[number] = re.sub(pattern, lambda _, other=other: other, lines[number])
    done = project.run("bash", "-euxo", "pipefail", "-c", "\n".join(lines))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def clone(project: Project) -> Project:
    """With its results committed."""
    project.commit()
    return project


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if any(map(is_run, itertools.chain(*page)))])
def test_the_blocks_of_a_page_run(page: str, clone: Project) -> None:
    for block in PAGES[page]:
        if any(map(is_run, block)):
            run_block(clone, block)


@pytest.mark.slow
def test_commands_within_sentences_run(clone: Project) -> None:
    for command in sorted(filter(is_run, SENTENCES), key="make clean".__eq__):  # which leaves nothing to go on with
        run_block(clone, [command])


def test_what_stands_for_a_command_or_excuses_it_is_written_on_a_page() -> None:
    for begin in NOT_RUN:
        assert any(command.startswith(begin) for command in WRITTEN + SENTENCES), begin
    for pattern in INSTEAD:
        assert any(re.search(pattern, command) for command in WRITTEN + SENTENCES), pattern
