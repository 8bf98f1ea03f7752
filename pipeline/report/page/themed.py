"""Pictures for a web page: inline SVG whose colours and letters follow the page, in light and dark."""

from __future__ import annotations

import io
import re
import warnings

import matplotlib as mpl
from matplotlib.figure import Figure

from pipeline.report.figures import BAD, CLEAN, FAINT, INK, canvas_style

SMALL = (5.6, 3.7)
"""Inches; letters of 11 points stay legible on a phone and are no larger than the text beside it on a desktop."""
THEME = {
    INK: "--ink",
    "#555555": "--soft",
    "#888888": "--line",
    FAINT: "--grid",
    **{colour: f"--clean-{k}" for k, colour in enumerate(CLEAN)},
    **{colour: f"--{kind}" for kind, colour in BAD.items()},
}
"""Colour of a picture -> the style sheet's variable in its place."""


def svg(figure: Figure, name: str) -> str:
    """An <svg> element for the middle of a page; equal figures of equal names give equal text. name: unique there."""
    text = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    with canvas_style(), mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        about = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", transparent=True, metadata=about)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :].rstrip()
    drawn = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawn, flags=re.DOTALL)  # the page has a style of its own
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(
        r' id="[a-z][A-Za-z0-9.]*_\d+"', "", drawn
    )  # of groups: they would be there again in the next picture
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r"font: ((?:\w+ )*)([\d.]+)px [^;\"]*", r"font: \1\2px system-ui, sans-serif", drawn)
    for colour, variable in THEME.items():
        drawn = drawn.replace(colour.lower(), f"var({variable})").replace(colour, f"var({variable})")
    return re.sub(r"\n\s*\n+", "\n", drawn)
