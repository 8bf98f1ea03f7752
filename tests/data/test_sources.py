"""Places are tried in order, only verified content passes, and every failure has a clear message."""

import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.data.datasets import load, prepare
from pipeline.data.originals import fetching as sources
from pipeline.data.originals import parquet
from pipeline.data.originals.fetching import MIRROR_VARIABLE, Source, fetch
from pipeline.data.sets.registry import DATASETS
from pipeline.errors import UserError
from tests.data.originals import mnist_contents, mnist_source, write_packed

IMAGES = "train-images-idx3-ubyte.gz"


@pytest.fixture(autouse=True)
def _no_mirror(monkeypatch):
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def contents():
    return mnist_contents()


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_byte(file, contents):
    """A well-formed file with one wrong byte."""
    content = bytearray(contents[file.name])
    content[100] ^= 1
    write_packed(file.parent, {file.name: bytes(content)})


@pytest.mark.parametrize("form", ["{}", "file://{}", "{}/"])
def test_mirror_folder(tmp_path, contents, form):
    write_packed(tmp_path / "mnist", contents)
    found = fetch(mnist_source(contents), form.format(tmp_path))
    assert found.contents == contents
    assert found.skipped == []


def test_environment_variable_wins_over_the_mirror_setting(tmp_path, contents, monkeypatch):
    write_packed(tmp_path / "a" / "mnist", contents)
    monkeypatch.setenv(MIRROR_VARIABLE, str(tmp_path / "a"))
    found = fetch(mnist_source(contents), str(tmp_path / "b"))
    assert found.places == [str(tmp_path / "a" / "mnist")]


def test_http_mirror(tmp_path, contents):
    write_packed(tmp_path / "mnist", contents)
    with served(tmp_path) as url:
        found = fetch(mnist_source(contents), url + "/")
        assert found.places == [f"{url}/mnist"]
    assert found.contents == contents


@pytest.mark.parametrize("damage", ["truncated", "byte", "empty", "missing"])
def test_a_bad_copy_sends_us_to_the_next_place(tmp_path, contents, damage):
    bad = write_packed(tmp_path / "mirror" / "mnist", contents) / IMAGES
    good = write_packed(tmp_path / "system", contents)
    if damage == "truncated":
        truncate(bad)
    elif damage == "byte":
        flip_a_byte(bad, contents)
    elif damage == "empty":
        bad.write_bytes(b"")
    else:
        bad.unlink()
    source = mnist_source(contents, system=(str(good), "dataset-mnist"))
    found = fetch(source, str(tmp_path / "mirror"))
    assert found.contents == contents
    assert found.places == [str(good), str(bad.parent)]  # the other three files were good
    (skipped,) = found.skipped
    assert IMAGES in skipped
    assert {"missing": "no such file"}.get(damage, "damaged") in skipped


def test_error_names_every_place_what_was_wrong_there_and_the_ways_out(tmp_path, contents):
    truncate(write_packed(tmp_path / "mirror" / "mnist", contents) / IMAGES)
    flip_a_byte(write_packed(tmp_path / "system", contents) / IMAGES, contents)
    source = mnist_source(contents, system=(str(tmp_path / "system"), "dataset-mnist"))
    with pytest.raises(UserError) as caught:
        fetch(source, str(tmp_path / "mirror"))
    heading, first, second, fix = str(caught.value).splitlines()
    assert 'data.name = "mnist"' in heading
    assert IMAGES in heading
    assert f"data.mirror {tmp_path / 'mirror' / 'mnist'}" in first
    assert "cut short" in first
    assert str(tmp_path / "system") in second
    assert source.files[0].md5 in second
    for way in (MIRROR_VARIABLE, "data.mirror", "data.name: digits", "dataset-mnist"):
        assert way in fix


def test_http_errors_are_told(tmp_path, contents):
    with served(tmp_path) as url, pytest.raises(UserError, match="the server answers 404"):
        fetch(mnist_source(contents), url)
    with pytest.raises(UserError, match="not reachable"):
        fetch(mnist_source(contents), f"http://127.0.0.1:{closed_port()}")


def test_a_transfer_that_breaks_off_is_told(contents):
    class Short(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Short) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(UserError, match="broke off"):
            fetch(mnist_source(contents), f"http://127.0.0.1:{server.server_port}")
        thread.join()


def test_a_silent_server_is_given_up_and_asked_only_once(tmp_path, contents, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.3)
    good = write_packed(tmp_path / "system", contents)
    with socket.socket() as silent:  # accepts connections, never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begin = time.monotonic()
        source = mnist_source(contents, system=(str(good), "dataset-mnist"))
        found = fetch(source, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - begin < 4 * 0.3
    assert found.contents == contents
    assert len(found.skipped) == 4


@pytest.mark.parametrize("mirror", ["ftp://host/data", "s3://bucket", "file://host/data"])
def test_other_kinds_of_mirror_are_refused(contents, mirror):
    with pytest.raises(UserError, match=r"data\.mirror = .* must be a folder, or a base URL"):
        fetch(mnist_source(contents), mirror)


class TestPublicSources:
    """torchvision's addresses, turned to this machine."""

    def turn(self, monkeypatch, *bases, md5=None):
        import torchvision.datasets

        monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", list(bases))
        monkeypatch.setattr(torchvision.datasets.MNIST, "resources", list((md5 or {}).items()))

    def test_the_second_address_helps(self, tmp_path, contents, monkeypatch):
        write_packed(tmp_path, contents)
        with served(tmp_path) as url:
            self.turn(monkeypatch, f"http://127.0.0.1:{closed_port()}/", f"{url}/")
            found = fetch(mnist_source(contents, public="MNIST"), str(tmp_path / "nowhere"))
        assert found.contents == contents
        assert found.places == [f"{url}/"]
        assert socket.getdefaulttimeout() is None

    def test_a_wrong_checksum_is_told(self, tmp_path, contents, monkeypatch):
        write_packed(tmp_path, contents)
        with served(tmp_path) as url:
            self.turn(monkeypatch, f"{url}/", md5={IMAGES: "0" * 32})
            with pytest.raises(UserError, match="corrupted"):
                fetch(mnist_source(contents, public="MNIST"))

    def test_offline_names_every_place_soon(self, tmp_path, contents, monkeypatch):
        first, second = (f"http://127.0.0.1:{closed_port()}/{x}/" for x in "ab")
        self.turn(monkeypatch, first, second)
        begin = time.monotonic()
        with pytest.raises(UserError) as caught:
            fetch(mnist_source(contents, public="MNIST"), str(tmp_path / "nowhere"))
        assert time.monotonic() - begin < 3
        for part in (str(tmp_path / "nowhere"), "no such folder", first, second, "refused", MIRROR_VARIABLE):
            assert part in str(caught.value)

    def test_our_records_agree_with_torchvision(self):
        from torchvision import datasets

        for name, source in ((name, each.source) for name, each in DATASETS.items() if each.source):
            kind = getattr(datasets, source.public)
            names = [file.name for file in source.files]
            if name.startswith("cifar"):
                assert (kind.filename, kind.tgz_md5) == (names[0], source.files[0].md5)
            elif name == "omniglot":
                assert {f"{part}.zip": md5 for part, md5 in kind.zips_md5.items()} == {
                    file.name: file.md5 for file in source.files
                }
            else:
                assert sorted(dict(kind.resources)) == sorted(names)


# ------------------------------------------------------------------------------- other files in a mirror


def labelled_images(seed: int, quality: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A parquet file in Hugging Face's layout, and what it holds. quality: of PNG's lossless compression."""
    random = np.random.default_rng(seed)
    images, labels = random.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), random.integers(0, 10, 4)
    rows = []
    for image, label in zip(images, labels.tolist(), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(np.moveaxis(image, 0, 2)).save(buffer, "PNG", compress_level=quality)
        rows.append({"image": {"bytes": buffer.getvalue(), "path": "a.png"}, "label": label})
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue(), images, labels


def parquet_source(parts: dict[str, bytes]) -> Source:
    """cifar10's, with the checksums of these contents."""
    shipped = DATASETS["cifar10"].source
    md5 = {f"{part}.parquet": hashlib.md5(parquet.unpacked(file)).hexdigest() for part, file in parts.items()}
    return replace(shipped, mirrored=tuple(replace(file, md5=md5[file.name]) for file in shipped.mirrored))


@pytest.fixture
def parquet_mirror(tmp_path):
    made = {part: labelled_images(seed, 9) for seed, part in enumerate(("train", "test"))}
    (tmp_path / "cifar10").mkdir()
    for part, (file, *_) in made.items():
        (tmp_path / "cifar10" / f"{part}.parquet").write_bytes(file)
    return tmp_path, made


def test_images_in_parquet_files_serve_instead_of_the_archive(parquet_mirror, tmp_path):
    """Verified by content: compressed otherwise, they are the same."""
    mirror, made = parquet_mirror
    source = parquet_source({part: labelled_images(seed, 1)[0] for seed, part in enumerate(made)})
    assert made["train"][0] != labelled_images(0, 1)[0]
    prepare("cifar10", tmp_path / "raw", str(mirror), source)
    raw = load(tmp_path / "raw")
    assert np.array_equal(raw.train_images, made["train"][1])
    assert np.array_equal(raw.test_labels, made["test"][2])
    assert "test.parquet" in json.loads((tmp_path / "raw" / "meta.json").read_text())["source"]


@pytest.mark.parametrize("damage", ["another", "no table"])
def test_a_damaged_parquet_file_is_passed_over(parquet_mirror, monkeypatch, damage):
    mirror, made = parquet_mirror
    source = replace(parquet_source({part: file for part, (file, *_) in made.items()}), public=None)
    content = labelled_images(7, 9)[0] if damage == "another" else b"PAR1 and so on"
    (mirror / "cifar10" / "test.parquet").write_bytes(content)
    with pytest.raises(UserError) as caught:
        fetch(source, str(mirror))
    message = str(caught.value)
    assert "cifar-10-python.tar.gz: no such file" in message
    assert "test.parquet: damaged" in message
    assert "put the original files (or train.parquet and test.parquet) into" in message


@pytest.mark.data
def test_the_real_parquet_files(tmp_path):
    folder = os.environ.get("FEDBILEVEL_REAL_DATA", "")
    if not (Path(folder) / "cifar10" / "train.parquet").is_file():
        pytest.skip("FEDBILEVEL_REAL_DATA names no folder with cifar10/train.parquet")
    prepare("cifar10", tmp_path / "raw", folder)
    raw = load(tmp_path / "raw")
    assert raw.train_images.shape == (50_000, 3, 32, 32)
    means = raw.train_images.mean((0, 2, 3)) / 255
    assert means.round(3) == pytest.approx(DATASETS["cifar10"].info.means, abs=1e-3)
