"""params.yaml as text and as a tree: an answer, or exactly what was written; never a default in its place."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.spec import dotted
from pipeline.params import Params
from pipeline.params.decides import STAGES, of_stage
from pipeline.params.reading import load_params, params_from
from pipeline.params.resolve import foreseen
from pipeline.params.rules import check_rules
from pipeline.sweep.plan import check_values
from tests.fuzz.common import answer_to, cases

ODD = (
    *("2026-02-30", "2026-01-01", "!!int abc", "!!float x", "!!binary '?'", "!!python/object:os.system x", "!!set {a}"),
    *("&a [*a]", "&a {b: *a}", "*nowhere", "? [1, 2]", "1" * 5000, "-" + "9" * 4400, "1e999", "0x" + "f" * 5000),
    *("\x00", "\x07", "\ud800", "\ufeff", '"\\ud800"', '"\\x00"', "[" * 2000, "{a: " * 500, "'", '"', "|", ">", "%"),
    *(".nan", "-.inf", "1e39", "1e308", "2.0e+38", "9223372036854775808", "-1", "0", "~", "", "null", "yes", "1_000"),
    *("1000000000000", "true", "[]", "{}", "auto", "all", "a.b", "no.such.thing", "pipeline.params.Params", "../x"),
    *("foo://", "http://[bad", "~nosuchuser/x", "ftp://x", "\t", "!x y", "<<: {a: 1}", "{<<: 1}", "12:30:45", "0o9"),
)
"""What people, editors and other programs have written where a value should stand."""
KEYS = sorted(dotted(Params()))
BASE = """\
seed: 3
data: {name: digits}
train:
  rounds: 100 # a comment
  eval_every: 10
algorithm: sustain
algorithms:
  sustain: {eta_w: 0.3}
partition: {scheme: dirichlet, dirichlet: {clients: 5}}
"""


def examined(params: Params) -> Params:
    """As `stages.check` does: rules, every `auto`, and what decides each stage."""
    check_rules(params)
    resolved = foreseen(params)
    for stage in STAGES:
        of_stage(resolved, stage)
    return params


@st.composite
def edited(draw: st.DrawFn) -> bytes:
    """The text after a few edits: of characters, of lines, of values."""
    text = draw(st.sampled_from([BASE, "seed: 0\n", "", "train:\n  rounds: 5\n"]))
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["value", "line", "noise", "key", "bytes"]))
        place = draw(st.integers(0, max(0, len(lines) - 1)))
        odd = draw(st.sampled_from(ODD))
        if kind == "value":
            key = lines[place].partition(":")[0] if ":" in lines[place] else "seed"
            lines[place] = f"{key}: {odd}"
        elif kind == "line":
            lines.insert(place, draw(st.text(max_size=30)))
        elif kind == "key":
            lines.insert(place, f"{odd}: {draw(st.sampled_from(ODD))}")
        elif kind == "noise":
            line = lines[place]
            at = draw(st.integers(0, len(line)))
            lines[place] = line[:at] + draw(st.text(max_size=5)) + line[at + draw(st.integers(0, 3)) :]
        else:
            return "\n".join(lines).encode("utf-8", "surrogatepass") + draw(st.binary(max_size=8))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@cases(0.35)
@given(content=edited())
def test_any_text_is_read_or_answered(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "params.yaml"
    path.write_bytes(content)
    answer_to(lambda: examined(load_params(path)))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 2, 10**6, 10**12, 2**31, 2**63, 1e39, 1e308, -1.0, 5e-324, math.nan, math.inf]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["auto", "all", "toy", "mnist", "glyphs", "few_shot", "fedavg", "rfho", "fair", "a.b", "\ud800"]),
    st.lists(st.one_of(st.integers(-2, 12), st.floats(), st.text(max_size=4)), max_size=4),
    st.lists(st.lists(st.integers(-1, 11), max_size=4), max_size=4),
    st.dictionaries(st.text(max_size=6), st.integers(), max_size=3),
)


@cases(0.35)
@given(settings=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=5))
def test_any_tree_is_refused_or_kept_as_it_is(settings: dict[str, Any]) -> None:
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        place = tree
        *rooms, last = name.split(".")
        for room in rooms:
            place = place.setdefault(room, {})
        place[last] = value
    found = answer_to(lambda: examined(params_from(tree, "params.yaml")))
    if found is not None:
        kept = dotted(found)
        for name, value in settings.items():
            if not isinstance(value, dict):
                assert kept[name] == value, name
                assert isinstance(kept[name], bool) == isinstance(value, bool), name


def test_every_odd_value_is_answered_at_every_kind_of_key(tmp_path: Path) -> None:
    """A whole number, a number, a text, a list, a section: each with a random fifth of the odd values."""
    chosen = random.Random(0)
    for key in ("seed", "algorithms.primal_dual.eta_w", "tracking.uri", "partition.lead.groups", "train"):
        for odd in chosen.sample(ODD, len(ODD) // 5):
            *rooms, last = key.split(".")
            text = (
                "".join(f"{'  ' * i}{room}:\n" for i, room in enumerate(rooms)) + "  " * len(rooms) + f"{last}: {odd}\n"
            )
            (tmp_path / "params.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
            answer_to(lambda: examined(load_params(tmp_path / "params.yaml")))


@pytest.mark.parametrize(
    "value", ["a" * 5000, [0] * 5000, {"a": "b" * 5000}, [[[]] * 2000]], ids=["text", "list", "section", "nested"]
)
@pytest.mark.parametrize("key", ["algorithm", "train.rounds", "train", "sweep.values.nope", "algorithms.fedavg.eta"])
def test_a_huge_value_is_not_repeated_whole(key: str, value: Any) -> None:
    tree: Any = value
    for room in reversed(key.split(".")):
        tree = {room: tree}

    def read() -> None:
        params = params_from(tree, "params.yaml")
        check_values(params)
        examined(params)
        raise AssertionError("accepted")

    answer_to(read)
