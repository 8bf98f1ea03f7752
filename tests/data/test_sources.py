"""Places are tried in order, only verified content passes, and every failure has a clear message."""

import contextlib
import functools
import http.server
import socket
import threading
import time

import pytest

from pipeline.data import sources
from pipeline.data.sources import MIRROR_VARIABLE, SOURCES, fetch
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

        for name, source in SOURCES.items():
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
