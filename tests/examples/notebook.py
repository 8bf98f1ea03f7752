"""Run a notebook's cells in this process and keep their outputs in the file, without Jupyter.

.venv/bin/python -m tests.examples.notebook examples/hospitals.ipynb
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
DPI = 50


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Put fresh outputs into it; raises what a cell raises. Returns the names that its cells have defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"], cell["outputs"] = count, _outputs("".join(cell["source"]), names, count)
    return names


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Of one cell: what it prints, the value of its last line, and its figures."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    said, bars, value = io.StringIO(), io.StringIO(), None
    with redirect_stdout(said), redirect_stderr(bars):
        exec(compile(ast.Module(body, []), f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(last, f"cell {count}", "eval"), names)
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    figures += [value] if isinstance(value, Figure) and value not in figures else []
    pyplot.close("all")
    last_seen = [line.split("\r")[-1] + "\n" for line in bars.getvalue().split("\n") if line]
    outputs = [_stream("stderr", "".join(last_seen))]
    outputs.append(_stream("stdout", said.getvalue()))
    outputs += [_shown({"image/png": _png(figure)}) for figure in figures]
    if value is not None and not isinstance(value, Figure):
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return [output for output in outputs if output.get("text") != []]


def _stream(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": _lines(text)}


def _shown(data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": "display_data", "data": data, "metadata": {}}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _png(figure: Any) -> str:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI)
    return base64.b64encode(written.getvalue()).decode()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    read = json.loads(path.read_text(encoding="utf-8"))
    run(read)
    path.write_text(json.dumps(read, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
