"""The two files that a federation is set up with, beside params.yaml: `federation.yaml` at the server, `site.yaml` at
each site. What a site shows of its data is decided in its own file alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pipeline.config.loading import load
from pipeline.config.spec import Fraction, PositiveFloat, Section, param, section
from pipeline.errors import UserError, not_allowed

Kind = TypeVar("Kind", "Server", "SiteSettings")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Of a site: a part of an address in NVFlare, and of a file name."""


@dataclass(frozen=True)
class Reader(Section):
    """How files become samples."""

    reader: str = param(
        "pipeline.federation.readers.csv_file",
        "dotted path of a function (path, **options) -> (X, y, names of the columns)",
    )
    options: dict[str, Any] = param({}, "what it takes besides the path, such as {label: diseased}")


@dataclass(frozen=True)
class ServerData(Reader):
    """The server's own samples."""

    validation: str = param("validation.csv", "clean samples that the client weights are learned from")
    test: str | None = param(
        "test.csv", "samples that the model is tested on; null under local heads, which sites test"
    )
    selection: str | None = param(None, "samples that no method sees, to choose step sizes by; null = none")


@dataclass(frozen=True)
class SiteData(Reader):
    """The site's own samples; they never leave it."""

    path: str = param("data.csv", "the file or folder that the reader is given")
    validation: Fraction | str = param(
        0.2, "samples of its own for a problem whose upper level lies with the sites: a share of these, or a file"
    )
    test: Fraction | str = param(0.2, "samples of its own that local heads are tested on: a share of these, or a file")


@dataclass(frozen=True)
class Engine(Section):
    """How server and sites reach one another: NVFlare's cells, with the certificates that NVFlare provisions."""

    scheme: Literal["tcp", "grpc", "http"] = param("tcp", "tcp | grpc | http (websocket); each with mutual TLS")
    host: str = param("localhost", "the server's name, as its certificate has it")
    port: int = param(8002, "the one port that the server listens at; sites open all connections", ge=1, lt=65536)
    kit: str = param("startup", "folder of this participant's start-up kit: certificates and its own key")


@dataclass(frozen=True)
class Server(Section):
    """federation.yaml."""

    sites: list[str] = param([], "names of all sites, as in their certificates; clients are numbered in this order")
    min_sites: int = param(1, "fewer than these: wait", ge=1)
    patience: float = param(600.0, "seconds to wait for them before the run ends; the next start goes on", gt=0)
    gather: float = param(30.0, "seconds to wait for all sites at the start, once there are enough", ge=0)
    timeout: float = param(
        60.0, "seconds that a site has to answer a question; later, it is left out of the step", gt=0
    )
    rest: float = param(2.0, "seconds before a site that failed is asked again", ge=0)
    payload: Literal["exact", "bfloat16"] = param(
        "exact", "numbers travel as they are computed with | rounded to bfloat16, half the bytes"
    )
    classes: int = param(2, "number of classes; labels are 0, 1, ...", ge=2)
    data: ServerData = section(ServerData, "the server's samples")
    engine: Engine = section(Engine, "the connection")


@dataclass(frozen=True)
class PrivacySettings(Section):
    """Clipping and noise before an answer leaves (`pipeline.federation.privacy`)."""

    clip: PositiveFloat | None = param(None, "longest answer that leaves; null = answers leave as they are")
    clip_numbers: float = param(1.0, "the same for answers that are one number", gt=0)
    noise: float = param(0.0, "standard deviation of the noise, in units of clip; 0 = none", ge=0)
    delta: float = param(1e-5, "of the (epsilon, delta) guarantee", gt=0, lt=1)
    limit: PositiveFloat | None = param(None, "epsilon beyond which the site answers no more; null = no limit")


@dataclass(frozen=True)
class SiteSettings(Section):
    """site.yaml."""

    name: str = param("", "this site's name, as in its certificate")
    data: SiteData = section(SiteData, "the site's samples")
    privacy: PrivacySettings = section(PrivacySettings, "what is done to answers")
    code: list[str] = param(
        [], "dotted paths of networks and methods of your own that the server may name; all others are refused"
    )
    store: str = param("store", "folder for what the site must not forget: its privacy account, its clients' variables")
    engine: Engine = section(Engine, "the connection")


def read(kind: type[Kind], path: Path) -> Kind:
    """federation.yaml or site.yaml. Raises UserError for what is wrong with it."""
    found = load(kind, path, fix=f"write it; docs/federation/{path.name} of the checkout has every key")
    names = found.sites if isinstance(found, Server) else [found.name]
    key = "sites" if isinstance(found, Server) else "name"
    if not all(names) or not names:
        raise UserError(f"{path.name}: {key} is empty. Fix: name {_WHOM[key]}, as in the certificates.")
    for name in names:
        if not NAME.fullmatch(name) or name == "server":
            allowed = "letters, digits, - and _, and not `server`"
            raise not_allowed(f"{path.name}: {key}", name, allowed, "rename it, here and in its certificate")
    if isinstance(found, Server):
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{path.name}: sites names {twice[0]!r} twice. Fix: one name for each site.")
        if found.min_sites > len(names):
            raise not_allowed(f"{path.name}: min_sites", found.min_sites, f"at most {len(names)}, of sites", "lower it")
    elif found.privacy.clip is None and found.privacy.noise:
        raise UserError(f"{path.name}: privacy.noise without privacy.clip. Fix: privacy.clip, the longest answer.")
    return found


_WHOM = {"sites": "all sites", "name": "this site"}
