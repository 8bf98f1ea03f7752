"""Original files of a data set, from the first place that has a good copy.

Order: the mirror (FEDBILEVEL_DATA_MIRROR, or else data.mirror), the folder of a system package, the public
sources that torchvision knows. Whatever the place, the content counts: it is taken only if its checksum
matches, so a truncated or altered copy sends us on to the next place.

Not by `pooch`: it checks a file as it comes, and the copies of one data set differ there (packers write different
headers), while their content is the same; and it knows one address per file, no folders to be tried in turn.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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

    md5: of the content, which is what `unpack` makes of the file (ValueError: it is damaged). By default a `.gz` is
    unpacked, for packers write different headers, and everything else, a `.tar.gz` too, is taken as it is.
    """

    name: str
    md5: str
    unpack: Callable[[bytes], bytes] | None = None

    def content(self, raw: bytes) -> bytes:
        """The file unpacked; ValueError if it is damaged."""
        if self.unpack:
            return self.unpack(raw)
        if not self.name.endswith(".gz") or self.name.endswith(".tar.gz"):
            return raw
        try:
            return gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"cut short ({error})") from None


@dataclass(frozen=True)
class Source:
    """Where the original files of one data set may lie.

    public: name of torchvision's class, whose attributes hold addresses and checksums. system: a folder, and the Debian
    package that puts the same files there. mirrored: other files with the same samples, which a mirror may hold
    instead. instead: a data set of the kind that needs no download, for who has none of it.
    """

    dataset: str
    files: tuple[OriginalFile, ...]
    public: str | None = None
    system: tuple[str, str] | None = None
    mirrored: tuple[OriginalFile, ...] = ()
    instead: str = "digits"


@dataclass(frozen=True)
class Fetched:
    """contents: verified bytes per file name, unpacked. files: which ones. places: where they came from.

    skipped: places that had no good copy, with the reason.
    """

    files: tuple[OriginalFile, ...]
    contents: dict[str, bytes]
    places: list[str]
    skipped: list[str]


def fetch(source: Source, mirror: str | None = None) -> Fetched:
    """Every original file, verified. mirror: a folder or base URL; the environment variable wins over it.

    Raises UserError naming every place tried, what was wrong there, and the ways out.
    """
    mirrors = partial(_mirror_places, source, mirror)

    def local() -> list[_Place]:
        return [*mirrors(), *_system_places(source)]

    def public() -> Iterator[_Place]:
        return _public_places(source)

    attempts: list[tuple[tuple[OriginalFile, ...], Callable[[], Iterable[_Place]]]]
    attempts = [(source.files, lambda: chain(local(), public()))]
    if source.mirrored:
        attempts = [(source.files, local), (source.mirrored, mirrors), (source.files, public)]
    failed: list[_MissingError] = []
    unreachable: dict[str, str] = {}  # a place that does not answer is asked once, not once per file
    for files, places in attempts:
        try:
            found = _complete(files, places, unreachable)
        except _MissingError as missing:
            failed.append(missing)
            continue
        before = [trouble for missing in failed for trouble in missing.troubles]
        return replace(found, skipped=[*before, *found.skipped])
    raise _nowhere(source, failed)


def _complete(
    files: tuple[OriginalFile, ...], places: Callable[[], Iterable[_Place]], unreachable: dict[str, str]
) -> Fetched:
    """Every one of the files, or _MissingError with what was wrong everywhere with one of them."""
    found = Fetched(files, {}, [], [])
    for file in files:
        troubles = []
        for place in places():
            try:
                if place.address in unreachable:
                    raise _TroubleError(unreachable[place.address])
                found.contents[file.name] = _verified(file, place.read(file.name))
            except _TroubleError as trouble:
                if trouble.unreachable:
                    unreachable[place.address] = str(trouble)
                troubles.append(f"{place.label} {place.address}: {file.name}: {trouble}")
                continue
            if place.address not in found.places:
                found.places.append(place.address)
            break
        else:
            raise _MissingError(file.name, troubles)
        found.skipped.extend(troubles)
    return found


# ------------------------------------------------------------------------------------------- content


class _TroubleError(Exception):
    """Why a place gave no good copy. unreachable: it will not give any other file either."""

    def __init__(self, reason: str, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.unreachable = unreachable


class _MissingError(Exception):
    """A file of which no place has a good copy. troubles: of each place."""

    def __init__(self, file: str, troubles: list[str]) -> None:
        super().__init__()
        self.file, self.troubles = file, troubles


def _verified(file: OriginalFile, raw: bytes) -> bytes:
    try:
        content = file.content(raw)
    except ValueError as error:
        raise _TroubleError(f"damaged or {error}") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise _TroubleError(f"damaged: checksum (md5) {found} instead of {file.md5}")
    return content


def _nowhere(source: Source, failed: list[_MissingError]) -> UserError:
    package = f"install the Debian package {source.system[1]}; " if source.system else ""
    tried = "".join(f"\n  - {trouble}" for missing in failed for trouble in missing.troubles)
    files = " or ".join(dict.fromkeys(missing.file for missing in failed))
    other = f" (or {' and '.join(file.name for file in source.mirrored)})" if source.mirrored else ""
    return UserError(
        f'data.name = "{source.dataset}": no good copy of {files} was found. Tried:{tried}\n'
        f"Fix: put the original files{other} into <folder>/{source.dataset}/ and set {MIRROR_VARIABLE}=<folder>"
        f" (or data.mirror; a base URL will do); {package}or take data.name: {source.instead}, which needs no download."
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
    try:
        parts, folder = urlsplit(value), Path(value).expanduser()
    except (ValueError, RuntimeError) as error:  # half an address of IPv6; a user that there is not
        raise UserError(f"{key} = {value!r} leads nowhere ({error}). Fix: a folder, or a base URL.") from None
    if parts.scheme in ("http", "https"):
        base = f"{value.rstrip('/')}/{source.dataset}"
        return [_Place(key, base, lambda name: _read_url(f"{base}/{quote(name)}"))]
    if "://" in value and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        allowed = "a folder, or a base URL beginning with http://, https:// or file:///"
        raise not_allowed(key, value, allowed, "for example data.mirror: ~/datasets")
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
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
