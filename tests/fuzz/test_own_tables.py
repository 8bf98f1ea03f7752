"""Tables of a user's own, as bytes: read, or answered; from the bytes to the partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.own.making import made
from tests.fuzz.common import answer_to, cases

GOOD = "site,age,dose,ill\n" + "".join(f"{'ABC'[i % 3]},{20 + i % 50},{i % 7 / 2},{i * 7 % 5 > 1}\n" for i in range(60))
CELLS = st.one_of(
    st.sampled_from(
        ["", "NA", "?", "1e999", "-inf", "nan", "1e308", "9" * 30, "0x10", "2026-02-30", "2026-01-01", "true"]
    ),
    st.sampled_from(['"', '""', '"a\nb"', "\x00", "\u2028", "\ufeff", "a;b", "=1+1", "1,5", "  ", "A", "é", "1" * 400]),
    st.text(max_size=6),
    st.integers().map(str),
    st.floats().map(str),
)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A good table with odd cells, rows, a heading or bytes in it; or bytes."""
    rows = [line.split(",") for line in GOOD.splitlines()][: draw(st.sampled_from([61, 61, 61, 4, 2, 1]))]
    for _ in range(draw(st.integers(1, 6))):
        row = draw(st.integers(0, len(rows) - 1))
        kind = draw(st.sampled_from(["cell", "cell", "column", "row", "heading"]))
        if kind == "cell" and rows[row]:
            rows[row][draw(st.integers(0, len(rows[row]) - 1))] = draw(CELLS)
        elif kind == "column":
            column, cell = draw(st.integers(0, 3)), draw(CELLS)
            for each in rows[1:]:
                if column < len(each):
                    each[column] = cell
        elif kind == "row":
            rows.insert(row, draw(st.lists(CELLS, max_size=6)))
        else:
            rows[0] = draw(st.permutations(rows[0]))
    content = "\n".join(",".join(each) for each in rows).encode("utf-8", "surrogatepass")
    at = draw(st.integers(0, len(content)))
    return content[:at] + draw(st.sampled_from([b"", b"", b"", b"\xff", b"\x00", b"\r", b'"'])) + content[at:]


@cases(0.15)
@given(
    content=tables(),
    suffix=st.sampled_from(["csv", "csv", "csv", "tsv", "parquet"]),
    client=st.sampled_from(["site", None]),
    task=st.sampled_from(["auto", "classification", "regression"]),
    label=st.sampled_from(["ill", "dose"]),
)
def test_any_table_is_read_or_answered(
    content: bytes, suffix: str, client: str | None, task: str, label: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.getbasetemp()
    path = place / f"t.{suffix}"
    path.write_bytes(content)
    keys = {"data__name": "table", "data__path": str(path), "data__label": label, "data__client": client}
    answer_to(lambda: made(place / "scratch", data__task=task, **keys))
