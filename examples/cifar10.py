"""CIFAR-10 held by eight clients, three of them with wrong labels: whom does the server trust?

    .venv/bin/python -m examples.cifar10 FOLDER report.html

FOLDER holds `train.parquet` and `test.parquet` (columns `image`, of encoded pictures, and `label`).
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

import fedbilevel as fb

CLASSES = np.array(["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"], dtype=object)
EACH = 1000
"""Images of a client."""


def images(file: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first rows: pixels uint8 [rows, 3, 32, 32] and names of the classes [rows]."""
    table = next(pq.ParquetFile(file).iter_batches(rows)).to_pydict()
    pictures = [np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["image"]]
    return np.moveaxis(np.stack(pictures), 3, 1), CLASSES[np.array(table["label"])]


def clients(X: np.ndarray, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Five clean clients; two with labels at random, one that takes cats for dogs and dogs for cats."""
    random = np.random.default_rng(0)
    names = ["Ada", "Ben", "Cleo", "Dora", "Emil", "random 1", "random 2", "cats and dogs"]
    dealt = {name: (X[i * EACH : (i + 1) * EACH], y[i * EACH : (i + 1) * EACH]) for i, name in enumerate(names)}
    for name in names[5:7]:
        dealt[name] = dealt[name][0], random.permutation(dealt[name][1])
    X_last, y_last = dealt[names[7]]
    swapped = np.where(y_last == "cat", "dog", np.where(y_last == "dog", "cat", y_last))
    return dealt | {names[7]: (X_last, swapped)}


if __name__ == "__main__":
    folder, page = map(Path, sys.argv[1:])
    X, y = images(folder / "train.parquet", 8 * EACH + 1000)
    server = X[8 * EACH :], y[8 * EACH :]
    found = fb.fit(
        clients(X, y),
        validation=(server[0][:300], server[1][:300]),
        selection=(server[0][300:], server[1][300:]),
        test=images(folder / "test.parquet", 2000),
        rounds=400,
        batch_size=16,
        participation=0.5,
        product_batch_size="shared",
        eval_every=100,
    )
    print(found.weights.to_string(index=False))
    print(f"test accuracy {found.metrics['test_accuracy']:.3f}; suspicious: {found.suspicious}")
    found.plot_weights().savefig(page.with_suffix(".png"), dpi=60)
    found.report(page)
