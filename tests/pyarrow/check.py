"""The other side of tests/tests/pyarrow.rs: reads what this project fetched, and writes what it is to push, as Arrow IPC files.

check.py make FOLDER            writes made.arrow, and made-stream.arrows with a dictionary that grows
check.py same FOLDER NAME NAME  says whether two files hold the same schema and batches, and every value is valid
check.py tensors FOLDER NAME    says whether its column is of fixed-shape tensors, as the Rust test made them
"""

import sys
from pathlib import Path

import pyarrow as pa

ROWS = 100


def columns():
    """One column for each layout of the format."""
    numbers = [None if n % 7 == 0 else n for n in range(ROWS)]
    texts = [None if n % 5 == 0 else f"row {n} " + "x" * (n % 30) for n in range(ROWS)]
    lists = [None if n % 6 == 0 else list(range(n % 4)) for n in range(ROWS)]
    structs = [None if n % 9 == 0 else {"a": n, "b": f"b{n}"} for n in range(ROWS)]
    maps = [None if n % 8 == 0 else [(f"k{k}", k) for k in range(n % 3)] for n in range(ROWS)]
    deep = pa.int8()
    for _ in range(7):
        deep = pa.list_(deep)
    nested = 3
    for _ in range(7):
        nested = [nested]
    ids = pa.array([n % 2 for n in range(ROWS)], pa.int8())
    halves = pa.array([n // 2 for n in range(ROWS)], pa.int32())
    variants = [pa.array(range(ROWS // 2), pa.int32()), pa.array([f"v{n}" for n in range(ROWS // 2)])]
    whole = [pa.array(range(ROWS), pa.int32()), pa.array(texts)]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([10, 60, ROWS], pa.int32()), pa.array(["a", None, "c"]))
    tensors = pa.FixedShapeTensorArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0], dim_names=["r", "c"]),
        pa.array([[float(n)] * 6 for n in range(ROWS)], pa.list_(pa.float32(), 6)),
    )
    return {
        "null": pa.nulls(ROWS),
        "bool": pa.array([None if n is None else n % 2 == 0 for n in numbers]),
        "int8": pa.array(numbers, pa.int8()),
        "uint64": pa.array(numbers, pa.uint64()),
        "float16": pa.array([float(n) for n in range(ROWS)], pa.float16()),
        "float64": pa.array(numbers, pa.float64()),
        "decimal": pa.array(numbers, pa.decimal128(20, 3)),
        "decimal256": pa.array(numbers, pa.decimal256(50, 3)),
        "timestamp": pa.array(numbers, pa.timestamp("us", tz="Europe/Paris")),
        "date": pa.array(numbers, pa.date32()),
        "time": pa.array(numbers, pa.time64("us")),
        "duration": pa.array(numbers, pa.duration("s")),
        "interval": pa.array([(n, n, n) for n in range(ROWS)], pa.month_day_nano_interval()),
        "utf8": pa.array(texts),
        "large_utf8": pa.array(texts, pa.large_utf8()),
        "utf8_view": pa.array(texts, pa.string_view()),
        "binary": pa.array(texts, pa.binary()),
        "binary_view": pa.array(texts, pa.binary_view()),
        "fixed": pa.array([b"%04d" % n for n in range(ROWS)], pa.binary(4)),
        "list": pa.array(lists, pa.list_(pa.int16())),
        "large_list": pa.array(lists, pa.large_list(pa.int16())),
        "list_view": pa.array(lists, pa.list_view(pa.int16())),
        "fixed_list": pa.array([[n, n] for n in range(ROWS)], pa.list_(pa.int16(), 2)),
        "struct": pa.array(structs),
        "map": pa.array(maps, pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([nested] * ROWS, deep),
        "dense_union": pa.UnionArray.from_dense(ids, halves, variants),
        "sparse_union": pa.UnionArray.from_sparse(ids, whole),
        "dictionary": pa.array(texts).dictionary_encode(),
        "runs": runs,
        "tensors": tensors,
    }


def make(folder):
    made = columns()
    batch = pa.record_batch(list(made.values()), names=list(made))
    with pa.ipc.new_file(folder / "made.arrow", batch.schema) as file:
        for part in (batch, batch.slice(3, 50), batch.slice(0, 0)):
            file.write_batch(part)
    words = [f"word {n}" for n in range(20)]
    grows = [pa.DictionaryArray.from_arrays(pa.array([0, 1, n]), pa.array(words[: n + 1])) for n in (2, 2, 9, 19)]
    schema = pa.schema([("words", grows[0].type)])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(folder / "made-stream.arrows", schema, options=options) as stream:
        for part in grows:
            stream.write_batch(pa.record_batch([part], schema=schema))


def read(path):
    opened = pa.ipc.open_stream(path) if path.suffix == ".arrows" else pa.ipc.open_file(path)
    table = opened.read_all()
    table.validate(full=True)
    return table


def same(folder, one, other):
    a, b = read(folder / one), read(folder / other)
    assert a.schema.equals(b.schema, check_metadata=True), f"{a.schema}\n\n{b.schema}"
    assert a.num_rows == b.num_rows > 0, (a.num_rows, b.num_rows)
    for name in a.column_names:
        # Values, for equals() of runs and unions looks at how they are cut.
        assert a[name].to_pylist() == b[name].to_pylist(), name


def tensors(folder, name):
    table = read(folder / name)
    kind = table.schema.field(0).type
    assert kind == pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0], dim_names=["r", "c"]), kind
    first = table.column(0).chunk(0)
    assert first.storage.values.to_pylist() == [float(n) for n in range(60)]


if __name__ == "__main__":
    what, folder, *names = sys.argv[1:]
    {"make": make, "same": same, "tensors": tensors}[what](Path(folder), *names)
