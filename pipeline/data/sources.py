"""Original files of a data set, from the first place that has a good copy.

Order: the mirror (FEDBILEVEL_DATA_MIRROR, or else data.mirror), the folder of a system package, the public
sources that torchvision knows. Whatever the place, the content counts: it is taken only if its checksum
matches, so a truncated or altered copy sends us on to the next place.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import socket
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from pipeline.errors import UserError, not_allowed

MIRROR_VARIABLE = "FEDBILEVEL_DATA_MIRROR"
TIMEOUT = 10.0
"""Seconds without an answer (to a connection, or between two packets) after which a place is given up."""


@dataclass(frozen=True)
class OriginalFile:
    """A file under its published name.

    md5: of the unpacked content of a `.gz` (packers write different headers), of a `.tar.gz` as it is.
    """

    name: str
    md5: str

    @property
    def packed(self) -> bool:
        return self.name.endswith(".gz") and not self.name.endswith(".tar.gz")


@dataclass(frozen=True)
class Source:
    """Where the original files of one data set may lie.

    public: name of torchvision's class, whose attributes hold addresses and checksums.
    system: a folder, and the Debian package that puts the same files there.
    """

    dataset: str
    files: tuple[OriginalFile, ...]
    public: str | None = None
    system: tuple[str, str] | None = None


@dataclass(frozen=True)
class Fetched:
    """contents: verified bytes per file name, unpacked if packed. places: where they came from.

    skipped: places that had no good copy, with the reason.
    """

    contents: dict[str, bytes]
    places: list[str]
    skipped: list[str]


def _idx(*md5: str) -> tuple[OriginalFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(OriginalFile(f"{name}-ubyte.gz", value) for name, value in zip(names, md5, strict=True))


SOURCES: dict[str, Source] = {
    "mnist": Source(
        "mnist",
        _idx(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        public="MNIST",
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        _idx(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        public="FashionMNIST",
        system=("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist"),
    ),
    "cifar10": Source(
        "cifar10",
        (OriginalFile("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        public="CIFAR10",
    ),
    "cifar100": Source(
        "cifar100",
        (OriginalFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        public="CIFAR100",
    ),
    "omniglot": Source(
        "omniglot",
        (
            OriginalFile("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
            OriginalFile("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
        ),
        public="Omniglot",
    ),
}


def fetch(source: Source, mirror: str | None = None) -> Fetched:
    """Every original file, verified. mirror: a folder or base URL; the environment variable wins over it.

    Raises UserError naming every place tried, what was wrong there, and the ways out.
    """
    local = [*_mirror_places(source, mirror), *_system_places(source)]
    contents: dict[str, bytes] = {}
    places: list[str] = []
    skipped: list[str] = []
    unreachable: dict[str, str] = {}  # a place that does not answer is asked once, not once per file
    for file in source.files:
        troubles = []
        for place in chain(local, _public_places(source)):
            try:
                if place.address in unreachable:
                    raise _TroubleError(unreachable[place.address])
                contents[file.name] = _verified(file, place.read(file.name))
            except _TroubleError as trouble:
                if trouble.unreachable:
                    unreachable[place.address] = str(trouble)
                troubles.append(f"{place.label} {place.address}: {file.name}: {trouble}")
                continue
            if place.address not in places:
                places.append(place.address)
            break
        else:
            raise _nowhere(source, file, troubles)
        skipped += troubles
    return Fetched(contents, places, skipped)


# ------------------------------------------------------------------------------------------- content


class _TroubleError(Exception):
    """Why a place gave no good copy. unreachable: it will not give any other file either."""

    def __init__(self, reason: str, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.unreachable = unreachable


def _verified(file: OriginalFile, raw: bytes) -> bytes:
    content = raw
    if file.packed:
        try:
            content = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise _TroubleError(f"damaged or cut short ({error})") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise _TroubleError(f"damaged: checksum (md5) {found} instead of {file.md5}")
    return content


def _nowhere(source: Source, file: OriginalFile, troubles: list[str]) -> UserError:
    package = f"install the Debian package {source.system[1]}; " if source.system else ""
    tried = "".join(f"\n  - {trouble}" for trouble in troubles)
    embedded = "glyphs" if source.dataset == "omniglot" else "digits"
    return UserError(
        f'data.name = "{source.dataset}": no good copy of {file.name} was found. Tried:{tried}\n'
        f"Fix: put the original files into <folder>/{source.dataset}/ and set {MIRROR_VARIABLE}=<folder>"
        f" (or data.mirror; a base URL will do); {package}or take data.name: {embedded}, which needs no download."
    )


# -------------------------------------------------------------------------------------------- places


@dataclass(frozen=True)
class _Place:
    """label: what it is, for messages. address: folder or URL. read: file name -> bytes, or _TroubleError."""

    label: str
    address: str
    read: Callable[[str], bytes]


def _mirror_places(source: Source, mirror: str | None) -> list[_Place]:
    from_environment = os.environ.get(MIRROR_VARIABLE, "").strip()
    key, value = (MIRROR_VARIABLE, from_environment) if from_environment else ("data.mirror", mirror)
    if not value:
        return []
    parts = urlsplit(value)
    if parts.scheme in ("http", "https"):
        base = f"{value.rstrip('/')}/{source.dataset}"
        return [_Place(key, base, lambda name: _read_url(f"{base}/{quote(name)}"))]
    if "://" in value and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        allowed = "a folder, or a base URL beginning with http://, https:// or file:///"
        raise not_allowed(key, value, allowed, "for example data.mirror: ~/datasets")
    folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(value).expanduser()
    return [_folder_place(key, folder / source.dataset)]


def _system_places(source: Source) -> list[_Place]:
    if source.system is None:
        return []
    folder, package = source.system
    return [_folder_place(f"Debian package {package}", Path(folder))]


def _public_places(source: Source) -> Iterator[_Place]:
    """torchvision's addresses; its import costs seconds, and happens only when nearer places have failed."""
    if source.public is None:
        return
    try:
        from torchvision import datasets
    except ImportError as error:
        yield _Place("torchvision", "(not importable)", _raises(f"{error}. Fix: pip install torchvision"))
        return
    kind = getattr(datasets, source.public)
    if hasattr(kind, "mirrors"):  # idx files: several addresses, one checksum per file
        bases, md5 = kind.mirrors, dict(kind.resources)
    elif hasattr(kind, "zips_md5"):  # Omniglot: two archives
        bases, md5 = [f"{kind.download_url_prefix}/"], {f"{name}.zip": value for name, value in kind.zips_md5.items()}
    else:  # CIFAR: one archive
        bases, md5 = [kind.url.removesuffix(kind.filename)], {kind.filename: kind.tgz_md5}
    for base in bases:
        yield _Place("public source", base, partial(_download, base, md5))


def _raises(reason: str) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        raise _TroubleError(reason)

    return read


def _folder_place(label: str, folder: Path) -> _Place:
    def read(name: str) -> bytes:
        if not folder.is_dir():
            raise _TroubleError("no such folder")
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            raise _TroubleError("no such file") from None
        except OSError as error:
            raise _TroubleError(f"cannot be read ({error.strerror})") from None

    return _Place(label, str(folder), read)


# ------------------------------------------------------------------------------------------- network


@contextmanager
def _network_troubles() -> Iterator[None]:
    """Every way a transfer fails, in a word; anything else is a defect and passes."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise _TroubleError(f"the server answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _TroubleError(f"not reachable ({error.reason})", unreachable=True) from None
    except http.client.HTTPException as error:
        raise _TroubleError(f"the transfer broke off ({error!r})") from None
    except TimeoutError:
        raise _TroubleError(f"no answer within {TIMEOUT:g} s", unreachable=True) from None
    except (OSError, ValueError) as error:
        raise _TroubleError(str(error)) from None


def _read_url(url: str) -> bytes:
    with _network_troubles(), urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return answer.read()


def _download(base: str, md5: Mapping[str, str], name: str) -> bytes:
    """By torchvision's function, which takes no time-out: the sockets' default is set meanwhile."""
    from torchvision.datasets.utils import download_url

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with tempfile.TemporaryDirectory() as folder, _network_troubles():
            download_url(base + name, folder, filename="file", md5=md5.get(name))
            return (Path(folder) / "file").read_bytes()
    except RuntimeError as error:  # a checksum that differs, or endless redirects
        raise _TroubleError(str(error)) from None
    finally:
        socket.setdefaulttimeout(before)
