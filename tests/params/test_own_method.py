"""A method of one's own by its dotted path: its settings in params.yaml, and an answer to each way to get it wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.config import own_code
from pipeline.config.spec import dotted
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS, Cost, Step
from pipeline.methods.base import advance
from pipeline.methods.client_weighting.afl import Afl
from pipeline.params import tree
from pipeline.params.decides import params_in_use
from pipeline.params.reading import load_params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules
from pipeline.problems.toy import Toy
from tests.core.helpers import make_context

OWN = """
from dataclasses import dataclass, replace
from pipeline.config.spec import Section, param
from pipeline.methods.client_weighting import ServerOptions
from pipeline.methods.client_weighting.afl import AFL

@dataclass(frozen=True)
class Options(ServerOptions):
    eta_w: float = param(0.2, "step size", gt=0)
    eta_x: float = param(0.1, "step size", gt=0)
    kind: str = param("a", "a word")

@dataclass(frozen=True)
class Bare(Section):
    eta_w: float = 0.1

@dataclass(frozen=True, kw_only=True)
class NoDefault(ServerOptions):
    eta_w: float

OWN = replace(AFL, name="own", summary="a copy", options=Options)
AS_SHIPPED = replace(OWN, name="afl")
NO_KEY = replace(OWN, name="my own")
BARE = replace(OWN, options=Bare)
NO_DEFAULT = replace(OWN, options=NoDefault)
NO_FAMILY = replace(OWN, family="weighting")
NO_STEP = replace(OWN, step=lambda state: None)
NUMBER = 3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_methods").mkdir()
    (tmp_path / "own_methods" / "__init__.py").write_text("")
    (tmp_path / "own_methods" / "copy.py").write_text(OWN)
    (tmp_path / "own_methods" / "broken.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    tree.params_of.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "own_methods"]:
        del sys.modules[name]


def written(folder: Path, text: str) -> Path:
    (folder / "params.yaml").write_text(text)
    return folder / "params.yaml"


def test_its_hyper_parameters_are_a_section_of_their_own(project):
    text = "algorithm: own_methods.copy.OWN\nalgorithms:\n  own:\n    eta_w: 0.5\n"
    params = load_params(written(project, text))
    check_rules(params)
    params = resolve(params)
    assert (params.method.name, params.problem) == ("own", "client_weighting")
    assert (params.hyper.eta_w, params.hyper.eta_x, params.hyper.kind) == (0.5, 0.1, "a")
    used = params_in_use(dotted(params))
    assert used["algorithms.own.eta_w"] == 0.5
    assert {name.split(".")[1] for name in used if name.startswith("algorithms.")} == {"own"}


def test_its_section_may_stay_where_another_method_is_in_use(project):
    text = "algorithm: afl\nalgorithms:\n  own:\n    eta_w: 0.5\n"
    assert load_params(written(project, text)).method is ALGORITHMS["afl"]
    with pytest.raises(UserError, match=r"algorithms\.primal_daul is not a known key\. Did you mean"):
        load_params(written(project, "algorithms:\n  primal_daul:\n    eta_w: 0.5\n"))


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("own_method.copy.OWN", ["importing 'own_method.copy' failed", "ModuleNotFoundError", "Fix: put the module"]),
        ("own_methods.broken.OWN", ["failed (ModuleNotFoundError: No module named 'no_such_library')"]),
        ("own_methods.copy.OWM", ["has no Algorithm 'OWM'", "Fix: write own_methods.copy.OWN"]),
        ("own_methods.copy.NUMBER", ["of type int, not Algorithm", "Fix: define it as an Algorithm(...)"]),
        ("own_methods.copy.Options", ["of type type, not Algorithm"]),
        ("own_methods.copy.AS_SHIPPED", ["its name 'afl' is taken by a shipped one", "Fix: give it another name"]),
        ("own_methods.copy.NO_KEY", ["'my own' cannot be a key"]),
        ("own_methods.copy.BARE", ["no dataclass derived from ServerOptions", "weighting_context.ServerOptions"]),
        ("own_methods.copy.NO_DEFAULT", ["eta_w", "give each of them a type and a default"]),
        ("own_methods.copy.NO_FAMILY", ["its family is 'weighting'", "such as WEIGHTING"]),
        ("own_methods.copy.NO_STEP", ["cannot be called with 2 arguments"]),
        ("own methods.copy.OWN", ["importing 'own methods.copy' failed"]),
    ],
)
def test_every_way_to_get_the_path_wrong_is_answered_in_a_line(project, path, parts):
    with pytest.raises(UserError) as caught:
        load_params(written(project, f"algorithm: {path}\n"))
    said = str(caught.value)
    assert all(part in said for part in [*parts, "Fix:"]), said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ("eta_v: 1", ["algorithms.own.eta_v is not a known key", "Did you mean algorithms.own.eta_"]),
        ("eta_w: much", ['algorithms.own.eta_w = "much"', "a number, greater than 0"]),
        ("eta_w: -1", ["algorithms.own.eta_w = -1", "greater than 0"]),
        ("kind: 3", ["algorithms.own.kind = 3", "a text"]),
    ],
)
def test_wrong_hyper_parameters_are_answered_as_a_shipped_methods(project, section, parts):
    with pytest.raises(UserError) as caught:
        load_params(written(project, f"algorithm: own_methods.copy.OWN\nalgorithms:\n  own:\n    {section}\n"))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (None, r"its step returned NoneType\. Fix: return a Step"),
        (Step({"v": torch.zeros(2)}, Cost()), r"its step moves 'v', none of w, x\. Fix: start it in init"),
        (Step({"x": torch.zeros(2)}, Cost()), r"the direction of 'x' is \[2\], the variable \[3\]\. Fix: "),
    ],
)
def test_a_step_that_is_none_is_answered_in_a_line(step, said):
    context = make_context(Afl(), Toy.generate(clients=3, seed=0))
    own = replace(ALGORITHMS["afl"], name="own", step=lambda state, context: step)
    with pytest.raises(UserError, match=f"algorithm own: {said}"):
        advance(own, own.init(context), context, lambda name, direction: None)


def test_it_fits_problems_as_its_family_does(project):
    params = load_params(written(project, "algorithm: own_methods.copy.OWN\nproblem: fair\n"))
    with pytest.raises(UserError, match=r"own_methods\.copy\.OWN does not fit problem: fair: it learns client weights"):
        check_rules(params)


def test_a_module_that_dvc_does_not_watch_is_named(project):
    load_params(written(project, "algorithm: own_methods.copy.OWN\n"))
    assert own_code.unwatched("own_methods.copy.OWN") == Path("own_methods/copy.py")
    assert [file.name for file in own_code.source_files("own_methods.copy.OWN")] == ["__init__.py", "copy.py"]


def test_an_edit_of_its_file_is_another_run(project):
    """The resume folder's name follows the code of a method of one's own."""
    from types import SimpleNamespace
    from typing import Any

    import torch

    from pipeline.training.run import run_fingerprint

    params = load_params(written(project, "algorithm: own_methods.copy.OWN\n"))
    task: Any = SimpleNamespace(data_hash="a", partition_hash="b", device=torch.device("cpu"))
    before = run_fingerprint(params, task)
    assert before == run_fingerprint(params, task)
    (project / "own_methods" / "copy.py").write_text(OWN + "\n# another\n")
    assert before != run_fingerprint(params, task)
