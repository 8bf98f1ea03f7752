"""The real thing: `dvc repro` in a copy of the project, as a user has it after `make setup`.

The tests of this file share one project and run in order: each starts from what the one before has left.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("pipeline"),
    pytest.mark.skipif(not (BIN / "dvc").exists(), reason="needs dvc in the environment"),
]

ROUNDS = 24


class Project:
    """A copy of the work tree with its own git history, tracker and DVC cache; runs commands and keeps their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if name not in ("dvc.lock",) and not name.startswith("results/") and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(BIN.parent)
        self.edit("rounds: 500", f"rounds: {ROUNDS}", "eval_every: 25", "eval_every: 8")
        self.edit("checkpoint_every: 50", "checkpoint_every: 5", "name: lenet5", "name: linear")
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "copy"]):
            self.git(*command)

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True)

    def edit(self, *pairs: str) -> None:
        path = self.folder / "params.yaml"
        text = path.read_text()
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            assert old in text, old
            text = text.replace(old, new, 1)
        path.write_text(text)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "MLFLOW_", "PYTEST_"))}
        return kept | {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"} | more

    def dvc(self, *arguments: str, ok: bool = True, **more: str) -> str:
        done = subprocess.run(
            [str(BIN / "dvc"), *arguments],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=300,
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, output
        return output

    def ran(self, output: str) -> list[str]:
        """The stages that were run."""
        return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.folder / "results" / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def json(self, name: str) -> dict:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("a project", numbered=False))


def test_repro_leaves_every_file_of_the_contract(project):
    output = project.dvc("repro")
    assert project.ran(output) == ["check", "download", "partition", "train", "evaluate"]
    assert "test accuracy" in output
    metrics = project.json("results/metrics.json")
    expected = {"algorithm": "primal_dual", "problem": "client_weighting", "dataset": "digits", "seed": 0}
    assert metrics | expected | {"rounds": ROUNDS} == metrics
    for name in ("test_accuracy", "selection_accuracy", "clean_weight", "max_noise_weight"):
        assert 0 <= metrics[name] <= 1
    assert 0 <= metrics["weight_error"] <= 2
    assert metrics["test_loss"] > 0
    weights = project.rows("client_weights.csv")
    assert list(weights[0]) == ["client", "kind", "labels", "samples", "weight"]
    assert [row["kind"] for row in weights] == ["clean"] * 3 + ["noisy"] * 7
    assert weights[0]["labels"] == "0 1 2 3 4"
    assert sum(float(row["weight"]) for row in weights) == pytest.approx(1, abs=1e-5)
    assert metrics["clean_weight"] == pytest.approx(sum(float(row["weight"]) for row in weights[:3]), abs=1e-6)
    history = project.rows("history.csv")
    assert [int(row["round"]) for row in history] == list(range(ROUNDS + 1))
    assert float(history[-1]["test_accuracy"]) == pytest.approx(metrics["test_accuracy"], abs=1e-6)
    for name in ("client_weights", "final_weights", "accuracy_and_loss", "partition", "confusion_matrix"):
        assert (project.folder / "results" / "plots" / f"{name}.png").stat().st_size > 5000, name
    assert {"tracking_uri", "experiment", "run_id"} <= set(project.json("results/mlflow_run.json"))


def test_a_second_repro_has_nothing_to_do(project):
    assert "up to date" in project.dvc("repro")


def test_the_tracker_tells_the_story(project):
    """Parameters, metrics, weights, pictures, lineage and a model that one line loads."""
    script = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, numpy
info = json.load(open("results/mlflow_run.json"))
client = mlflow.MlflowClient(info["tracking_uri"])
mlflow.set_tracking_uri(info["tracking_uri"])
run = client.get_run(info["run_id"])
model = run.outputs.model_outputs[0].model_id
answer = mlflow.pyfunc.load_model(f"models:/{model}").predict(numpy.zeros((3, 1, 28, 28), dtype=numpy.float32))
points = client.get_metric_history(info["run_id"], "client_weight/00")
print(json.dumps({
    "status": run.info.status, "params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags,
    "shape": list(answer.shape), "steps": [p.step for p in points],
    "files": [a.path for a in client.list_artifacts(info["run_id"])],
    "plots": [a.path for a in client.list_artifacts(info["run_id"], "plots")],
    "dataset": run.inputs.dataset_inputs[0].dataset.name,
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    run = json.loads(done.stdout.splitlines()[-1])
    metrics = project.json("results/metrics.json")
    assert run["status"] == "FINISHED"
    assert run["params"]["algorithms.primal_dual.gamma"] == "4.0"
    assert run["params"]["federation.batch_size"] == "32"
    assert not any(name.startswith(("tracking", "partition.dirichlet")) for name in run["params"])
    assert run["metrics"]["test_accuracy"] == pytest.approx(metrics["test_accuracy"])
    assert run["steps"] == list(range(ROUNDS + 1))
    assert {"data_hash", "partition_hash", "mlflow.source.git.commit"} <= set(run["tags"])
    assert run["shape"] == [3, 10]
    assert run["dataset"] == "digits"
    assert any("client_weights" in name for name in run["files"])
    assert any(name.endswith("client_weights.png") for name in run["plots"])


@pytest.mark.parametrize(
    ("pair", "stages"),
    [
        (
            ("concentration: 0.1", "concentration: 0.2", "fedbilevel #", "other #", "mirror: null", "mirror: x"),
            ["check"],
        ),
        ((f"rounds: {ROUNDS}", "rounds: 12"), ["check", "train", "evaluate"]),
        (("noise_clients: 7", "noise_clients: 2"), ["check", "partition", "train", "evaluate"]),
    ],
)
def test_an_edit_reruns_what_it_must_and_nothing_else(project, pair, stages):
    project.edit(*pair)
    assert project.ran(project.dvc("repro")) == stages


def test_experiments_run_and_compare(project):
    project.git("add", "-A")
    project.git("commit", "-qm", "results")
    output = project.dvc("exp", "run", "-n", "gentle", "-S", "algorithms.primal_dual.gamma=1")
    assert project.ran(output) == ["check", "train", "evaluate"]
    table = project.dvc("exp", "show", "--csv")
    (line,) = [row for row in csv.DictReader(table.splitlines()) if row["Experiment"] == "gentle"]
    assert float(line["algorithms.primal_dual.gamma"]) == 1
    assert (
        float(
            line[
                "results/metrics.json:test_accuracy"
                if "results/metrics.json:test_accuracy" in line
                else "test_accuracy"
            ]
        )
        > 0
    )
    project.git("checkout", "-q", "--", "params.yaml")


def test_a_killed_training_goes_on_where_it_was_saved(project):
    """kill -9 of everything in the middle of train, then a plain `dvc repro`."""
    project.edit("rounds: 12", "rounds: 400", "checkpoint_every: 5", "checkpoint_every: 10")
    process = subprocess.Popen(
        [str(BIN / "dvc"), "repro"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    resume, deadline = project.folder / ".resume", time.monotonic() + 120
    while time.monotonic() < deadline:
        saved = list(resume.glob("*/history.csv"))
        if saved and len(saved[0].read_text().splitlines()) > 40:
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (project.folder / "results" / "history.csv").exists()
    output = project.dvc("repro")
    assert "going on from the last save" in output
    resumed = project.rows("history.csv")
    assert [int(row["round"]) for row in resumed] == list(range(401))
    assert not list(resume.glob("*/state.ckpt"))
    output = project.dvc("repro", "--force", "--single-item", "train")
    assert "starting afresh" in output
    whole = project.rows("history.csv")
    for a, b in zip(resumed, whole, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_an_unreachable_tracker_costs_a_warning(project):
    project.edit("rounds: 400", "rounds: 10")
    start = time.monotonic()
    output = project.dvc("repro", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert time.monotonic() - start < 200
    assert "make publish" in output
    assert "Traceback" not in output
    assert project.json("results/mlflow_run.json")["run_id"] is None
    assert project.json("results/metrics.json")["rounds"] == 10
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.tracking"],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert project.json("results/mlflow_run.json")["run_id"]
    assert "up to date" in project.dvc("repro")


@pytest.mark.parametrize(
    ("pair", "parts"),
    [
        (("rounds: 10", "roundz: 10"), ["train.roundz", "Did you mean train.rounds?"]),
        (("algorithm: primal_dual", "algorithm: primal"), ["algorithm", "primal_dual"]),
        (("validation_per_label: auto", "validation_per_label: 500"), ["partition.validation_per_label", "500"]),
        (("name: linear", "name: no.such.network"), ["model.name", "no.such.network"]),
        (("eta_w: 0.1", "eta_w: 1.0e+38"), ["no longer finite", "eta_w", "recorded"]),
    ],
)
def test_mistakes_are_answered_in_a_few_lines(project, pair, parts):
    before = (project.folder / "params.yaml").read_text()
    project.edit(*pair)
    output = project.dvc("repro", ok=False)
    (project.folder / "params.yaml").write_text(before)
    complaint = [line for line in output.splitlines() if line.startswith("error:")]
    assert complaint, output
    for part in parts:
        assert part in output
    assert "Traceback" not in output


def test_damaged_data_is_named_and_mended_by_the_next_repro(project):
    project.dvc("repro")
    labels = project.folder / "data" / "raw" / "digits" / "train_labels.npy"
    labels.chmod(0o644)
    content = bytearray(labels.read_bytes())
    content[-8] ^= 1
    labels.unlink()
    labels.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "stages.partition"],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "train_labels.npy is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    output = project.dvc("repro")
    assert "download" in project.ran(output) or "checking out outputs" in output


def test_no_stage_imports_what_it_does_not_need():
    """The cheap stages start without torch; the mathematical core without Lightning, tracker, DVC or pydantic."""
    script = "import sys, importlib; [importlib.import_module(m) for m in sys.argv[2:]];"
    script += "print([m for m in sys.argv[1].split(',') if m in sys.modules])"
    cases = {
        ("stages.check", "stages.download", "stages.partition"): "torch,mlflow,dvc,matplotlib,torchvision,sklearn",
        (
            "pipeline.algorithms",
            "pipeline.oracles",
            "pipeline.models",
            "pipeline.problems.toy",
            "pipeline.problems.client_weighting",
        ): "pytorch_lightning,mlflow,dvc,pydantic,ruamel,matplotlib,torchvision,sklearn,pandas",
        ("pipeline.training.run",): "mlflow,dvc,pydantic,ruamel,sklearn,pandas",
        ("stages.train",): "dvc,sklearn",
        ("stages.evaluate",): "dvc,sklearn,pytorch_lightning",
    }
    for modules, unwanted in cases.items():
        done = subprocess.run(
            [sys.executable, "-c", script, unwanted, *modules], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]", modules
