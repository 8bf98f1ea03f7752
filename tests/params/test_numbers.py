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
        ({"data.bad": ["b"]}, r"data\.bad = \['b'\] .*empty with data\.name: digits.*Fix"),
        (
            {"data.name": "arrays", "data.path": "x.npz", "data.bad": ["b"], "partition.scheme": "iid"},
            r"data\.bad = \['b'\] .*empty with partition\.scheme: iid.*Fix",
        ),
    ],
)
def test_it_is_refused_with_the_reason(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_rules(params_from(nested(settings), "params.yaml"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss.name": "squared"}, r"loss\.name = 'squared' .*auto or cross_entropy.*classes"),
        ({"subset.train": 3}, r"subset\.train = 3 .*at least 160: of each of 10 labels 15 samples for the server"),
        ({"subset.train": 3000}, r"subset\.train = 3000 .*at most 1438, the images of digits"),
        ({"validation_per_label": 100_000}, r"validation_per_label = 100000 .*at most 137 \(digits: a label has about"),
        ({"scheme": "label_noise", "label_noise.rates": []}, r"label_noise\.rates = \[\] .*one number in \[0, 1\]"),
        ({"lead.groups": [[0, 1], [1, 2]]}, r"lead\.groups = .*\(twice: 1\)"),
        ({"lead.groups": [[0, 12]]}, r"lead\.groups = .*\(no such label: 12\)"),
        ({"lead.groups": []}, r"lead\.groups = .*an empty list"),
        ({"lead.noise_samples": 1300}, r"lead\.noise_samples = 1300 .*at most 1288"),
        ({"lead.noise_clients": 10**9}, r"lead\.noise_clients = 1000000000 .*at most 1000000"),
        ({"scheme": "mixed", "mixed.duplicates": 10**9}, r"mixed\.duplicates = 1000000000 .*at most 1000000"),
        ({"scheme": "mixed", "mixed.bad_samples": 1300}, r"mixed\.bad_samples = 1300 .*at most 1288"),
        ({"scheme": "duplicates", "duplicates.copies": 10**9}, r"duplicates\.copies = 1000000000 .*at most 1000000"),
        ({"scheme": "duplicates", "duplicates.source": 3}, r"duplicates\.source = 3 .*0 to 2"),
        ({"scheme": "powerlaw", "powerlaw.clients": 10**9}, r"powerlaw\.clients = 1000000000 .*at most 644"),
        ({"scheme": "iid", "iid.clients": 1289}, r"iid\.clients = 1289 .*1 to 1288"),
        ({"scheme": "dirichlet", "dirichlet.clients": 1289}, r"dirichlet\.clients = 1289 .*1 to 1288"),
        ({"scheme": "dirichlet", "dirichlet.concentration": 1e308}, r"concentration = 1e\+308 .*at most 1000000"),
        ({"scheme": "balanced", "balanced.clients": 1289}, r"balanced\.clients = 1289 .*1 to 1288"),
        ({"scheme": "quantity", "quantity.min_samples": 129}, r"quantity\.min_samples = 129 .*at most 128"),
        ({"scheme": "shards", "shards.clients": 645}, r"shards\.clients x shards_per_client = 1290 .*at most 1288"),
        ({"scheme": "longtail", "longtail.clients": 1289}, r"longtail\.clients = 1289 .*1 to 1288"),
        ({"scheme": "cleaning", "cleaning.samples": 120}, r"cleaning\.samples = 120 .*at most 118"),
        ({"data.name": "glyphs", "algorithm": "fedbio_local", "few_shot.clients": 51}, r"few_shot\.clients = 51 "),
        ({"data.name": "toy", "problems.toy.clients": 10**9}, r"problems\.toy\.clients = 1000000000 .*at most 10000"),
        ({"train.replicates": 10**6}, r"train\.replicates = 1000000 .*at most 1000"),
        (
            {"algorithm": "fedavg", "robust.rule": "krum", "federation.participation": 0.2},
            r"robust\.rule = 'krum' needs at least 5 active clients .*about 2",
        ),
        (
            {"federation.sampling": "fixed", "federation.participation": 0.01},
            r"federation\.participation = 0\.01 .*at least 0\.05 for 10 clients",
        ),
    ],
)
def test_what_the_sizes_of_a_known_data_set_rule_out_is_refused_before_anything_is_read(
    settings: dict[str, Any], said: str
) -> None:
    rooms = ("data.", "loss.", "subset.", "train.", "problems.", "federation.", "robust.", "algorithm")
    named = {name if name.startswith(rooms) else f"partition.{name}": value for name, value in settings.items()}
    with pytest.raises(UserError, match=said):
        check_rules(params_from(nested(named), "params.yaml"))


def test_clients_that_no_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 2 * 10**9}[name])
    check_rules(override(Params(), {"partition.lead.noise_clients": 500_000}))
    with pytest.raises(UserError, match=r"noise_clients = 1000000: clients with 100,000,000 .*3\.2 GB.*has 2\.0\. Fix"):
        check_rules(override(Params(), {"partition.lead.noise_clients": 1_000_000}))


@pytest.mark.parametrize(
    "text",
    [
        "tracking: {uri: {password: hunter22}}",
        "tracking: {uri: [hunter22]}",
        "tracking: hunter22",
        "tracking: [{uri: hunter22}]",
        "data: {mirror: {user: me, password: hunter22}}",
        "data: {path: [hunter22]}",
        "data: [hunter22]",
        'tracking: {uri: "http://me:hunter22hunter22hunter22hunter22hunter22hunter22hunter22@h/\\0"}',
    ],
)
def test_a_password_of_the_wrong_kind_is_not_printed(text: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UserError, match="Fix") as caught:
        load_params(tmp_path / "params.yaml")
    assert "hunter22" not in str(caught.value)


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
        (
            "".join(
                f"{a}: &{a} [" + f"{b}," * 20 + "]\n"
                for a, b in zip("abcdef", ["1", "*a", "*b", "*c", "*d", "*e"], strict=True)
            ),
            r"more than 100,000 values, as anchors repeat them",
        ),
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
