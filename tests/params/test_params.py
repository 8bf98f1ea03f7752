"""params.yaml: complete, commented, in step with the dataclasses and the schema; every mistake gets a usable answer."""

import dataclasses
import re
from pathlib import Path

import pytest

from pipeline.config.spec import dotted, override
from pipeline.data.schemes import SCHEMES
from pipeline.data.sets.registry import DATASETS, data_for
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods import ALGORITHMS as METHODS
from pipeline.methods.consensus.common.local_context import LocalOptions
from pipeline.methods.registry import NAMES
from pipeline.models import MODELS
from pipeline.models import MODELS as MODEL_NAMES
from pipeline.params import Params
from pipeline.params.listing import ROOMS, methods_in, written
from pipeline.params.reading import load_params, schema
from pipeline.params.resolve import problem_in_use, switched
from pipeline.params.rules import check_rules

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "params.yaml").read_text()


def test_the_committed_file_holds_the_defaults():
    assert load_params(ROOT / "params.yaml") == Params()
    check_rules(Params())


def test_a_networks_options_go_to_dotted_names_and_back():
    """No record has their names."""
    chosen = override(Params(), {"model.options": {"hidden": [5], "deep": {"er": 1}}})
    assert dotted(chosen)["model.options.deep.er"] == 1
    assert override(Params(), dotted(chosen)).model == chosen.model


def test_what_a_person_edits_comes_first():
    """On two screens, before the line that says so: every short section, the lead partition and the lead method."""
    first = TEXT.split("the long tail")[0]
    assert len(first.splitlines()) <= 120
    keys = [line.split(":")[0] for line in first.splitlines() if re.match(r"[a-z]+:", line)]
    assert keys == [
        *("seed", "data", "partition", "model", "problem", "train", "federation", "tracking", "algorithm", "algorithms")
    ]
    assert "\n  lead:" in first
    assert re.findall(r"\n  (\w+): #[^\n]*\n    ", first.split("\nalgorithms:")[1]) == ["primal_dual"]


def test_every_key_is_commented():
    """A key of its own line, or the section it opens, carries a comment there."""
    top = {"problems:", "algorithms:", "data:", "partition:", "model:", "federation:", "train:"}
    bare = [
        line for line in TEXT.splitlines() if re.match(r"\s*\w+:", line) and "#" not in line and line.strip() not in top
    ]
    assert bare == []


def test_a_key_or_section_that_is_left_out_means_its_default(tmp_path):
    (tmp_path / "params.yaml").write_text("algorithm: sustain\nalgorithms:\n  sustain:\n    eta_w: 0.3\n")
    expected = override(Params(), {"algorithm": "sustain", "algorithms.sustain.eta_w": 0.3})
    assert load_params(tmp_path / "params.yaml") == expected


def test_what_is_derived_from_the_registries_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    for path, text in written().items():
        assert path.read_text() == text, f"{path}: .venv/bin/python -m pipeline.params"


def test_every_method_is_in_a_list():
    assert [method.name for room in ROOMS for method in methods_in(room)] == list(ALGORITHMS)


def test_the_schema_describes_every_key():
    definitions = schema()["$defs"]
    for definition in definitions.values():
        for name, entry in definition["properties"].items():
            assert entry.get("description"), f"{definition['title']}.{name}"


def test_every_method_has_a_section():
    assert [field.name for field in dataclasses.fields(Params().algorithms)] == list(ALGORITHMS)


def test_names_agree_with_the_rooms_that_serve_them():
    assert set(MODEL_NAMES) == set(MODELS)
    schemes = {f.name for f in dataclasses.fields(Params().partition)} & set(SCHEMES)
    assert schemes == set(SCHEMES)
    for name in [name for name, dataset in DATASETS.items() if dataset.info]:
        answer = answer_to("name: digits", f"name: {name}")
        if name in data_for("few_shot"):
            assert answer is not None
            assert "an algorithm for few_shot" in answer
        else:
            assert answer is None


def test_what_people_write_for_a_gpu_is_answered_with_gpu():
    assert "one of auto, cpu, gpu. Did you mean gpu?" in answer_to("accelerator: auto", "accelerator: cuda:0")


def test_names_are_listed_by_kind():
    said = answer_to("name: digits", "name: minst")
    assert "one of images: digits, " in said
    assert "; your own data (docs/own-data.md): folder, table, arrays; " in said
    said = answer_to("algorithm: primal_dual", "algorithm: primal_duel")
    assert "one of client weighting: primal_dual, " in said
    assert "; consensus: fedavg, " in said
    assert all(name in NAMES.listed for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"algorithm": "fedavg"}, "problem: auto = consensus. For client weights: problem: client_weighting."),
        ({"algorithm": "fedbio_local"}, "problem: auto = hyper_representation. Client weights are not learned."),
        ({"algorithm": "simfbo"}, None),
        ({"algorithm": "fedavg", "problem": "client_weighting"}, None),
        ({"algorithm": "fedavg", "data.name": "toy"}, None),
    ],
)
def test_a_method_that_switches_the_problem_says_so(settings, said):
    found = switched(override(Params(), settings))
    assert found is None if said is None else found.endswith(said)


def answer_to(old: str, new: str, path: Path | None = None) -> str | None:
    """The error message after that edit of params.yaml; None if all is well."""
    import tempfile

    assert old in TEXT
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "params.yaml"
        file.write_text(TEXT.replace(old, new, 1))
        try:
            check_rules(load_params(file))
        except UserError as error:
            return str(error)
    return None


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("rounds: 500", "roundz: 500", ["train.roundz is not a known key", "Did you mean train.rounds?"]),
        ("  rounds: 500", "  roun: 1\n  rounds: 500", ["train.roun", "Did you mean train.rounds?", "checkpoint_every"]),
        ("seed: 0", "zzz: 1\nseed: 0", ["zzz is not a known key", "at the top level", "remove it"]),
        ("rounds: 500", "rounds: many", ["train.rounds", '"many"', "a whole number, at least 1", "500"]),
        ("rounds: 500", 'rounds: "500"', ["train.rounds", '"500"', "a whole number"]),
        ("rounds: 500", "rounds: 0", ["train.rounds = 0", "at least 1"]),
        ("rounds: 500", "rounds: true", ["train.rounds = true", "a whole number"]),
        ("rounds: 500", "rounds: 2.5", ["train.rounds = 2.5", "a whole number"]),
        ("name: digits", "name: minst", ["data.name", '"minst"', "mnist, fashion-mnist", "Did you mean mnist?"]),
        ("participation: 1.0", "participation: 1.5", ["federation.participation = 1.5", "greater than 0", "at most 1"]),
        ("participation: 1.0", "participation: 0", ["federation.participation = 0", "greater than 0"]),
        ("algorithm: primal_dual", "algorithm: primaldual", ["algorithm", "primaldual", "Did you mean primal_dual?"]),
        ("eta_w: 0.4", "eta_w: -1", ["algorithms.primal_dual.eta_w = -1", "greater than 0", "0.4"]),
        ("eta_w: 0.4", "eta_w: .nan", ["algorithms.primal_dual.eta_w", "a number"]),
        ("eta_w: 0.4", "eta_w: .inf", ["algorithms.primal_dual.eta_w", "a number"]),
        ("eta_w: 0.4", "eta_w: 2026-01-01", ["algorithms.primal_dual.eta_w", "a number"]),
        ("seed: 0", "seed: -1", ["seed = -1", "at least 0", "below 2147483648"]),
        ("batch_size: auto #", "batch_size: atuo #", ["federation.batch_size", "auto", "Did you mean auto?"]),
        ("batch_size: auto #", "batch_size: 0 #", ["federation.batch_size = 0", "at least 1", "auto"]),
        ("groups: auto #", "groups: [0, 1] #", ["partition.lead.groups", "lists of whole numbers", "auto"]),
        ("scheme: auto", "scheme: dirichlett", ["partition.scheme", "Did you mean dirichlet?"]),
        ("name: auto", "name: lenet6", ["model.name", "lenet6", "Did you mean lenet5?", "dotted path"]),
        ("options: {}", "options: 3", ["model.options = 3", "a mapping"]),
        ("  iid: {clients: 10}", "  idd: {clients: 10}", ["partition.idd", "partition.iid"]),
        ("train:\n", "train: 5\nother:\n", ["train = 5", "a section of keys"]),
        ("seed: 0", "seed: [0", ["line", "not valid YAML"]),
        ("seed: 0", "\tseed: 0", ["not valid YAML"]),
        ("seed: 0", "seed: 0\nseed: 1", ["not valid YAML", "duplicate"]),
        ("devices: 1", "devices: 0", ["train.devices = 0", "at least 1"]),
        ("precision: 32-true", "precision: 16", ["train.precision = 16", "32-true, tf32, bf16-mixed, 64-true"]),
    ],
)
def test_every_mistake_gets_key_value_allowed_and_fix(old, new, parts):
    answer = answer_to(old, new)
    assert answer is not None
    for part in parts:
        assert part in answer
    assert "Fix:" in answer or "Did you mean" in answer
    assert len(answer.splitlines()) <= 4


def test_settings_that_do_not_go_together_get_an_answer():
    """rfho's steps must be plain ones, when it is in use; the exact gradient is for small models."""
    other = TEXT.split("\n  rfho:", 1)
    assert other[1].count("optimizer: sgd") >= 1
    text = other[0] + "\n  rfho:" + other[1].replace("optimizer: sgd", "optimizer: adam", 1)
    assert answer_to(TEXT, text) is None
    answer = answer_to(TEXT, text.replace("\nalgorithm: primal_dual", "\nalgorithm: rfho"))
    for part in ("algorithms.rfho.optimizer", "adam", "sgd", "plain steps", "Fix:"):
        assert part in answer
    clipped = TEXT.replace("clip_norm: 0.0 # only 0", "clip_norm: 5.0 # only 0")
    assert answer_to(TEXT, clipped) is None
    assert "algorithms.rfho.clip_norm" in answer_to(TEXT, clipped.replace("algorithm: primal_dual", "algorithm: rfho"))
    for precision in ("tf32", "bf16-mixed"):
        with pytest.raises(UserError, match=f"train.precision = '{precision}'.*no network.*Fix: set 32-true"):
            check_rules(override(Params(), {"data.name": "toy", "train.precision": precision}))
    answer = answer_to("\nalgorithm: primal_dual", "\nalgorithm: exact_gradient")
    for part in ("exact_gradient", "2000", "lenet5", "digits", "Fix:"):
        assert part in answer


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            {"algorithm": "a_fedpd", "algorithms.a_fedpd.optimizer": "adam"},
            ["algorithms.a_fedpd.optimizer", "sgd", "duals"],
        ),
        ({"algorithm": "feddyn", "federation.aggregation": "samples"}, ["federation.aggregation", "uniform", "duals"]),
        (
            {"algorithm": "scaffold", "federation.aggregation": "samples"},
            ["federation.aggregation", "uniform", "control variates", "choose fedavg"],
        ),
        (
            {"algorithm": "fedavg", "problem": "client_weighting", "algorithms.fedavg.optimizer": "adam"},
            ["algorithms.fedavg.optimizer = 'adam'", "learned client weights", "weights.mode: plain"],
        ),
        (
            {
                "algorithm": "fedavg",
                "problem": "client_weighting",
                "algorithms.fedavg.optimizer": "adam",
                "algorithms.fedavg.weights.mode": "oracle",
                "algorithms.fedavg.weights.server_steps": True,
            },
            ["algorithms.fedavg.optimizer = 'adam'", "server_steps: true", "server_steps: false"],
        ),
        (
            {"algorithm": "fedavg", "algorithms.fedavg.weights.mode": "oracle"},
            ["problem = 'auto'", "client_weighting", "weights.mode"],
        ),
        (
            {"algorithm": "fedsam", "problem": "consensus", "algorithms.fedsam.weights.server_steps": True},
            ["problem = 'consensus'", "client_weighting", "server_steps"],
        ),
        (
            {"algorithm": "fedadmm", "algorithms.fedadmm.eta": 0.1, "algorithms.fedadmm.rho": 20.0},
            ["algorithms.fedadmm.rho = 20.0", "less than 19.999", "algorithms.fedadmm.eta"],
        ),
        (
            {"algorithm": "fedprox", "algorithms.fedprox.weight_decay": 25.0},
            ["algorithms.fedprox.weight_decay = 25.0", "less than 19.9 "],
        ),
        (
            {"algorithm": "scaffold", "algorithms.scaffold.optimizer": "adam"},
            ["algorithms.scaffold.eta_g = 1.0", "at most 0.3 with adam", "0.01"],
        ),
        (
            {"algorithm": "scaffold", "robust.rule": "krum"},
            ["robust.rule = 'krum'", "mean for scaffold", "control variates belong to the plain mean", "choose fedavg"],
        ),
        (
            {"algorithm": "primal_dual", "robust.rule": "median"},
            ["robust.rule = 'median'", "mean for primal_dual", "no mean of models", "choose fedavg"],
        ),
        (
            {"algorithm": "fedprox", "problem": "client_weighting", "robust.rule": "clipped"},
            ["robust.rule = 'clipped'", "weights.mode: learned", "weighted mean", "weights.mode to plain"],
        ),
        (
            {"algorithm": "fedcm", "federation.aggregation": "samples", "robust.rule": "trimmed_mean"},
            ["federation.aggregation = 'samples'", "uniform", "counts every client once", "clipped"],
        ),
        ({"algorithm": "fedpd", "federation.participation": 0.9}, ["federation.participation = 0.9", "1.0", "a_fedpd"]),
        ({"algorithm": "fedavg", "data.name": "toy"}, ["fedavg", "problem: toy", "primal_dual"]),
        (
            {"algorithm": "scaffold", "problem": "client_weighting"},
            ["scaffold", "client_weighting", "control variates", "problem: consensus"],
        ),
        (
            {"algorithm": "a_fedpd", "problem": "client_weighting"},
            ["a_fedpd", "client_weighting", "duals", "problem: consensus"],
        ),
        (
            {"algorithm": "primal_dual", "problem": "consensus"},
            ["primal_dual", "problem: consensus", "problem: client_weighting"],
        ),
        ({"algorithm": "fedavg", "problem": "toy"}, ["problem: toy", "data.name: digits", "problem: auto"]),
    ],
)
def test_methods_with_local_steps_are_refused_with_the_reason(settings, parts):
    with pytest.raises(UserError) as caught:
        check_rules(override(Params(), settings))
    for part in (*parts, "Fix:"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"train\.replicates = 1 is not allowed.*0 or at least 2.*Fix"),
        ({"train.replicates": 2, "problem": "fair", "algorithm": "simfbo"}, r"0 for problem: fair.*Fix"),
        ({"train.replicates": 2, "data.name": "toy"}, r"0 for problem: toy.*Fix"),
    ],
)
def test_replicates_that_say_nothing_are_refused(settings, said):
    with pytest.raises(UserError, match=said):
        check_rules(override(Params(), {"train.replicates": 1} | settings))
    check_rules(override(Params(), {"train.replicates": 2}))


def test_what_goes_together_is_accepted():
    for settings in (
        {"algorithm": "fedavg", "problem": "client_weighting"},
        {
            "algorithm": "fedavg",
            "problem": "client_weighting",
            "algorithms.fedavg.optimizer": "adam",
            "algorithms.fedavg.eta_g": 0.01,
            "algorithms.fedavg.weights.mode": "oracle",
        },
        {
            "algorithm": "fedavg",
            "federation.aggregation": "samples",
            "algorithms.fedavg.optimizer": "adagrad",
            "algorithms.fedavg.eta_g": 0.3,
        },
        {"algorithm": "fedavg", "federation.aggregation": "samples", "robust.rule": "clipped"},
        {
            "algorithm": "fedsam",
            "problem": "client_weighting",
            "algorithms.fedsam.weights.mode": "plain",
            "robust.rule": "krum",
        },
        {"algorithm": "fedadmm", "algorithms.fedadmm.eta": 0.1, "algorithms.fedadmm.rho": 19.9},
        {"algorithm": "fedprox", "algorithms.fedprox.local_steps": 1, "algorithms.fedprox.rho": 25.0},
        {"algorithm": "fedpd"},
        {"algorithm": "a_fedpd_sam", "federation.participation": 0.1, "problem": "consensus"},
    ):
        check_rules(override(Params(), settings))


def test_methods_with_local_steps_are_made_for_consensus():
    for name in METHODS:
        if isinstance(getattr(Params().algorithms, name), LocalOptions):
            assert problem_in_use(override(Params(), {"algorithm": name})) == "consensus"


def test_numbers_in_scientific_form_are_numbers():
    assert answer_to("eta_w: 0.4", "eta_w: 1e-3") is None
    assert answer_to("eta_w: 0.4", "eta_w: 1") is None


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"params\.yaml does not exist.*Fix"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("")
    with pytest.raises(UserError, match="must hold `key: value` lines"):
        load_params(tmp_path / "params.yaml")


def test_dotted_names():
    names = dotted(Params())
    assert names["algorithms.primal_dual.gamma"] == 4.0
    assert names["partition.label_noise.rates"] == [0.0, 0.0, 0.0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.8, 1.0]
    assert names["model.options"] == {}
