//! Record batches: a fetched batch equals the pushed one as Arrow's own IPC would transfer it, on one node and between
//! two.

use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, Float32Array, Int32Array, RecordBatch, StringArray};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::sync::Arc;
use std::time::Duration;
use transfer_client::{
    BatchError, BlockingClient, Client, DType, Error, FabricKind, FailureCode, Fault, FixedShapeTensor,
};
use transfer_tests::batches::Chance;
use transfer_tests::{Carrier, Scene, WAIT_LIMIT, poll};

fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(32 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// Returns the batches after arrow-rs has written them as an IPC stream and read them again.
fn by_ipc(schema: &SchemaRef, batches: &[RecordBatch]) -> Vec<RecordBatch> {
    let options = arrow_ipc::writer::IpcWriteOptions::default();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), schema, options).expect("a stream");
    batches.iter().for_each(|batch| writer.write(batch).expect("written"));
    let bytes = writer.into_inner().expect("ended");
    StreamReader::try_new(&bytes[..], None).expect("a stream").collect::<Result<_, _>>().expect("read")
}

/// Returns the addresses of all buffers of an array, those of its children included.
fn addresses(array: &dyn Array) -> Vec<usize> {
    fn of(data: &arrow_data::ArrayData, all: &mut Vec<usize>) {
        all.extend(data.buffers().iter().filter(|b| !b.is_empty()).map(|b| b.as_ptr().addr()));
        all.extend(data.nulls().map(|n| n.buffer().as_ptr().addr()));
        data.child_data().iter().for_each(|child| of(child, all));
    }
    let mut all = Vec::new();
    of(&array.to_data(), &mut all);
    all
}

// Promise: record-batches, seen to fail
#[test]
fn fetched_batches_equal_their_ipc_round_trip() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let seeds = std::env::var("TRANSFER_BATCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        let (schema, batches) = Chance::new(seed).table(1 + (seed % 3) as usize);
        let expected = by_ipc(&schema, &batches);
        let pushed =
            pusher.push_table("t", &schema, &batches).call().unwrap_or_else(|e| panic!("{seed}: {schema}: {e}"));
        for (client, fabric) in [(&near, "local"), (&far, Carrier::chosen().name())] {
            let got = client.fetch_table("t").exactly(pushed.version).call();
            let got = got.unwrap_or_else(|e| panic!("{seed}: {fabric}: {schema}: {e}"));
            assert_eq!(got.schema(), &schema, "{seed}");
            assert_eq!(got.batches(), expected, "{seed}: {fabric}: {schema}");
            assert_eq!(got.report().fabric.name(), fabric);
            for batch in got.batches() {
                batch.columns().iter().for_each(|c| c.to_data().validate_full().expect("valid"));
            }
        }
        // A fetched table can be pushed again.
        let again = far.fetch_table("t").call().expect("it is there");
        far.push_table("again", &schema, again.batches()).call().expect("pushed on");
        assert_eq!(near.fetch_table("again").at_least(pushed.version).call().expect("fetched").batches(), expected);
    }
    drop((pusher, near, far));
    scene.end();
}

// Promise: record-batches, seen to fail
#[test]
fn batch_built_in_the_arena_is_pushed_without_a_copy() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let free = pusher.arena_free_bytes();
    let schema = every_layout();
    let rows = 500;
    let batch = build(&pusher, &schema, rows);
    let expected = by_ipc(&schema, std::slice::from_ref(&batch));
    let pushed = pusher.push_batch("built", &batch).call().expect("pushed");
    assert_eq!((pushed.report.copied, pushed.report.fabric), (0, FabricKind::Local));
    let got = near.fetch_batch("built").call().expect("fetched");
    assert_eq!((got.batch(), got.report().copied), (&expected[0], 0));
    drop(got);
    let got = far.fetch_batch("built").call().expect("fetched");
    assert_eq!(got.batch(), &expected[0]);
    // The arrays use the buffers where they have landed, at multiples of 64 bytes.
    assert!(got.batch().columns().iter().flat_map(|c| addresses(c)).all(|address| address % 64 == 0));
    // A push of a slice copies only the buffers that the slice needs anew.
    let slice = batch.slice(13, 100);
    let pushed = pusher.push_batch("slice", &slice).call().expect("pushed");
    assert!(pushed.report.copied > 0 && pushed.report.copied < 8 * 1024, "{}", pushed.report);
    let expected = by_ipc(&schema, std::slice::from_ref(&slice));
    for client in [&near, &far] {
        assert_eq!(client.fetch_batch("slice").call().expect("fetched").batch(), &expected[0]);
    }
    // A push to another worker.
    let pushed = pusher.push_batch("there", &batch).to("far").call().expect("pushed");
    assert_eq!(pushed.report.fabric.name(), Carrier::chosen().name());
    assert_eq!(far.fetch_batch("there").require(FabricKind::Local).call().expect("it is there").batch(), &batch);
    // All memory of the batch is free again.
    drop((batch, slice, got));
    for key in ["built", "slice"] {
        pusher.delete(key).call().expect("it is its own");
    }
    let all_free = poll(|| match pusher.arena_free_bytes() {
        bytes if bytes == free => Ok(()),
        bytes => Err(bytes),
    });
    assert_eq!(all_free, Ok(()), "of {free}");
    drop((pusher, near, far));
    scene.end();
}

/// Returns a schema with one column for each layout that a builder writes in its own way.
fn every_layout() -> SchemaRef {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let entries = vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int64, true)];
    let entries = Arc::new(Field::new("entries", DataType::Struct(entries.into()), false));
    let variants = || {
        let fields = [Field::new("n", DataType::Int32, true), Field::new("s", DataType::Utf8, true)];
        arrow_schema::UnionFields::try_new([0, 5], fields).expect("a union")
    };
    let ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
    let fields = [
        ("f32", DataType::Float32),
        ("bool", DataType::Boolean),
        ("utf8", DataType::Utf8),
        ("large", DataType::LargeBinary),
        ("view", DataType::Utf8View),
        ("fixed", DataType::FixedSizeBinary(5)),
        ("decimal", DataType::Decimal128(38, 3)),
        ("list", DataType::List(item(DataType::Int32))),
        ("list_view", DataType::ListView(item(DataType::Int32))),
        ("tensor", DataType::FixedSizeList(item(DataType::Float32), 4)),
        ("struct", DataType::Struct(vec![Field::new("a", DataType::Int32, true)].into())),
        ("map", DataType::Map(entries, false)),
        ("dense", DataType::Union(variants(), arrow_schema::UnionMode::Dense)),
        ("sparse", DataType::Union(variants(), arrow_schema::UnionMode::Sparse)),
        ("runs", DataType::RunEndEncoded(ends, Arc::new(Field::new("values", DataType::Int32, true)))),
    ];
    let own_nulls = |t: &DataType| !matches!(t, DataType::Union(..) | DataType::RunEndEncoded(..));
    Arc::new(Schema::new(fields.map(|(name, t)| Field::new(name, t.clone(), own_nulls(&t))).to_vec()))
}

fn build(client: &BlockingClient, schema: &SchemaRef, rows: usize) -> RecordBatch {
    fill(client, schema, rows).expect("the arena has room")
}

fn fill(client: &BlockingClient, schema: &SchemaRef, rows: usize) -> Result<RecordBatch, Error> {
    let mut b = client.batch_builder(schema)?.rows(rows)?;
    for (at, value) in b.column("f32")?.values_mut::<f32>(rows)?.iter_mut().enumerate() {
        *value = at as f32;
    }
    for n in 0..rows {
        let (text, i) = (format!("row {n} {}", "x".repeat(n % 17)), n as i32);
        b.column("bool")?.append_bool(n % 3 == 0)?;
        match n % 5 {
            0 => ["utf8", "large", "view", "fixed", "decimal", "list", "list_view", "tensor", "struct", "map"]
                .into_iter()
                .try_for_each(|name| b.column(name)?.append_null())?,
            _ => {
                b.column("utf8")?.append_str(&text)?;
                b.column("large")?.append_bytes(text.as_bytes())?;
                b.column("view")?.append_str(&text)?;
                b.column("fixed")?.append_bytes(&text.as_bytes()[..5])?;
                b.column("decimal")?.append::<arrow_array::types::Decimal128Type>(-(n as i128))?;
                for name in ["list", "list_view"] {
                    b.column(name)?.child(0)?.append_slice::<Int32Type>(&vec![i; n % 4])?;
                    b.column(name)?.close()?;
                }
                b.column("tensor")?.child(0)?.append_slice::<Float32Type>(&[n as f32; 4])?;
                b.column("tensor")?.close()?;
                b.column("struct")?.child(0)?.append::<Int32Type>(i)?;
                b.column("struct")?.close()?;
                let mut map = b.column("map")?;
                for value in 0..n % 3 {
                    let mut entries = map.child(0)?;
                    entries.child(0)?.append_str(&text)?;
                    entries.child(1)?.append::<arrow_array::types::Int64Type>(value as i64)?;
                    entries.close()?;
                }
                map.close()?;
            }
        }
        for name in ["dense", "sparse"] {
            match n % 2 {
                0 => b.column(name)?.variant(0)?.append::<Int32Type>(i)?,
                _ => b.column(name)?.variant(5)?.append_str(&text)?,
            }
        }
        if n % 10 == 0 {
            b.column("runs")?.run(10.min(rows - n))?.append::<Int32Type>(i)?;
        }
    }
    b.finish()
}

#[test]
fn builder_refuses_wrong_values_and_lengths() {
    let scene = Scene::one();
    let client = connect(scene.a().socket(), "pusher");
    let schema = every_layout();
    let mut builder = client.batch_builder(&schema).expect("a builder");
    let mut wrong = |name: &str, write: fn(&mut transfer_client::ColumnMut<'_>) -> Result<(), Error>| {
        let e = write(&mut builder.column(name).expect("a column")).expect_err(name);
        assert!(matches!(e, Error::Batch(BatchError::WrongColumn { .. })), "{name}: {e}");
        assert!(e.to_string().contains(name), "{e}");
    };
    wrong("f32", |c| c.append::<Int32Type>(1));
    wrong("f32", |c| c.values_mut::<f64>(1).map(drop));
    wrong("f32", |c| c.append_bool(true));
    wrong("f32", |c| c.close());
    wrong("f32", |c| c.child(0).map(drop));
    wrong("utf8", |c| c.append_bytes(b"x"));
    wrong("fixed", |c| c.append_bytes(b"four"));
    wrong("dense", |c| c.append_null());
    wrong("dense", |c| c.variant(1).map(drop));
    wrong("runs", |c| c.run(0).map(drop));
    wrong("list", |c| c.dictionary(Arc::new(Int32Array::from(vec![1]))));
    builder.column("bool").expect("a column").append_bool(true).expect("appended");
    let e = builder.finish().expect_err("columns of different lengths");
    assert!(matches!(e, Error::Batch(BatchError::Arrow { .. })), "{e}");
    // The memory that the builder has written is free again.
    assert_eq!(client.arena_free_bytes(), client.arena_bytes());
    drop(client);
    scene.end();
}

// Promise: streams, seen to fail
#[test]
fn stream_keeps_order_and_sends_only_new_dictionary_values() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let words = |n: i32| -> ArrayRef {
        let values: StringArray = (0..10 + n).map(|w| Some(format!("word {w} {}", "y".repeat(100)))).collect();
        let keys = Int32Array::from_iter_values((0..40).map(|k| k % (10 + n)));
        Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(values)).expect("a dictionary"))
    };
    let batches: Vec<_> =
        (0..8).map(|n| RecordBatch::try_from_iter([("words", words(n / 2))]).expect("a batch")).collect();
    let schema = batches[0].schema();
    // The readers ask for the stream before it exists.
    let (mut here, mut there) = (near.fetch_stream("s"), far.fetch_stream("s"));
    let mut copied = Vec::new();
    let mut stream = pusher.push_stream("s", &schema).readers(2);
    for batch in &batches {
        copied.push(stream.push(batch).call().expect("pushed").report.copied);
    }
    // The end waits for the readers.
    let mut finish = stream.finish().begin();
    assert!(finish.wait(Duration::from_millis(20)).is_none());
    // The first batch copies the whole dictionary. A batch with the same dictionary copies none of it, and a batch
    // with a longer dictionary copies only the addition.
    assert!(copied[1] < copied[0] / 4 && copied[1] < copied[2] && copied[2] < copied[0] / 2, "{copied:?}");
    for reader in [&mut here, &mut there] {
        for batch in &batches {
            let got = reader.next().expect("fetched").expect("there is one");
            assert_eq!(got.batch(), batch);
        }
        assert!(reader.next().expect("the end").is_none());
        assert!(reader.next().expect("it stays").is_none());
    }
    finish.wait(WAIT_LIMIT).expect("both have read all of it").expect("ended");
    drop((finish, stream));
    // No batch stays published once both readers have fetched it.
    scene.a().until("all batches are gone", |s| s.counters.as_ref().is_some_and(|c| c.tensors == 0));
    let mut stream = pusher.push_stream("other", &schema);
    let wrong = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).expect("a batch");
    let e = Error::from(stream.push(&wrong).call().expect_err("another schema"));
    assert!(matches!(e, Error::Batch(BatchError::OtherSchema { .. })), "{e}");
    stream.push(&batches[0]).call().expect("nothing was lost by that");
    drop((stream, here, there));
    drop((pusher, near, far));
    scene.end();
}

#[test]
fn fixed_shape_tensors_form_a_column() {
    let scene = Scene::one();
    let client = connect(scene.a().socket(), "pusher");
    let mut tensor = client.allocate(DType::F32, [10, 2, 3]).expect("room");
    tensor.as_mut_slice::<f32>().expect("f32").iter_mut().enumerate().for_each(|(n, v)| *v = n as f32);
    let shape = FixedShapeTensor {
        dim_names: Some(vec!["rows".into(), "columns".into()]),
        permutation: Some(vec![1, 0]),
        ..FixedShapeTensor::new(DataType::Float32, [2, 3])
    };
    let field = shape.field("samples", false).expect("a field");
    let column = shape.array(tensor.freeze().to_array().expect("an array")).expect("a column");
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(column)]).expect("a batch");
    assert_eq!(client.push_batch("tensors", &batch).call().expect("pushed").report.copied, 0);
    let got = client.fetch_batch("tensors").call().expect("fetched").into_batch();
    assert_eq!(got, batch);
    let found = FixedShapeTensor::of_field(got.schema().field(0)).expect("right").expect("it is one");
    assert_eq!(found, shape);
    let tensors = found.values(got.column(0)).expect("tensors");
    let values = tensors.as_any().downcast_ref::<Float32Array>().expect("f32");
    assert_eq!((values.len(), values.value(59)), (60, 59.0));
    drop((tensors, got, batch));
    drop(client);
    scene.end();
}

/// A batch is fetched as a batch, and a tensor as a tensor. The other call fails, and the error for a batch names
/// `fetch_batch`.
#[test]
fn batches_and_tensors_are_not_interchangeable() {
    let scene = Scene::one();
    let client = connect(scene.a().socket(), "pusher");
    let batch = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).expect("a batch");
    client.push_batch("batch", &batch).call().expect("pushed");
    client.push_slice("tensor", [1], &[1_u8]).call().expect("pushed");
    client.push_table("two", &batch.schema(), [&batch, &batch]).call().expect("pushed");
    client.push_table("none", &batch.schema(), []).call().expect("pushed");
    let e = client.fetch("batch").call().expect_err("no tensor");
    assert!(matches!(&e, Error::Batch(BatchError::NotATensor { .. })) && e.to_string().contains("fetch_batch"), "{e}");
    let e = client.fetch_batch("tensor").call().expect_err("no batch");
    assert!(matches!(e, Error::Batch(BatchError::NotABatch { .. })), "{e}");
    let e = client.fetch_batch("two").call().expect_err("two batches");
    assert!(matches!(e, Error::Batch(BatchError::NotOne { found: 2 })), "{e}");
    let none = client.fetch_table("none").call().expect("fetched");
    assert_eq!((none.schema(), none.batches().len()), (&batch.schema(), 0));
    // The failed fetches hold no lease.
    scene.a().until("nothing is held", |s| s.counters.as_ref().is_some_and(|c| c.leases == 0));
    drop((batch, none));
    drop(client);
    scene.end();
}

/// After a restart of the sidecar, the batch is published again with all its ranges.
#[test]
fn batch_is_republished_after_a_sidecar_restart() {
    let mut scene = Scene::one();
    let client = connect(scene.a().socket(), "pusher");
    let (schema, free) = (every_layout(), client.arena_free_bytes());
    let batch = build(&client, &schema, 50);
    client.push_batch("k", &batch).call().expect("pushed");
    let first = client.incarnation();
    scene.nodes[0].kill();
    scene.nodes[0].restart();
    poll(|| if client.incarnation() == first { Err(()) } else { Ok(()) }).expect("it comes back");
    let reader = connect(scene.a().socket(), "reader");
    let got = poll(|| reader.fetch_batch("k").call()).expect("it is published again");
    assert_eq!(got.batch(), &batch);
    drop((got, batch));
    client.delete("k").call().expect("it is its own");
    let all_free = poll(|| if client.arena_free_bytes() == free { Ok(()) } else { Err(client.arena_free_bytes()) });
    assert_eq!(all_free, Ok(()));
    drop((client, reader));
    scene.end();
}

/// The writer of a stream ends before its stream does. Those who wait for the next batch hear of it at once, and those who come
/// later: on its node, and on another one.
// Promise: writer-of-a-stream
#[test]
fn end_of_a_writer_reaches_its_readers() {
    const HOUR: Duration = Duration::from_secs(3600);
    let scene = Scene::two();
    let batch = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef)]);
    let batch = batch.expect("a batch");
    let clients = [("near", scene.a()), ("far", scene.b()), ("late near", scene.a()), ("late far", scene.b())]
        .map(|(name, sidecar)| connect(sidecar.socket(), name));
    for key in ["closed", "deleted"] {
        let writer = connect(scene.a().socket(), "writer");
        let mut stream = writer.push_stream(key, &batch.schema()).readers(4);
        let mut readers = clients.each_ref().map(|client| client.fetch_stream(key).timeout(HOUR));
        for _ in 0..2 {
            stream.push(&batch).call().expect("room");
            readers.iter_mut().for_each(|reader| assert!(reader.next().expect("it comes").is_some()));
        }
        let check = |reader: &mut transfer_client::BatchStreamReader<transfer_client::BlockingClient>| {
            let ended = reader.next().expect_err("its writer has ended");
            assert_eq!(ended.failure_code(), Some(FailureCode::VersionGone), "{key}: {ended}");
            let text = ended.to_string();
            assert!(text.contains(r#"worker "writer""#) && text.contains("v2 was the last"), "{key}: {text}");
        };
        let [near, far, late @ ..] = &mut readers;
        std::thread::scope(|scope| {
            let waits = [near, far].map(|reader| scope.spawn(move || check(reader)));
            match key {
                "closed" => writer.close(),
                _ => writer.delete(key).call().expect("it is its own"),
            }
            waits.into_iter().for_each(|wait| wait.join().expect("no panic"));
        });
        late.iter_mut().for_each(check);
        // The next writer of the key begins a stream of its own.
        drop(stream);
        let next = connect(scene.b().socket(), "next");
        let mut stream = next.push_stream(format!("{key}/next"), &batch.schema());
        stream.push(&batch).call().expect("room");
        let mut reader = clients[0].fetch_stream(format!("{key}/next"));
        assert!(reader.next().expect("it comes").is_some());
    }
    drop(clients);
    scene.end();
}

// Promise: end-of-a-stream, seen to fail
#[test]
fn end_of_a_stream_waits_for_slow_readers_and_says_what_they_have_not_read() {
    let scene = Scene::two();
    let (writer, near, far) = (
        connect(scene.a().socket(), "writer"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let batch =
        RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef)]).expect("a batch");
    let written = |key: &str, batches: u64| {
        let mut stream = writer.push_stream(key, &batch.schema()).readers(2);
        for _ in 0..batches {
            stream.push(&batch).call().expect("pushed");
        }
        stream
    };
    // Both read everything, one of them once the other is done, and keep what they read. The writer ends then.
    let mut stream = written("all", 20);
    let ends = std::thread::spawn(move || stream.finish().timeout(WAIT_LIMIT).call());
    let read = [&near, &far].map(|client| {
        let mut reader = client.fetch_stream("all");
        std::iter::from_fn(|| reader.next().expect("fetched")).collect::<Vec<_>>()
    });
    assert_eq!(read.each_ref().map(Vec::len), [20, 20]);
    ends.join().expect("no panic").expect("both have read all of it");
    // One has read three batches, and the other seven.
    let mut stream = written("some", 20);
    for (client, batches) in [(&near, 3), (&far, 7)] {
        let mut reader = client.fetch_stream("some");
        for _ in 0..batches {
            reader.next().expect("fetched").expect("there is one");
        }
    }
    let error = stream.finish().timeout(Duration::from_millis(50)).call().expect_err("17 are not read by both");
    assert!(matches!(error, Error::Batch(BatchError::NotRead { unread: 17, batches: 20, .. })), "{error}");
    for part in ["\"some\"", "17 of its 20 batches", "50ms"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    // All were read, but not the end.
    let mut stream = written("end", 1);
    let mut readers = [&near, &far].map(|client| client.fetch_stream("end"));
    readers.iter_mut().for_each(|reader| drop(reader.next().expect("fetched").expect("there is one")));
    let error = stream.finish().timeout(Duration::ZERO).call().expect_err("the end is not read");
    assert!(matches!(error, Error::Batch(BatchError::NotRead { unread: 0, batches: 1, .. })), "{error}");
    // What was not read in time can still be read, and a later call waits for it.
    let mut finish = stream.finish().timeout(WAIT_LIMIT).begin();
    assert!(finish.wait(Duration::from_millis(20)).is_none());
    assert!(readers.iter_mut().all(|reader| reader.next().expect("the end").is_none()));
    let pushed = finish.wait(WAIT_LIMIT).expect("both have read all of it").expect("ended");
    assert_eq!(stream.finish().call(), Ok(pushed), "all is read already");
    // The writer sees how far its readers are while it waits, and between two waits.
    let mut stream = written("watched", 20);
    assert_eq!(stream.unread(), None, "the sidecar was not asked");
    let not_read = stream.finish().timeout(Duration::ZERO).call().expect_err("nothing is read");
    assert!(not_read.can_retry() && not_read.fault() == Fault::Nobody, "{not_read}");
    assert_eq!(stream.unread(), Some(20));
    let mut finish = stream.finish().timeout(WAIT_LIMIT).begin();
    let mut readers = [&near, &far].map(|client| client.fetch_stream("watched"));
    for unread in (0..20).rev() {
        readers.iter_mut().for_each(|reader| drop(reader.next().expect("fetched").expect("there is one")));
        poll(|| {
            let ended = finish.wait(Duration::from_millis(1));
            match stream.unread() {
                Some(found) if found == unread && ended.is_none() => Ok(()),
                other => Err(format!("{other:?}, {ended:?}")),
            }
        })
        .expect("it is told of each");
    }
    let late = stream.push(&batch).call().expect_err("it has ended").into_parts().0;
    assert_eq!(late, Error::Batch(BatchError::Ended { key: "watched".into(), batches: 20 }));
    assert!(readers.iter_mut().all(|reader| reader.next().expect("the end").is_none()));
    finish.wait(WAIT_LIMIT).expect("both have read all of it").expect("ended");
    // The end of the key ends the wait.
    let mut stream = written("deleted", 1);
    let mut finish = stream.finish().timeout(WAIT_LIMIT).begin();
    assert!(finish.wait(Duration::from_millis(20)).is_none());
    writer.delete("deleted").call().expect("it is there");
    let error = finish.wait(WAIT_LIMIT).expect("it has ended").expect_err("nobody can read it");
    assert!(matches!(&error, Error::Failed(failure) if failure.code == FailureCode::NotOwner), "{error}");
    // The end of the client ends the wait.
    let mut stream = written("closed", 1);
    let mut finish = stream.finish().timeout(WAIT_LIMIT).begin();
    assert!(finish.wait(Duration::from_millis(20)).is_none());
    writer.close();
    assert_eq!(finish.wait(WAIT_LIMIT).expect("it has ended").expect_err("it is closed"), Error::ClientClosed);
}

/// Uses the async client. A batch with more buffers than a table may name is pushed as one piece.
#[tokio::test(flavor = "multi_thread")]
async fn batch_with_too_many_buffers_is_pushed_as_one_piece() {
    let scene = tokio::task::spawn_blocking(Scene::one).await.expect("a scene");
    let client = Client::connect(scene.a().socket()).name("pusher").arena_bytes(8 << 20).await.expect("a session");
    let columns = (0..2100).map(|n| (format!("c{n}"), Arc::new(Int32Array::from(vec![Some(n), None])) as ArrayRef));
    let batch = RecordBatch::try_from_iter(columns).expect("a batch");
    client.push_batch("wide", &batch).await.expect("pushed");
    assert_eq!(client.fetch_batch("wide").await.expect("fetched").batch(), &batch);
    let mut stream = client.push_stream("s", &batch.schema());
    stream.push(&batch).await.expect("pushed");
    let mut reader = client.fetch_stream("s");
    assert_eq!(reader.next().await.expect("fetched").expect("one").batch(), &batch);
    let (finished, end) = tokio::join!(stream.finish().into_future(), reader.next());
    finished.expect("ended");
    assert!(end.expect("the end").is_none());
    drop((client, reader, stream));
    tokio::task::spawn_blocking(|| scene.end()).await.expect("ended");
}
