"""Arrow: tables there and back by the capsules, bit for bit, and streams of batches."""

from __future__ import annotations

import asyncio
import base64
import datetime
import decimal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP, settled, until


def zoo() -> dict[str, pa.Array]:
    """An array of every layout, with nulls where it can have some, and none of it at the beginning of its buffers."""
    day = datetime.date(2026, 1, 2)
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    numbers = [None, 0, 1, None, 2, 3, 4, 5, None, 6]
    arrays: dict[str, pa.Array] = {}
    for of in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"):
        arrays[of] = pa.array(numbers, getattr(pa, of)())
    arrays["float16"] = pa.array([None if n is None else np.float16(n) for n in numbers], pa.float16())
    arrays["bool"] = pa.array([None if n is None else n % 2 == 1 for n in numbers])
    arrays["null"] = pa.nulls(10)
    for of in (pa.string(), pa.large_string(), pa.string_view()):
        arrays[str(of)] = pa.array([None if n is None else "ä" * n * 5 for n in numbers], of)
    for of in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)):
        arrays[f"binary-{of}"] = pa.array([None if n is None else bytes([n]) * 4 for n in numbers], of)
    arrays["date32"] = pa.array([day if n else None for n in numbers])
    arrays["date64"] = pa.array([day if n else None for n in numbers], pa.date64())
    for unit in ("s", "ms", "us", "ns"):
        arrays[f"timestamp-{unit}"] = pa.array(numbers, pa.timestamp(unit, tz="Europe/Berlin"))
        arrays[f"duration-{unit}"] = pa.array(numbers, pa.duration(unit))
    arrays["time32"] = pa.array(numbers, pa.time32("s"))
    arrays["time64"] = pa.array(numbers, pa.time64("ns"))
    arrays["datetime"] = pa.array([now if n else None for n in numbers])
    arrays["interval"] = pa.array([pa.MonthDayNano([1, 2, n]) if n else None for n in numbers])
    for of in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(20, 2), pa.decimal256(50, 2)):
        arrays[str(of)] = pa.array([None if n is None else decimal.Decimal(f"{n}.25") for n in numbers], of)
    lists = [None if n is None else list(range(n)) for n in numbers]
    for of in (pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_view(pa.int32()), pa.large_list_view(pa.int32())):
        arrays[f"list-{of}"] = pa.array(lists, of)
    arrays["fixed"] = pa.array([None if n is None else [n, n] for n in numbers], pa.list_(pa.int16(), 2))
    arrays["struct"] = pa.array([None if n is None else {"a": n, "b": str(n)} for n in numbers])
    arrays["map"] = pa.array([None if n is None else [("k", n)] for n in numbers], pa.map_(pa.string(), pa.int32()))
    arrays["dictionary"] = pa.array([None if n is None else str(n % 3) for n in numbers]).dictionary_encode()
    arrays["runs"] = pa.RunEndEncodedArray.from_arrays([3, 10], pa.array(["a", None]))
    types, values = pa.array([0, 1] * 5, pa.int8()), [pa.array(range(10)), pa.array("abcdefghij")[:0]]
    values[1] = pa.array(list("abcdefghij"))
    arrays["sparse"] = pa.UnionArray.from_sparse(types, values)
    arrays["dense"] = pa.UnionArray.from_dense(types, pa.array([i // 2 for i in range(10)], pa.int32()), values)
    arrays["nested"] = pa.array([[{"x": lists[n or 0] or []}] for n in range(10)])
    return arrays


# Promise: python-tables
@pytest.mark.parametrize("name", zoo())
def test_every_layout_of_arrow_comes_back_bit_for_bit(c, other, name):
    array = zoo()[name]
    for key, column in (("whole", array), ("slice", array[2:9]), ("empty", array[:0])):
        table = pa.table({name: column}).replace_schema_metadata({"about": name})
        c.push_table(key, table)
        for client in (c, other):
            found = client.fetch_table(key).pyarrow()
            found.validate(full=True)
            assert found.schema.equals(table.schema, check_metadata=True)
            assert found.equals(table), name


# Promise: python-tables
def test_a_table_is_one_version_and_shares_the_memory(c, other):
    table = pa.concat_tables([pa.table({"a": np.arange(n), "b": np.ones(n, "float32")}) for n in (1000, 1, 500)])
    pushed = c.push_table("t", table, version=4)
    # Its columns lie elsewhere, and are copied once.
    assert pushed.version == 4 and 1501 * 12 <= pushed.report.copied <= pushed.report.bytes
    fetched = other.fetch_table("t", at_least=4)
    assert (fetched.version, fetched.num_rows, fetched.column_names) == (4, 1501, ["a", "b"])
    assert fetched.report.copied == 0
    one, two = fetched.pyarrow(), pa.table(fetched)
    assert one.column("a").num_chunks == 3 and one.equals(table)
    assert [b.address for b in one.column("a").chunk(0).buffers() if b] == [
        b.address for b in two.column("a").chunk(0).buffers() if b
    ]
    assert pa.schema(fetched) == table.schema
    del fetched, one
    other.close()
    c.close()
    assert two.column("a").to_pylist() == table.column("a").to_pylist()


def test_anything_with_arrow_s_capsules_is_a_table(c):
    batch = pa.record_batch({"a": [1, None, 3], "s": ["x", "yy", None]})

    class OnlyStream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table(batch).__arrow_c_stream__(requested_schema)

    reader = pa.RecordBatchReader.from_batches(batch.schema, iter([batch, batch]))
    whole = pa.table(batch)
    for value, expected in ((batch, whole), (OnlyStream(), whole), (reader, pa.concat_tables([whole] * 2)), (whole[:0], whole[:0])):
        c.push_table("k", value)
        fetched = c.fetch_table("k")
        assert fetched.num_rows == expected.num_rows and fetched.pyarrow().equals(expected)
    c.push_table("k", batch)
    c.push_table("again", c.fetch_table("k"))
    assert c.fetch_table("again").pyarrow().to_batches() == [batch]
    # Misaligned buffers are taken, too.
    odd = pa.py_buffer(b"x" + np.arange(4, dtype="int64").tobytes())[1:]
    array = pa.Array.from_buffers(pa.int64(), 4, [None, odd])
    c.push_table("odd", pa.table({"a": array}))
    assert c.fetch_table("odd").pyarrow().column("a").to_pylist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="no table"):
        c.push_table("k", {"a": [1]})

    def fails():
        yield batch
        raise ValueError("the source is broken")

    with pytest.raises(td.Invalid, match="the source is broken"):
        c.push_table("k", pa.RecordBatchReader.from_batches(batch.schema, fails()))


PICKLE = b"\x80\x04K\x01."


def with_metadata(place: str, metadata: dict[bytes, bytes] | None) -> pa.Schema:
    """A schema that has this metadata at one place."""
    mark = lambda at, field: field.with_metadata(metadata) if at == place else field
    inner = mark("x", pa.field("x", pa.int64()))
    item = mark("item", pa.field("item", pa.struct([inner])))
    column = mark("column", pa.field("column", pa.list_(item)))
    pair = pa.field("pair", pa.map_(pa.string(), mark("value", pa.field("value", pa.int64()))))
    return pa.schema([column, pair], metadata if place == "schema" else None)


PLACES = {
    "schema": "the schema has",
    "column": 'field "column" has',
    "item": 'field "column.item" has',
    "x": 'field "column.item.x" has',
    "value": 'field "pair.entries.value" has',
}


# Promise: python-metadata
@pytest.mark.parametrize("module", [td, td.aio])
@pytest.mark.parametrize("place", PLACES)
def test_metadata_that_is_no_text_is_named_with_its_field_and_key(sidecar, module, place):
    async def tried(c):
        x = await settled(c.exchange("x", partitions=2, tasks=1))
        task = await settled(x.task(0))
        calls = {
            "push_table": lambda value: c.push_table("t", value),
            "push_stream": lambda value: c.push_stream("s", value),
            "BatchWriter.push": lambda value: c.push_stream("b", pa.schema([])).push(value),
            "ExchangeTask.write": lambda value: task.write(value),
            "range": lambda value: task.write(pa.table({}), range=value),
        }
        for metadata, what in (
            ({b"format": b"text", b"p": PICKLE}, r'under the key "p" that is not UTF-8: it begins with b"\x80\x04K\x01."'),
            ({b"\xffkey": b"text"}, r'under a key that is not UTF-8: it begins with b"\xffkey"'),
        ):
            schema = with_metadata(place, metadata)
            values = [schema.empty_table(), pa.RecordBatchReader.from_batches(schema, iter(()))]
            values += [pa.RecordBatch.from_pylist([], schema)]
            for name, call in calls.items():
                for value in [schema] if name == "push_stream" else values:
                    with pytest.raises(td.Invalid) as e:
                        await settled(call(value))
                    right = f"{PLACES[place]} metadata {what}. Metadata is text: encode it, for example in base64"
                    assert (str(e.value), e.value.code) == (right, "invalid"), name

    async def with_client():
        c = await settled(module.connect(sidecar.path, arena="4MiB"))
        try:
            await tried(c)
        finally:
            await settled(c.close())

    asyncio.run(with_client())


# Promise: python-metadata
def test_a_field_whose_name_is_no_text_is_an_error(c):
    inner = pa.struct([pa.field(b"\xffx", pa.int64())])
    for schema, at in ((pa.schema([pa.field("a", inner)]), 'field "a"'), (pa.schema(list(inner)), "the schema")):
        with pytest.raises(td.Invalid) as e:
            c.push_stream("s", schema)
        assert str(e.value) == rf'{at} has a field whose name is not UTF-8: it begins with b"\xffx". Rename it'


# Promise: python-metadata
@pytest.mark.parametrize("place", PLACES)
def test_metadata_that_is_text_comes_back_at_every_place(c, other, place):
    metadata = {"p".encode(): base64.b64encode(PICKLE), "ü".encode(): "ä\n\0".encode(), b"": b""}
    schema = with_metadata(place, metadata)
    c.push_table("t", schema.empty_table())
    found = other.fetch_table("t").pyarrow().schema
    assert found.equals(schema, check_metadata=True)
    assert found.equals(with_metadata(place, {**metadata, b"p": b"?"}), check_metadata=True) is False


def test_tensors_and_tables_are_told_apart(c):
    c.push("tensor", b"1")
    c.push_table("table", pa.table({"a": [1]}))
    for wrong, says in ((lambda: c.fetch("table"), r"no dense tensor.*fetch_table\(\)"), (lambda: c.fetch_table("tensor"), r"no record batch.*fetch\(\)")):
        with pytest.raises(td.Error, match=says) as e:
            wrong()
        assert (e.value.fault, e.value.code) == ("caller", "invalid")


# Promise: python-streams
def test_a_stream_brings_its_batches_in_order_and_then_its_end(c, other):
    schema = pa.schema({"n": pa.int64(), "s": pa.dictionary(pa.int32(), pa.string())})
    batches = [pa.record_batch([[n] * 3, pa.array(list("abc")[: n + 1] * 3)[:3].dictionary_encode()], schema) for n in range(3)]
    reader = other.fetch_stream("s", timeout=GIVE_UP)
    stream = c.push_stream("s", schema)
    for batch in batches:
        assert [p.version for p in stream.push(batch)] == [batch.column(0)[0].as_py() + 1]
    with ThreadPoolExecutor() as threads:
        ends = threads.submit(stream.finish, timeout=GIVE_UP)
        found = [table.pyarrow() for table in reader]
        assert ends.result() is None
    assert [t.column("n").to_pylist() for t in found] == [[n] * 3 for n in range(3)]
    assert [t.column("s").to_pylist() for t in found] == [b.column(1).to_pylist() for b in batches]
    assert list(reader) == []
    with pytest.raises(td.Error) as e:
        stream.push(batches[0])
    assert e.value.code == "closed"
    # One that is broken off does not end.
    with pytest.raises(RuntimeError):
        with c.push_stream("broken", schema) as broken:
            broken.push(batches[0])
            raise RuntimeError
    reader = other.fetch_stream("broken", timeout=0.05)
    next(reader)
    with pytest.raises(td.Timeout):
        next(reader)


# Promise: writer-of-a-stream
def test_the_end_of_a_writer_reaches_its_readers(c, other):
    table = pa.table({"a": [1, 2]})
    with td.connect(c.path, name="writer") as writer:
        stream = writer.push_stream("ends", table.schema, readers=2)
        stream.push(table)
        waits, late = (reader.fetch_stream("ends", timeout=None) for reader in (c, other))
        assert next(waits).num_rows == next(late).num_rows == 2
        with ThreadPoolExecutor() as threads:
            next_of_it = threads.submit(next, waits)
            writer.close()
            failed = [pytest.raises(td.VersionGone, next_of_it.result, GIVE_UP), pytest.raises(td.VersionGone, next, late)]
    for error in failed:
        assert error.match('worker "writer".*v1 was the last')


# Promise: end-of-a-stream
# Promise: python-end-of-a-stream
def test_the_end_of_a_stream_waits_for_its_readers(c, other):
    table = pa.table({"a": list(range(10))})
    read = []

    def read_slowly():
        for batch in other.fetch_stream("slow", timeout=GIVE_UP):
            read.append(batch.pyarrow().num_rows)

    reader = threading.Thread(target=read_slowly)
    with td.connect(c.path) as writer:
        with writer.push_stream("slow", table.schema) as stream:
            for _ in range(20):
                stream.push(table)
            reader.start()
    # The writer is closed, and nothing is lost.
    reader.join(GIVE_UP)
    assert read == [10] * 20
    stream = c.push_stream("not read", table.schema)
    for _ in range(20):
        stream.push(table)
    next(other.fetch_stream("not read", timeout=GIVE_UP))
    with pytest.raises(td.Timeout, match="19 of its 20 batches") as e:
        stream.finish(timeout=0.05)
    assert (e.value.code, e.value.key, e.value.can_retry) == ("not_read", "not read", True)
    # The end of the client ends the wait.
    stream = c.push_stream("closed", table.schema)
    stream.push(table)
    with ThreadPoolExecutor() as threads:
        ends = threads.submit(stream.finish, timeout=None)
        until("it waits", lambda: stream.unread == 1)
        assert not ends.done()
        c.close()
        with pytest.raises(td.Error) as closed:
            ends.result(GIVE_UP)
    assert closed.value.code == "closed"


# Promise: python-end-of-a-stream
@pytest.mark.parametrize("module", [td, td.aio])
def test_a_stream_that_was_not_read_in_time_is_finished_again(sidecar, other, module):
    table = pa.table({"a": [1, 2, 3]})

    async def tried(c):
        stream = c.push_stream("s", table.schema, readers=1)
        for _ in range(4):
            await settled(stream.push(table))
        assert stream.unread is None
        reader = other.fetch_stream("s", timeout=GIVE_UP)
        for unread in (4, 3, 2, 1):
            with pytest.raises(td.Timeout, match=f"{unread} of its 4 batches") as e:
                await settled(stream.finish(timeout=0.02))
            assert (e.value.code, stream.unread) == ("not_read", unread)
            # It has ended all the same.
            with pytest.raises(td.Error, match="ended with 4 batches") as late:
                await settled(stream.push(table))
            assert late.value.code == "closed"
            assert next(reader).pyarrow().equals(table)
        # The progress is seen while it waits.
        if module is td:
            with ThreadPoolExecutor() as threads:
                ends = threads.submit(stream.finish, timeout=GIVE_UP)
                until("it is told", lambda: stream.unread == 0)
                assert not ends.done() and list(reader) == []
                ends.result(GIVE_UP)
        else:
            ends = asyncio.create_task(stream.finish(timeout=GIVE_UP))
            while stream.unread != 0:
                await asyncio.sleep(0.001)
            assert not ends.done() and list(reader) == []
            await ends
        # Now it is done, and stays so.
        await settled(stream.finish(timeout=0))

    async def with_client():
        c = await settled(module.connect(sidecar.path, arena="4MiB"))
        try:
            await tried(c)
        finally:
            await settled(c.close())

    asyncio.run(asyncio.wait_for(with_client(), 2 * GIVE_UP))


def test_streams_and_tables_in_asyncio(sidecar):
    from test_waits import run

    table = pa.table({"a": list(range(10))})

    async def main(client):
        await client.push_table("t", table)
        assert (await client.fetch_table("t")).pyarrow().equals(table)
        writer = client.push_stream("s", table.schema)
        batches = [table[n:] for n in range(3)]
        for batch in batches:
            await writer.push(batch)
        ends = asyncio.create_task(writer.finish(timeout=GIVE_UP))
        while writer.unread != 3:
            await asyncio.sleep(0.001)
        assert not ends.done(), "nothing is read"
        read = [batch.pyarrow() async for batch in client.fetch_stream("s")]
        assert len(read) == 3 and all(found.equals(batch) for found, batch in zip(read, batches))
        await ends

    run(sidecar, main)
