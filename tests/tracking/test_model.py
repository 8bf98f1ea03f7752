"""The served model takes what the user has, is loaded by one MLflow line and answers as the trained network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.config.sections import Tracking
from pipeline.tracking.model import save_model
from pipeline.tracking.publish import publish
from pipeline.tracking.request_forms import Outputs, raw_images
from pipeline.tracking.store import connect
from tests.report.synthetic import Synthetic

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CLASSES = ["Ä <b>", "two words", "3"]


def grey() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 7 * 7, 3)
    )


def colour() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


class Moody(nn.Module):
    """Its way depends on the data: torch.export refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(14 * 14, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.layer(images.flatten(1))
        return logits if bool(logits.mean() > 0) else -logits


def raw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_images(network: nn.Module, folder: Path, channels: int = 1, pickled: bool = False) -> None:
    example = raw((2, 14, 14, channels))
    save_model(network, folder, lambda: raw_images(example), Outputs("probabilities", CLASSES), pickled)


def loaded(folder: Path):
    import mlflow

    return mlflow.pyfunc.load_model(str(folder))


@pytest.mark.parametrize(
    ("network", "channels"), [(grey(), 1), (colour().double(), 3), (Moody(), 1)], ids=["grey", "colour", "pickled"]
)
def test_it_answers_as_the_network_does(tmp_path: Path, network: nn.Module, channels: int) -> None:
    save_images(network, tmp_path / "mlflow", channels, pickled=isinstance(network, Moody))
    assert [p.name for p in tmp_path.iterdir()] == ["mlflow"]
    model = loaded(tmp_path / "mlflow")
    for batch in (1, 7):
        images = raw((batch, 14, 14, channels), seed=batch)
        with torch.no_grad():
            logits = network.float()(torch.tensor(images).permute(0, 3, 1, 2) / 255)
        for form in (images, (images / 255).astype(np.float32), images / 255, list(images), np.moveaxis(images, 3, 1)):
            answers = model.predict(np.asarray(form))
            assert list(answers.columns) == CLASSES
            np.testing.assert_allclose(answers, logits.softmax(1), rtol=1e-4, atol=1e-5)


def test_no_pickle_is_written_unless_it_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(Moody(), tmp_path / "mlflow")
    assert [p.name for p in (tmp_path / "mlflow").iterdir()] == ["note.txt"]
    assert "Fix: a forward without branches on data; or tracking.pickle: true" in capsys.readouterr().err


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: str, **_: object) -> None:
        Path(path).mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlflow.pyfunc.save_model", half)
    with pytest.raises(OSError, match="No space"):
        save_images(grey(), tmp_path / "mlflow")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("served") / "mlflow"
    save_images(grey(), folder)
    return loaded(folder)


def test_images_of_any_size_and_colour(served) -> None:
    flat = np.full((1, 20, 31), 102, dtype=np.uint8)  # the same grey everywhere: resizing changes nothing
    expected = served.predict(np.full((1, 14, 14, 1), 0.4))
    for image in (flat, flat[..., None].repeat(3, 3), flat[..., None].repeat(4, 3), flat[:, :7, :5]):
        np.testing.assert_allclose(served.predict(image), expected, atol=1e-5)
    several = np.empty(2, dtype=object)
    several[:] = [raw((40, 30, 3)), raw((9, 9))]
    both = served.predict(several)
    for i in range(2):
        np.testing.assert_allclose(both.iloc[[i]], served.predict(several[i : i + 1]), rtol=1e-5)
    np.testing.assert_allclose(both.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.full((1, 5, 5, 1), 1.5), "1.5 to 1.5; whole numbers lie in 0..255, floats in"),
        (np.full((1, 5, 5, 1), 300), "300 to 300"),
        (np.full((1, 5, 5, 1), np.nan), "not a finite number"),
        (np.zeros((1, 5, 5, 7)), r"shape \[5, 5, 7\]; send \[H, W, C\]"),
    ],
)
def test_what_is_no_image_is_refused_in_a_line(served, image: np.ndarray, message: str) -> None:
    with pytest.raises(Exception, match=message):
        served.predict(image)


def test_a_request_is_answered(served, tmp_path: Path) -> None:
    """As `mlflow models serve` answers it: the example that the model brings, and JSON of our own."""
    from mlflow.pyfunc.scoring_server import invocations

    save_images(grey(), tmp_path / "mlflow")
    example = (tmp_path / "mlflow" / "serving_input_example.json").read_text()
    schema = served.metadata.get_input_schema()
    for body in (example, json.dumps({"inputs": raw((2, 20, 20, 3)).tolist()})):
        reply = invocations(body, "application/json", served, schema)
        assert reply.status == 200
        rows = json.loads(reply.response)["predictions"]
        assert [list(row) for row in rows] == [CLASSES, CLASSES]
        assert sum(rows[0].values()) == pytest.approx(1)


def test_published_and_registered_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    Synthetic(project).write()
    network = grey()
    asked = Tracking(register="digit reader", alias="champion")
    for tracking in (Tracking(), Tracking(), asked, asked):
        save_images(network, project / "models" / "mlflow")
        info, error = publish(project / "results", project / "models", tracking, project)
        assert error is None
    store = connect(Tracking(), project)
    assert len(store.client.search_logged_models([store.experiment_id])) == 1
    assert len(store.client.get_run(info.run_id).outputs.model_outputs) == 1
    versions = store.client.search_model_versions("name='digit reader'")
    assert [(str(each.version), each.run_id) for each in versions] == [("1", info.run_id)]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", info.tracking_uri)
    images = raw((3, 30, 20, 3))
    by_run, champion = (
        mlflow.pyfunc.load_model(uri).predict(images)
        for uri in (f"runs:/{info.run_id}/model", "models:/digit reader@champion")
    )
    np.testing.assert_array_equal(by_run, champion)
