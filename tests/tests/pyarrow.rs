//! Exchanges record batches with pyarrow as Arrow IPC files: files that pyarrow wrote are pushed, and pyarrow checks
//! the fetched ones.
//!
//! pip installs pyarrow once, into a virtual environment in the target folder.

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{DataType, Schema, SchemaRef};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::{BlockingClient, DType, FixedShapeTensor};
use transfer_tests::{Scene, WAIT_LIMIT};

/// The release of pyarrow that these tests use.
const PYARROW: &str = "pyarrow==26.0.1";

/// Returns a Python interpreter with pyarrow, and installs it if it is missing.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("python").join(PYARROW.replace("==", "-"));
    let python = folder.join("bin/python");
    // Another test process may be installing pyarrow. This one then waits for its lock, which the kernel releases with
    // that process.
    std::fs::create_dir_all(target.join("python")).expect("the target folder can be written");
    let lock = File::create(folder.with_added_extension("lock")).expect("the target folder can be written");
    lock.lock().expect("a file can be locked");
    if folder.join("ready").exists() {
        return python;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder), "Python 3 with venv is needed");
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", PYARROW];
    run(Command::new(&python).args(pip), "pip installs pyarrow from where it is set up to");
    File::create(folder.join("ready")).expect("the target folder can be written");
    python
}

fn run(command: &mut Command, what: &str) {
    let output = command.output().unwrap_or_else(|e| panic!("{what}: {command:?}: {e}"));
    assert!(output.status.success(), "{what}: {command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn check(python: &Path, what: &str, folder: &Path, names: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pyarrow/check.py");
    run(Command::new(python).arg(script).arg(what).arg(folder).args(names), "pyarrow finds it right");
}

fn write_file(path: &Path, schema: &SchemaRef, batches: &[RecordBatch]) {
    let mut writer = FileWriter::try_new(File::create(path).expect("a file"), schema).expect("a writer");
    batches.iter().for_each(|batch| writer.write(batch).expect("written"));
    writer.finish().expect("ended");
}

// Promise: record-batches, seen to fail
#[test]
fn pyarrow_and_transfer_exchange_tables() {
    let python = python();
    let scene = Scene::two();
    let folder = tempfile::tempdir().expect("a folder");
    check(&python, "make", folder.path(), &[]);
    let connect = |socket: PathBuf, name: &str| {
        let connect = BlockingClient::connect(socket).name(name).arena_bytes(16 << 20);
        connect.call().expect("the sidecar takes workers")
    };
    let pusher = connect(scene.a().socket(), "pusher");
    let readers = [connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far")];

    // A table of every layout.
    let file = FileReader::try_new(File::open(folder.path().join("made.arrow")).expect("made"), None).expect("a file");
    let (schema, made) = (file.schema(), file.collect::<Result<Vec<_>, _>>().expect("read"));
    pusher.push_table("table", &schema, &made).call().expect("pushed");
    for reader in &readers {
        let got = reader.fetch_table("table").call().expect("fetched");
        assert_eq!(got.batches(), made);
        write_file(&folder.path().join("fetched.arrow"), got.schema(), got.batches());
        check(&python, "same", folder.path(), &["made.arrow", "fetched.arrow"]);
    }
    // A stream with a dictionary that grows.
    let made = File::open(folder.path().join("made-stream.arrows")).expect("made");
    let made = StreamReader::try_new(made, None).expect("a stream");
    let mut stream = pusher.push_stream("stream", &made.schema()).readers(2);
    for batch in made {
        stream.push(&batch.expect("read")).call().expect("pushed");
    }
    let mut finish = stream.finish().timeout(WAIT_LIMIT).begin();
    assert!(finish.wait(Duration::ZERO).is_none(), "it waits for its readers");
    for reader in &readers {
        let mut batches = reader.fetch_stream("stream");
        let path = folder.path().join("fetched-stream.arrows");
        let mut writer = None;
        while let Some(got) = batches.next().expect("fetched") {
            let writer = writer.get_or_insert_with(|| {
                StreamWriter::try_new(File::create(&path).expect("a file"), got.batch().schema_ref()).expect("a writer")
            });
            writer.write(got.batch()).expect("written");
        }
        writer.expect("there was a batch").finish().expect("ended");
        check(&python, "same", folder.path(), &["made-stream.arrows", "fetched-stream.arrows"]);
    }
    finish.wait(WAIT_LIMIT).expect("both have read all of it").expect("ended");
    drop((finish, stream));
    // A column of fixed-shape tensors, as the specification defines them.
    let mut tensor = pusher.allocate(DType::F32, [10, 2, 3]).expect("room");
    tensor.as_mut_slice::<f32>().expect("f32").iter_mut().enumerate().for_each(|(n, v)| *v = n as f32);
    let shape = FixedShapeTensor {
        dim_names: Some(vec!["r".into(), "c".into()]),
        permutation: Some(vec![1, 0]),
        ..FixedShapeTensor::new(DataType::Float32, [2, 3])
    };
    let schema = Arc::new(Schema::new(vec![shape.field("samples", false).expect("a field")]));
    let column = shape.array(tensor.freeze().to_array().expect("an array")).expect("a column");
    let batch = RecordBatch::try_new(schema, vec![Arc::new(column)]).expect("a batch");
    pusher.push_batch("tensors", &batch).call().expect("pushed");
    let got = readers[1].fetch_batch("tensors").call().expect("fetched").into_batch();
    write_file(&folder.path().join("tensors.arrow"), &got.schema(), std::slice::from_ref(&got));
    check(&python, "tensors", folder.path(), &["tensors.arrow"]);
    // A column of fixed-shape tensors that pyarrow made is recognized, too.
    let table = readers[0].fetch_table("table").call().expect("fetched");
    let field = table.schema().field_with_name("tensors").expect("a column");
    assert_eq!(FixedShapeTensor::of_field(field).expect("right"), Some(shape));
    drop((table, got, batch));
    drop((pusher, readers));
    scene.end();
}
