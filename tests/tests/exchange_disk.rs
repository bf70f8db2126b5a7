//! Exchanges with more rows than fit into memory: they are written to disk, and read back.

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt64Array};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Error, Exchange, ExchangeError, ExchangeExt, Partition};
use transfer_tests::{Carrier, Scene, Sidecar, poll};

const ARENA: u64 = 16 << 20;
const ROW: usize = 1000;
const ROWS_PER_BATCH: u64 = 1000;
/// A task writes twice as much as an arena has room for.
const BATCHES: u64 = 32;
const TASKS: u32 = 3;
const PARTITIONS: u32 = 4;

/// A folder on a disk: the usual one for temporary files may lie in memory.
fn folder() -> tempfile::TempDir {
    let program = std::env::current_exe().expect("this program has a path");
    tempfile::tempdir_in(program.parent().expect("it lies in a folder")).expect("a folder can be made there")
}

/// Scenes of one node, and of two: over tcp, and over shared memory. With a device, only of two over it.
fn scenes(disk: &Path, more: &[&str]) -> Vec<Scene> {
    let disk = disk.to_str().expect("the path is UTF-8");
    let arguments = [&["--listen", "127.0.0.1:0", "--pool-bytes", "32MiB", "--spill-dir", disk], more].concat();
    let two = |carrier| Scene::over(carrier, &[&arguments, &arguments]);
    match Carrier::chosen() {
        Carrier::Tcp | Carrier::Shm => vec![Scene::with(&[&arguments]), two(Carrier::Tcp), two(Carrier::Shm)],
        device => vec![two(device)],
    }
}

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(ARENA);
    connect.call().expect("the sidecar takes workers")
}

/// Row `n` of a task: its number, and bytes that follow from it.
fn batch(task: u32, first: u64) -> RecordBatch {
    let numbers: Vec<u64> = (first..first + ROWS_PER_BATCH).collect();
    let bytes = numbers.iter().map(|n| {
        let mut row = vec![(n ^ u64::from(task)) as u8; ROW];
        row[..8].copy_from_slice(&(n * 31 + u64::from(task)).to_le_bytes());
        row
    });
    let bytes = FixedSizeBinaryArray::try_from_iter(bytes).expect("rows of one length");
    let columns = [
        ("n", Arc::new(UInt64Array::from(numbers)) as ArrayRef),
        ("task", Arc::new(UInt64Array::from(vec![u64::from(task); ROWS_PER_BATCH as usize])) as ArrayRef),
        ("bytes", Arc::new(bytes) as ArrayRef),
    ];
    RecordBatch::try_from_iter(columns).expect("the columns are of one length")
}

fn run(exchange: &Exchange<BlockingClient>, task: u32, attempt: u32) -> Result<(), Error> {
    let mut writer = exchange.task(task, attempt).call()?;
    for n in 0..BATCHES {
        writer.write(&batch(task, n * ROWS_PER_BATCH), By::Hash(&["n"])).call()?;
    }
    writer.commit().call().map(drop)
}

/// Reads a partition, and checks each row against the bytes that belong to it. Returns tasks and numbers.
fn read(exchange: &Exchange<BlockingClient>, partition: u32) -> Result<BTreeSet<(u64, u64)>, Error> {
    let mut rows = BTreeSet::new();
    let mut partition = exchange.partition(partition).timeout(Duration::from_secs(60));
    while let Some(batch) = partition.next()? {
        let number = |at: usize| batch.column(at).as_primitive::<UInt64Type>().values().clone();
        let (n, task, bytes) = (number(0), number(1), batch.column(2).as_fixed_size_binary());
        for at in 0..batch.num_rows() {
            let row = bytes.value(at);
            assert_eq!(row[..8], (n[at] * 31 + task[at]).to_le_bytes(), "row {} of task {}", n[at], task[at]);
            assert!(
                row[8..].iter().all(|byte| *byte == (n[at] ^ task[at]) as u8),
                "row {} of task {}",
                n[at],
                task[at]
            );
            assert!(rows.insert((task[at], n[at])), "row {} of task {} comes twice", n[at], task[at]);
        }
    }
    Ok(rows)
}

#[track_caller]
fn expect_all(exchange: &Exchange<BlockingClient>) {
    let rows: usize = (0..PARTITIONS).map(|p| read(exchange, p).expect("all is there").len()).sum();
    assert_eq!(rows as u64, u64::from(TASKS) * BATCHES * ROWS_PER_BATCH);
}

/// The descriptor of a sidecar's file without a name in this folder, as a path that can be opened.
fn unnamed_file(sidecar: &Sidecar, folder: &Path) -> Option<std::path::PathBuf> {
    let folder = folder.canonicalize().expect("the folder is there");
    let open = std::fs::read_dir(format!("/proc/{}/fd", sidecar.process_id())).expect("its descriptors can be listed");
    open.filter_map(|fd| Some(fd.ok()?.path())).find(|fd| {
        std::fs::read_link(fd)
            .is_ok_and(|target| target.starts_with(&folder) && target.to_string_lossy().ends_with("(deleted)"))
    })
}

// Promise: rows-on-disk
// Promise: failing-disks
#[test]
fn more_rows_than_the_arena_holds_are_written_and_read_back() {
    let disk = folder();
    for scene in scenes(disk.path(), &[]) {
        let (a, b) = (connect(scene.a(), "a"), connect(scene.b(), "b"));
        let free = [&a, &b].map(BlockingClient::arena_free_bytes);
        let opened = a.exchange("x").partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
        let joined = b.exchange("x").join().call().expect("joined");
        for task in 0..TASKS {
            run([&opened, &joined][task as usize % 2], task, 0).expect("there is room on disk");
        }
        assert!(unnamed_file(scene.a(), disk.path()).is_some(), "rows are on disk");
        assert_eq!(std::fs::read_dir(disk.path()).expect("it is there").count(), 0, "the files have no names");
        expect_all(&joined);
        expect_all(&opened);
        opened.release().call().expect("released");
        for (client, free) in [&a, &b].into_iter().zip(free) {
            let seen = poll(|| {
                client.take_answers();
                if client.arena_free_bytes() == free { Ok(()) } else { Err(client.arena_free_bytes()) }
            });
            assert_eq!(seen, Ok(()), "all of {free} bytes come back");
        }
        poll(|| unnamed_file(scene.a(), disk.path()).map_or(Ok(()), Err)).expect("nothing is left on disk");
        drop((opened, joined, a, b));
        scene.end();
    }
}

/// Two readers have an order of their own at the same time. Their partitions together are longer than the pool.
// Promise: memory-of-an-order, seen to fail
#[test]
fn partitions_in_an_order_of_their_own_take_no_more_than_their_memory() {
    let disk = folder();
    for scene in scenes(disk.path(), &[]) {
        let (a, b) = (connect(scene.a(), "a"), connect(scene.b(), "b"));
        let opened = a.exchange("x").partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
        let joined = b.exchange("x").join().call().expect("joined");
        for task in 0..TASKS {
            run(&opened, task, 0).expect("there is room on disk");
        }
        let ordered = |partition: u32, memory: u64| {
            let partition = joined.partition(partition).in_order_of(7).memory(memory);
            partition.timeout(Duration::from_secs(120)).rows_per_batch(const { NonZeroUsize::new(1000).unwrap() })
        };
        let mut readers = [ordered(0, u64::MAX), ordered(1, 16 << 20)];
        let mut rows = [Vec::new(), Vec::new()];
        let mut more = true;
        while more {
            more = false;
            for (partition, rows) in readers.iter_mut().zip(&mut rows) {
                let Some(batch) = partition.next().expect("all is there") else { continue };
                let number = |at: usize| batch.column(at).as_primitive::<UInt64Type>().values().clone();
                rows.extend(number(1).iter().copied().zip(number(0).iter().copied()));
                more = true;
            }
        }
        for (partition, rows) in (0..).zip(&rows) {
            let expected = read(&joined, partition).expect("all is there");
            assert_eq!((rows.len(), rows.iter().copied().collect::<BTreeSet<_>>()), (expected.len(), expected));
        }
        // The same in one pass, and from a position on.
        let ids = |mut partition: Partition<BlockingClient>| {
            let mut all = Vec::new();
            while let Some(batch) = partition.next().expect("all is there") {
                all.extend(batch.column(0).as_primitive::<UInt64Type>().values().iter().copied());
            }
            all
        };
        let of = |rows: &[(u64, u64)]| rows.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        assert!(ids(ordered(1, u64::MAX)) == of(&rows[1]), "the order depends on the memory");
        assert!(
            ids(ordered(0, 10 << 20).from_position(20_000)) == of(&rows[0][20_000..]),
            "the order depends on the memory"
        );
        opened.release().call().expect("released");
        drop((readers, opened, joined, a, b));
        scene.end();
    }
}

// Promise: rows-on-disk, seen to fail
#[test]
fn dropped_attempt_leaves_nothing_on_disk_and_another_one_commits() {
    let disk = folder();
    let scene = scenes(disk.path(), &[]).remove(0);
    let a = connect(scene.a(), "a");
    let exchange = a.exchange("x").partitions(PARTITIONS).tasks(1).open().call().expect("opened");
    let mut writer = exchange.task(0, 0).call().expect("begun");
    for n in 0..BATCHES {
        writer.write(&batch(9, n * ROWS_PER_BATCH), By::Hash(&["n"])).call().expect("there is room on disk");
    }
    assert!(unnamed_file(scene.a(), disk.path()).is_some(), "rows are on disk");
    drop(writer);
    poll(|| unnamed_file(scene.a(), disk.path()).map_or(Ok(()), Err)).expect("nothing is left on disk");
    run(&exchange, 0, 1).expect("committed");
    let rows: Vec<_> = (0..PARTITIONS).flat_map(|p| read(&exchange, p).expect("all is there")).collect();
    assert_eq!(rows.len() as u64, BATCHES * ROWS_PER_BATCH);
    assert!(rows.iter().all(|(task, _)| *task == 0));
    exchange.release().call().expect("released");
    drop((exchange, a));
    scene.end();
}

/// A file system of its own, of some MiB, until it is dropped.
struct SmallDisk {
    folder: tempfile::TempDir,
    mounted: PathBuf,
}

impl SmallDisk {
    /// The error says what this machine does not allow.
    fn mount(mib: u64) -> Result<SmallDisk, String> {
        let folder = folder();
        let (image, mounted) = (folder.path().join("image"), folder.path().join("mounted"));
        let file = std::fs::File::create(&image).expect("an image can be made");
        file.set_len(mib << 20).expect("it can be made longer");
        std::fs::create_dir(&mounted).expect("a folder can be made");
        let run = |command: &mut Command| match command.output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(format!("{command:?}: {error}")),
        };
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-O", "^has_journal"]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&image, &mounted]))?;
        Ok(SmallDisk { folder, mounted })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: after a test that has failed, a sidecar may still have its file open.
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.mounted).status();
        assert!(std::thread::panicking() || unmounted.is_ok_and(|status| status.success()), "{:?}", self.folder);
    }
}

/// A writer that finds no room on disk fails, and another worker goes on.
fn expect_full_disk(disk: &Path, more: &[&str]) {
    let scene = scenes(disk, more).remove(0);
    let (a, b) = (connect(scene.a(), "a"), connect(scene.a(), "b"));
    let exchange = a.exchange("x").partitions(PARTITIONS).tasks(2).open().call().expect("opened");
    let joined = b.exchange("x").join().call().expect("joined");
    let mut writer = exchange.task(0, 0).call().expect("begun");
    let failed = (0..BATCHES).find_map(|n| {
        let batch = batch(0, n * ROWS_PER_BATCH);
        writer.write(&batch, By::Hash(&["n"])).timeout(Duration::from_secs(3)).call().err()
    });
    assert!(matches!(failed, Some(Error::Client(transfer_client::Error::ArenaFull { .. }))), "{failed:?}");
    // Another worker goes on, and the first one can try again with less.
    let mut other = joined.task(1, 0).call().expect("begun");
    other.write(&batch(1, 0), By::Hash(&["n"])).call().expect("its own arena has room");
    other.commit().call().expect("committed");
    drop(writer);
    let mut again = exchange.task(0, 1).call().expect("begun");
    again.write(&batch(0, 0), By::Hash(&["n"])).call().expect("the memory of the first attempt is free");
    again.commit().call().expect("committed");
    let rows: usize = (0..PARTITIONS).map(|p| read(&joined, p).expect("all is there").len()).sum();
    assert_eq!(rows as u64, 2 * ROWS_PER_BATCH);
    exchange.release().call().expect("released");
    drop((exchange, joined, a, b));
    scene.end();
}

// Promise: failing-disks
#[test]
fn limit_of_the_disk_fails_the_writer_in_time_and_nothing_else() {
    expect_full_disk(folder().path(), &["--spill-bytes", "4MiB"]);
}

// Promise: failing-disks
#[test]
fn full_disk_fails_the_writer_in_time_and_nothing_else() {
    match SmallDisk::mount(8) {
        Ok(disk) => expect_full_disk(&disk.mounted, &[]),
        Err(why) => transfer_tests::not_run(&format!("no small file system can be mounted here: {why}")),
    }
}

// Promise: failing-disks, seen to fail
#[test]
fn flipped_bits_lose_the_task_by_name_and_no_other() {
    let disk = folder();
    for scene in scenes(disk.path(), &[]) {
        let (a, b) = (connect(scene.a(), "a"), connect(scene.b(), "b"));
        let exchange = a.exchange("x").partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
        let joined = b.exchange("x").join().call().expect("joined");
        run(&exchange, 0, 0).expect("committed");
        let file = poll(|| unnamed_file(scene.a(), disk.path()).ok_or(())).expect("rows are on disk");
        // All of what is there by now.
        let file = std::fs::OpenOptions::new().read(true).write(true).open(file).expect("root may open it");
        let len = file.metadata().expect("it is a file").len();
        for at in (0..len).step_by(16 << 10) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at + 100).expect("it can be read");
            file.write_all_at(&[byte[0] ^ 1], at + 100).expect("it can be written");
        }
        let small = |task: u32| {
            let mut writer = exchange.task(task, 0).call().expect("begun");
            writer.write(&batch(task, 0), By::Hash(&["n"])).call().expect("there is room");
            writer.commit().call().expect("committed");
        };
        small(1);
        small(2);
        let lost = read(&joined, 0);
        let Err(Error::Exchange(ExchangeError::Lost { tasks, .. })) = &lost else { panic!("{lost:?}") };
        assert_eq!(tasks, &[0]);
        run(&exchange, 0, 1).expect("another attempt takes its place");
        let rows: usize = (0..PARTITIONS).map(|p| read(&joined, p).expect("all is there").len()).sum();
        assert_eq!(rows as u64, (BATCHES + 2) * ROWS_PER_BATCH);
        exchange.release().call().expect("released");
        drop((exchange, joined, a, b));
        scene.end();
    }
}

// Promise: rows-on-disk
#[test]
fn two_exchanges_write_to_disk_beside_each_other() {
    let disk = folder();
    let scene = scenes(disk.path(), &[]).remove(0);
    let (a, b) = (connect(scene.a(), "a"), connect(scene.a(), "b"));
    std::thread::scope(|scope| {
        for (client, name) in [(&a, "one"), (&b, "other")] {
            scope.spawn(move || {
                let exchange = client.exchange(name).partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
                (0..TASKS).for_each(|task| run(&exchange, task, 0).expect("there is room on disk"));
                expect_all(&exchange);
                exchange.release().call().expect("released");
            });
        }
    });
    drop((a, b));
    scene.end();
}

// Promise: failing-disks
#[test]
fn folder_in_memory_is_refused_by_name() {
    // The tests need memory to share anyway, and Linux has it there.
    let output = Command::new(transfer_tests::programs::transferd())
        .args(["--spill-dir", "/dev/shm", "--socket"])
        .arg(folder().path().join("never.sock"))
        .output()
        .expect("transferd can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for word in ["--spill-dir", "/dev/shm", "in memory", "choose a folder on a disk"] {
        assert!(said.contains(word), "{word:?} is missing in {said}");
    }
}
