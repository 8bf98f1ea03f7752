"""Sphinx's settings: `make docs` builds these pages into build/docs; nothing in them is loaded from a network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.util import logging

project = "fedbilevel"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "fedbilevel"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
myst_heading_anchors = 3
exclude_patterns = ["conf.py"]

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]*)\)")
_LOADED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"')
_log = logging.getLogger(__name__)


def point_into_the_checkout(app: Any, page: str, content: list[str]) -> None:
    """Links to files beside docs/ lead to them from build/docs, which lies one folder deeper."""
    folder, docs = (Path(app.srcdir) / page).parent, Path(app.srcdir)

    def changed(match: re.Match[str]) -> str:
        text, target = match.groups()
        place = Path(os.path.normpath(folder / target.partition("#")[0]))
        return match[0] if place.is_relative_to(docs) else f'<a href="../{target}">{text}</a>'

    content[0] = _LINK.sub(changed, content[0])


def refuse_the_network(app: Any, error: Exception | None) -> None:
    """A warning, and so an error, for whatever a page would load from elsewhere."""
    for page in sorted(Path(app.outdir).rglob("*.html")):
        for found in _LOADED.findall(page.read_text(encoding="utf-8")):
            _log.warning("%s loads %s", page.name, found)


def setup(app: Any) -> None:
    app.connect("source-read", point_into_the_checkout)
    app.connect("build-finished", refuse_the_network)
