"""Numbers that the arithmetic cannot hold and addresses that lead nowhere are answered before work starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.spec import override
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.reading import load_params, params_from
from pipeline.params.rules import check_rules
from pipeline.report.record import nested
from stages.check import try_network


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithms.primal_dual.eta_w": 1e39}, r"eta_w = 1e\+39 .*3e\+38.*64-true"),
        ({"algorithms.primal_dual.eta_x": 1e-60}, r"eta_x = 1e-60 .*1e-38"),
        ({"algorithms.primal_dual.dual_radius": 1e300}, r"dual_radius = 1e\+300 .*Fix"),
        ({"federation.batch_size": 2**62}, r"batch_size = \d+ .*at most 2147483647"),
        ({"partition.lead.groups": [[2**31], [1]]}, r"groups = .*at most 2147483647"),
        ({"data.mirror": "http://[bad"}, r"data\.mirror = 'http://\[bad' .*http, https, file"),
        ({"data.mirror": "foo://"}, r"data\.mirror = 'foo://'"),
        ({"data.mirror": "~nosuchuser/x"}, r"data\.mirror = '~nosuchuser/x' .*no such user"),
        ({"tracking.uri": "ftp://x"}, r"tracking\.uri = 'ftp://x' .*sqlite"),
        ({"tracking.uri": "http://"}, r"tracking\.uri = 'http://'"),
        ({"tracking.uri": "http://me:secret@h:99999"}, r"tracking\.uri = 'http://\*\*\*@h:99999'"),
        ({"data.channels": True}, r"data\.channels = true .*auto, 1, 3"),
    ],
)
def test_it_is_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_rules(params_from(nested(settings), "params.yaml"))


def test_double_precision_and_the_toy_hold_more() -> None:
    for settings in ({"train.precision": "64-true"}, {"data.name": "toy"}):
        check_rules(override(Params(), {"algorithms.primal_dual.eta_w": 1e39, **settings}))
    for address in ("sqlite:///x.db", "postgresql+psycopg2://a:b@host:5432/c", "https://host/path", "runs", None):
        check_rules(override(Params(), {"tracking.uri": address}))
    check_rules(override(Params(), {"data.mirror": "file:///data"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 2026-02-30", r"not valid YAML: day is out of range"),
        ("seed: !!int abc", r"not valid YAML: .*abc"),
        ("seed: 1\x07", r"not valid YAML: special characters"),
        ("data: &a {name: *a}", r"nested too deeply, or an anchor contains itself"),
        ("? [1, 2]\n: 3", r"the key .* is not a text"),
        ("2026-01-01: 3", r"the key .* is not a text"),
        ("seed: " + "[" * 500, r"nested in up to 500 brackets"),
        ("seed: " + "9" * 5000, r"not valid YAML: .*4300 digits|whole number of more than 18 digits"),
        ('tracking: {experiment: "\\ud800"}', r"Fix"),
        ("seed: 0 # " + "x" * 1_000_001, r"characters"),
    ],
)
def test_odd_yaml_is_answered(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load_params(tmp_path / "params.yaml")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model.name": "networks.no_such.network"}, r"model\.name = 'networks\.no_such\.network': importing"),
        ({"model.name": "mlp", "model.options": {"heigth": 3}}, r"model\.options"),
        ({"model.name": "no.such", "data.name": "table", "data.path": "t.csv", "data.label": "y"}, r"model\.name"),
    ],
)
def test_check_tries_the_network(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        try_network(override(Params(), settings))
    try_network(Params())
