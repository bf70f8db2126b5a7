"""polars and duckdb: their tables are pushed, and fetched tables are theirs, by Arrow's capsules."""

from __future__ import annotations

import datetime

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import transferd as td

DAY = datetime.date(2026, 1, 2)


def frame() -> pl.DataFrame:
    """A column of every kind that polars has its own layout for."""
    return pl.DataFrame(
        {
            "a": [1, None, 3],
            "b": [True, None, False],
            "s": ["x", None, "a text that is too long to lie in its view"],
            "bytes": [b"1", None, b"333"],
            "list": [[1], [], None],
            "array": pl.Series([[1, 2], [3, 4], None], dtype=pl.Array(pl.Int16, 2)),
            "struct": [{"x": 1}, {"x": 2}, None],
            "category": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
            "enum": pl.Series(["p", "q", "p"], dtype=pl.Enum(["p", "q"])),
            "decimal": pl.Series(["1.5", "2.5", None]).cast(pl.Decimal(10, 2)),
            "day": [DAY] * 3,
            "time": [datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)] * 3,
        }
    )


# Promise: polars-and-duckdb
def test_a_frame_of_polars_comes_back_as_it_was(c, other):
    expected = frame()
    report = c.push_table("frame", expected).report
    # polars' memory is copied into the arena once, and the report says so.
    assert 0 < report.copied <= report.bytes
    table = other.fetch_table("frame")
    assert table.report.copied == 0 and table.num_rows == 3
    found = pl.DataFrame(table)
    assert found.equals(expected) and found.schema == expected.schema
    # What was fetched can be pushed again, by reference or not, and is the same.
    other.push_table("again", found)
    assert pl.DataFrame(c.fetch_table("again")).equals(expected)


# Promise: polars-and-duckdb
def test_a_frame_of_polars_shares_the_fetched_memory(c):
    c.push_table("frame", pl.DataFrame({"x": np.arange(1 << 16, dtype="float64")}))
    table = c.fetch_table("frame")
    found = pl.DataFrame(table)
    (buffer,) = [buffer for buffer in pa.table(table).column("x").chunk(0).buffers() if buffer]
    assert found["x"].to_numpy().__array_interface__["data"][0] == buffer.address
    del table, buffer
    c.close()
    assert found["x"].sum() == sum(range(1 << 16))


def test_a_slice_and_an_empty_frame_of_polars_come_back(c):
    for expected in (frame()[1:], frame()[:0], pl.concat([frame(), frame()], rechunk=False)):
        c.push_table("frame", expected)
        assert pl.DataFrame(c.fetch_table("frame")).equals(expected)


def test_what_is_no_table_of_polars_is_refused_with_a_reason(c):
    with pytest.raises(TypeError, match="a LazyFrame is no table"):
        c.push_table("lazy", frame().lazy())
    # A series that is no struct has no columns.
    with pytest.raises(td.Invalid, match="not a table of Arrow"):
        c.push_table("series", frame()["a"])


ROWS = "select i as n, 'v' || i as s, [i, i + 1] as l, {'a': i} as st, i::decimal(10, 2) as d, date '2026-01-02' as day from range(5000) t(i)"


# Promise: polars-and-duckdb
def test_a_result_of_duckdb_is_pushed(c, other):
    with duckdb.connect() as database:
        report = c.push_table("rows", database.sql(ROWS)).report
        assert 0 < report.copied <= report.bytes
        found = other.fetch_table("rows")
        assert (found.num_rows, found.column_names) == (5000, ["n", "s", "l", "st", "d", "day"])
        assert found.pyarrow().equals(pa.table(database.sql(ROWS)))


# Promise: polars-and-duckdb
def test_duckdb_queries_a_fetched_table(c):
    with duckdb.connect() as database:
        c.push_table("rows", database.sql(ROWS))
        fetched = c.fetch_table("rows")
        # By the name of the variable, and registered; with a filter and a part of the columns.
        assert database.sql("select sum(n), count(distinct s) from fetched").fetchall() == [(12497500, 5000)]
        database.register("rows", fetched)
        assert database.sql("select max(n) from rows where n < 77").fetchall() == [(76,)]
        assert database.sql("select sum(st.a), any_value(day) from rows").fetchall() == [(12497500, DAY)]
        # Again: a table can be read any number of times.
        assert database.sql("select n from rows order by n desc limit 2").fetchall() == [(4999,), (4998,)]
    assert fetched.report.copied == 0
