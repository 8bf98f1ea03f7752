"""The logged network is loaded by one MLflow line and answers as the trained one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.config.sections import Tracking
from pipeline.tracking.model import save_model
from pipeline.tracking.publish import publish
from pipeline.tracking.store import connect
from tests.report.synthetic import Synthetic

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 10),
    )  # fmt: skip


def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


class Moody(nn.Module):
    """Its way depends on the data: torch.export refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.layer(images.flatten(1))
        return logits if bool(logits.mean() > 0) else -logits


@pytest.mark.parametrize(
    ("network", "shape"),
    [(lenet(), (1, 28, 28)), (group_norm().double(), (3, 32, 32)), (Moody(), (1, 28, 28))],
)
def test_one_line_loads_it(tmp_path: Path, network: nn.Module, shape: tuple[int, ...]) -> None:
    import mlflow

    example = np.random.default_rng(0).random((4, *shape))
    save_model(network, tmp_path / "mlflow", example)
    assert [p.name for p in tmp_path.iterdir()] == ["mlflow"]
    for batch in (1, 7):
        images = np.random.default_rng(1).random((batch, *shape), dtype=np.float32)
        with torch.no_grad():
            expected = network.float()(torch.from_numpy(images)).numpy()
            loaded = mlflow.pytorch.load_model(str(tmp_path / "mlflow"))(torch.from_numpy(images)).numpy()
        predicted = mlflow.pyfunc.load_model(str(tmp_path / "mlflow")).predict(images)
        np.testing.assert_allclose(loaded, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)


def test_published_with_the_run_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    made = Synthetic(project)
    made.write()
    network, images = lenet(), np.random.default_rng(0).random((3, 1, 28, 28), dtype=np.float32)
    for _ in range(2):
        save_model(network, project / "models" / "mlflow", images)
        info, error = publish(project / "results", project / "models", Tracking(), project)
        assert error is None
    store = connect(Tracking(), project)
    assert len(store.client.search_logged_models([store.experiment_id])) == 1
    assert len(store.client.get_run(info.run_id).outputs.model_outputs) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", info.tracking_uri)
    model = mlflow.pyfunc.load_model(f"runs:/{info.run_id}/model")
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, 1, 28, 28)
    np.testing.assert_allclose(model.predict(images), network(torch.from_numpy(images)).detach().numpy(), atol=1e-5)
