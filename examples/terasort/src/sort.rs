//! The sort: tasks read files and write their records into the partition of their key. Readers sort one partition each.

use crate::Error;
use crate::check::check;
use crate::direct::Output;
use crate::options::Options;
use crate::records::{KEY, RECORD, Sum, generate, record};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use transfer_client::BlockingClient;
use transfer_exchange::{Bounds, By, Exchange, ExchangeExt};

/// How many threads write.
const WRITERS: u64 = 2;

/// How many threads read: one waits for the disk while others sort. Each has a partition on its heap.
const READERS: usize = 3;

/// About the size of a partition, in bytes. A reader sorts it on the heap.
const PARTITION: u64 = 16 << 20;

/// About the size of a task's file, in bytes. A task's blocks lie in its worker's arena until it commits. What a reader
/// fetches at once is what a task has for its partition, so larger tasks take fewer and larger reads of the disk.
const TASK: u64 = 64 << 20;

/// The length of what is not the key.
const REST: usize = RECORD - KEY;

/// The number of records of a batch.
const BATCH: usize = 16 << 10;

/// The time-out of each call. The disk may be slow.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// A sidecar, which is killed when this is dropped.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Generates, sorts and checks.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let temporary = match &options.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            tempfile::tempdir_in(folder)?
        }
        // The folder for temporary files may lie in memory.
        None => tempfile::tempdir_in(std::env::current_exe()?.parent().ok_or("this program lies nowhere")?)?,
    };
    let folder = temporary.path();
    let records = options.bytes.div_ceil(RECORD as u64);
    let count = |of: u64| u32::try_from(options.bytes.div_ceil(of).clamp(4, 2048));
    let (tasks, partitions) = (count(TASK)?, count(PARTITION)?);

    let (started, mut generated, mut inputs) = (Instant::now(), Sum::default(), Vec::new());
    for task in 0..u64::from(tasks) {
        let path = folder.join(format!("in-{task}"));
        let at = |n: u64| records * n / u64::from(tasks);
        generated.join(generate(&path, at(task)..at(task + 1))?);
        inputs.push(path);
    }
    say("generated", generated.records, started)?;

    let started = Instant::now();
    let socket = folder.join("worker.sock");
    let sidecar = start(&socket, folder, options.pool_bytes / 2)?;
    let arena = options.pool_bytes / 2 / WRITERS;
    let connect = |n: u64| {
        let connect = BlockingClient::connect(&socket).name(format!("sorter-{n}")).arena_bytes(arena);
        connect.call()
    };
    let clients = (0..WRITERS).map(connect).collect::<Result<Vec<_>, _>>()?;
    let opened = clients[0].exchange("terasort").partitions(partitions).tasks(tasks).open().call()?;
    let joined = clients[1..].iter().map(|client| client.exchange("terasort").join().call());
    let exchanges = std::iter::once(Ok(opened.clone())).chain(joined).collect::<Result<Vec<_>, _>>()?;

    let bounds = bounds(records, partitions)?;
    each(exchanges.iter(), tasks, |exchange, task| write(exchange, task, &inputs[task as usize], &bounds))?;
    say("written to their partitions", records, started)?;
    let output = |partition: u32| folder.join(format!("out-{partition:05}"));
    let readers = exchanges.iter().cycle().take(READERS);
    each(readers, partitions, |exchange, partition| sort(exchange, partition, &output(partition)))?;
    opened.release().timeout(CALL_TIMEOUT).call()?;
    say("sorted, from files to files", records, started)?;
    drop((opened, exchanges, clients, sidecar));

    let outputs: Vec<PathBuf> = (0..partitions).map(output).collect();
    let found = check(&outputs)?;
    if found != generated {
        return Err(format!("{generated:?} were generated, and {found:?} are in the sorted files").into());
    }
    writeln!(io::stdout(), "valid: {} records ascend, checksum {:016x}", found.records, found.checksum)?;
    Ok(())
}

fn say(what: &str, records: u64, since: Instant) -> io::Result<()> {
    let (took, bytes) = (since.elapsed().as_secs_f64(), records * RECORD as u64);
    writeln!(io::stdout(), "{what}: {records} records in {took:.2} s, {:.1} MB/s", bytes as f64 / 1e6 / took)
}

/// Starts the `transferd` beside this program.
fn start(socket: &Path, disk: &Path, pool_bytes: u64) -> Result<Sidecar, Error> {
    let program = std::env::current_exe()?.with_file_name("transferd");
    let mut command = Command::new(&program);
    command.arg("--socket").arg(socket).arg("--spill-dir").arg(disk).stdout(Stdio::piped());
    command.args([
        "--pool-bytes",
        &pool_bytes.to_string(),
        "--pinned-limit",
        &(pool_bytes * 4 + (64 << 20)).to_string(),
    ]);
    command.args(["--log", "warn"]);
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
    let said = child.stdout.take();
    let sidecar = Sidecar(child);
    let mut line = String::new();
    BufReader::new(said.ok_or("it has no output")?).read_line(&mut line)?;
    match line.starts_with("transferd ready") {
        true => Ok(sidecar),
        false => Err("transferd does not start".into()),
    }
}

/// The bounds of the partitions, of a sample of the records.
fn bounds(records: u64, partitions: u32) -> Result<Bounds, Error> {
    let sample = u64::from(partitions) * 200;
    let numbers = (0..sample.min(records)).map(|n| n * (records / sample).max(1));
    let bytes: Vec<u8> = numbers.flat_map(record).collect();
    Ok(Bounds::of_sample(&["key"], &batch(&bytes)?, partitions)?)
}

/// Does `what` for each number, on one thread for each exchange.
fn each<'a>(
    exchanges: impl Iterator<Item = &'a Exchange<BlockingClient>>,
    count: u32,
    what: impl Fn(&Exchange<BlockingClient>, u32) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let next = AtomicU32::new(0);
    let (next, what) = (&next, &what);
    std::thread::scope(|scope| {
        let work = |exchange| {
            move || {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        n if n < count => what(exchange, n)?,
                        _ => return Ok(()),
                    }
                }
            }
        };
        let threads: Vec<_> = exchanges.map(|exchange| scope.spawn(work(exchange))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Error::from("a thread has panicked"))?)
    })
}

/// A task: the records of a file, each into the partition of its key.
fn write(exchange: &Exchange<BlockingClient>, task: u32, path: &Path, bounds: &Bounds) -> Result<(), Error> {
    let mut writer = exchange.task(task, 0).timeout(CALL_TIMEOUT).call()?;
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        (&mut file).take((BATCH * RECORD) as u64).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            break;
        }
        writer.write(&batch(&bytes)?, By::Range(bounds)).timeout(CALL_TIMEOUT).call()?;
    }
    writer.commit().timeout(CALL_TIMEOUT).call()?;
    Ok(())
}

/// Records as columns: their keys, and the rest.
fn batch(records: &[u8]) -> Result<RecordBatch, Error> {
    let columns = [("key", column::<KEY>(records, 0)?), ("rest", column::<REST>(records, KEY)?)];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// The bytes of each record from `at` on, `LEN` of them.
fn column<const LEN: usize>(records: &[u8], at: usize) -> Result<ArrayRef, Error> {
    let mut values = Vec::with_capacity(records.len() / RECORD * LEN);
    for record in records.chunks_exact(RECORD) {
        values.extend_from_slice(&record[at..at + LEN]);
    }
    Ok(Arc::new(FixedSizeBinaryArray::try_new(LEN as i32, values.into(), None)?))
}

/// Reads a partition, sorts it on the heap, and writes it into a file.
fn sort(exchange: &Exchange<BlockingClient>, partition: u32, path: &Path) -> Result<(), Error> {
    let mut rows = exchange.partition(partition).timeout(CALL_TIMEOUT);
    // Partitions differ a little. A vector that grows takes its memory twice.
    let mut records = Vec::<[u8; RECORD]>::with_capacity(PARTITION as usize / RECORD * 5 / 4);
    // What is copied out of a batch makes room for the next one.
    while let Some(batch) = rows.next()? {
        let (keys, rest) = (batch.column(0).as_fixed_size_binary(), batch.column(1).as_fixed_size_binary());
        for (key, rest) in keys.value_data().chunks_exact(KEY).zip(rest.value_data().chunks_exact(REST)) {
            let mut record = [0; RECORD];
            record[..KEY].copy_from_slice(key);
            record[KEY..].copy_from_slice(rest);
            records.push(record);
        }
    }
    // What is moved to and fro is the keys. Each record is moved once, when it is written.
    let mut order: Vec<(u64, u16, u32)> = records.iter().zip(0..).map(|(record, at)| sort_key(record, at)).collect();
    order.sort_unstable();
    let mut output = Output::create(path)?;
    for (_, _, at) in order {
        output.write(&records[at as usize])?;
    }
    output.finish()?;
    Ok(())
}

/// The key of a record as two numbers that have its order, and the record's place.
fn sort_key(record: &[u8; RECORD], at: u32) -> (u64, u16, u32) {
    let [a, b, c, d, e, f, g, h, i, j, ..] = *record;
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u16::from_be_bytes([i, j]), at)
}
