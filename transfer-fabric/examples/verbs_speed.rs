//! How fast the verbs fabric is between two processes of this host, next to perftest with the same settings.
//!
//!     cargo build --release -p transfer-fabric --example verbs_speed
//!     tests/rdma-vm/run.sh --smp 2 --mem 2048 -- target/release/examples/verbs_speed [PAIRS]
//!
//! It starts itself a second time as the peer. Each pair is one run of perftest's program and one of the fabric, in turns, and the
//! medians are compared. Bandwidth: plain writes over one queue pair, as `ib_write_bw` does them. Latency: half of a round trip,
//! both sides asleep on their completion channels, as `ib_send_lat --events` does it; 64 B as a message, 4 KiB as a write with
//! immediate. The environment names the device's address: RDMA_IP (10.77.0.1 where it is not set). The device is rxe0, GID index 1.

use rustix::event::{PollFd, PollFlags, poll};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, Fabric, FabricEvent, GrantAccess, LinkId, Offer, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_fabric::verbs::{VerbsConfig, VerbsFabric};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const DEVICE: &str = "rxe0";
const GID_INDEX: u32 = 1;
/// As perftest's default.
const TX_DEPTH: u32 = 128;

const BYTES: u64 = 8 << 20;
const LINK: LinkId = LinkId(1);
const SEGMENT: SegmentId = SegmentId(1);

/// Asks the peer to answer with the same.
const ECHO: u32 = 1;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("peer") => peer(),
        pairs => measure(pairs.unwrap_or("9").parse()?),
    }
}

fn fabric() -> Result<VerbsFabric> {
    let device = Some(DEVICE.to_owned());
    let config = VerbsConfig { device, gid_index: Some(GID_INDEX), send_queue: TX_DEPTH, ..VerbsConfig::default() };
    let mut fabric = VerbsFabric::open(config)?;
    let options = SegmentOptions { len: BYTES, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("speed", &options, &PinnedBudget::new(BYTES))?;
    fabric.register(SEGMENT, Arc::new(segment))?;
    Ok(fabric)
}

/// How the two sides wait for completions.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Poll,
    Sleep,
}

fn step(fabric: &mut VerbsFabric, wait: Wait, sink: &mut dyn FnMut(FabricEvent<'_>)) -> Result<()> {
    if fabric.poll(sink) {
        return Ok(());
    }
    if wait == Wait::Poll {
        std::thread::yield_now();
        return Ok(());
    }
    fabric.arm();
    if !fabric.poll(sink) {
        let fds = fabric.wait_fds();
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut fds, None)?;
        fabric.woken();
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(line: &str) -> Result<Vec<u8>> {
    let line = line.trim();
    (0..line.len() / 2).map(|i| Ok(u8::from_str_radix(line.get(2 * i..2 * i + 2).unwrap_or(""), 16)?)).collect()
}

/// What a side has heard and not acted upon.
#[derive(Default)]
struct Heard {
    up: bool,
    down: Option<DownReason>,
    granted: Option<RemoteSlice>,
    remote: Option<RemoteSlice>,
    messages: Vec<Vec<u8>>,
    immediates: Vec<(u32, u64)>,
    done: u64,
}

impl Heard {
    fn take(&mut self, event: FabricEvent<'_>) {
        match event {
            FabricEvent::Connected { .. } => self.up = true,
            FabricEvent::Granted { remote, .. } => self.granted = Some(remote),
            FabricEvent::LinkDown { reason, .. } => self.down = Some(reason),
            // The first message of each side tells what the other may write.
            FabricEvent::Message { bytes, .. } if self.remote.is_none() => self.remote = read_remote(bytes),
            FabricEvent::Message { bytes, .. } => self.messages.push(bytes.to_vec()),
            FabricEvent::Immediate { value, len_bytes, .. } => self.immediates.push((value, len_bytes)),
            FabricEvent::WriteDone { .. } => self.done += 1,
            _ => {}
        }
    }
}

fn read_remote(bytes: &[u8]) -> Option<RemoteSlice> {
    let (address, key) = bytes.split_first_chunk::<8>()?;
    let key = RemoteKey(u32::from_le_bytes(key.try_into().ok()?));
    Some(RemoteSlice::new(u64::from_le_bytes(*address), BYTES, key))
}

/// Opens this side's memory to the other one and hears what the other one has opened.
fn introduce(fabric: &mut VerbsFabric, heard: &mut Heard) -> Result<RemoteSlice> {
    while !heard.up {
        step(fabric, Wait::Sleep, &mut |event| heard.take(event))?;
    }
    fabric.grant(LINK, LocalSlice { segment: SEGMENT, offset: 0, len: BYTES }, GrantAccess::Write, 0)?;
    let mut told = false;
    loop {
        if let Some(granted) = heard.granted.filter(|_| !told) {
            let mut message = granted.address.to_le_bytes().to_vec();
            message.extend(granted.key().0.to_le_bytes());
            fabric.post_send(LINK, WorkId(0), &message)?;
            told = true;
        }
        if let (true, Some(remote)) = (told, heard.remote) {
            return Ok(remote);
        }
        if let Some(reason) = heard.down.take() {
            return Err(reason.into());
        }
        step(fabric, Wait::Sleep, &mut |event| heard.take(event))?;
    }
}

/// The other side: answers what asks to be answered, asleep where it has nothing to do.
fn peer() -> Result<()> {
    let mut fabric = fabric()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    println!("{}", hex(&fabric.accept(LINK, &Offer(unhex(&line)?))?.0));
    let mut heard = Heard::default();
    let remote = introduce(&mut fabric, &mut heard)?;
    while heard.down.is_none() {
        step(&mut fabric, Wait::Sleep, &mut |event| heard.take(event))?;
        for message in heard.messages.drain(..) {
            fabric.post_send(LINK, WorkId(0), &message)?;
        }
        for (_, len) in heard.immediates.drain(..).filter(|(value, _)| *value == ECHO) {
            write(&mut fabric, remote, 0, len, Some(ECHO))?;
        }
    }
    Ok(())
}

fn write(
    fabric: &mut VerbsFabric,
    remote: RemoteSlice,
    offset: u64,
    len: u64,
    immediate: Option<u32>,
) -> std::result::Result<(), PostError> {
    let to = remote.sub(offset, len).unwrap_or(remote);
    fabric.post_write(LINK, WorkId(offset), &[LocalSlice { segment: SEGMENT, offset, len }], to, immediate)
}

/// `count` writes of `len` bytes; MB/s as perftest counts them (2^20).
fn bandwidth(fabric: &mut VerbsFabric, heard: &mut Heard, remote: RemoteSlice, len: u64, count: u64) -> Result<f64> {
    heard.done = 0;
    let (mut posted, start) = (0, Instant::now());
    while heard.done < count {
        while posted < count {
            match write(fabric, remote, posted * len % BYTES, len, None) {
                Ok(()) => posted += 1,
                Err(PostError::Full(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        step(fabric, Wait::Poll, &mut |event| heard.take(event))?;
        if let Some(reason) = heard.down.take() {
            return Err(reason.into());
        }
    }
    Ok((count * len) as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 20))
}

/// Half of the median round trip, in microseconds.
fn latency(fabric: &mut VerbsFabric, heard: &mut Heard, remote: RemoteSlice, len: u64, rounds: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        if len < 1024 {
            fabric.post_send(LINK, WorkId(0), &vec![7; len as usize])?;
        } else {
            write(fabric, remote, 0, len, Some(ECHO))?;
        }
        while heard.messages.is_empty() && heard.immediates.is_empty() {
            step(fabric, Wait::Sleep, &mut |event| heard.take(event))?;
            if let Some(reason) = heard.down.take() {
                return Err(reason.into());
            }
        }
        times.push(start.elapsed());
        heard.messages.clear();
        heard.immediates.clear();
    }
    times.sort();
    Ok(times[rounds / 2].as_secs_f64() * 1e6 / 2.0)
}

/// One run of a perftest program, server and client; the figure in the given column of its last table row.
fn perftest(program: &str, len: u64, iterations: u64, extra: &[&str], column: usize) -> Result<f64> {
    let address = std::env::var("RDMA_IP").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let run = |peer: Option<&str>| {
        let mut command = Command::new(program);
        command.args(["-d", DEVICE, "-x", &GID_INDEX.to_string(), "-F", "-s", &len.to_string()]);
        command.args(["-n", &iterations.to_string()]).args(extra).args(peer);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
    };
    let mut server = run(None)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let output = loop {
        // The server needs a moment until it listens, and a client that finds nobody ends at once.
        let output = run(Some(&address))?.wait_with_output()?;
        if output.status.success() || Instant::now() > deadline {
            break String::from_utf8_lossy(&output.stdout).into_owned();
        }
    };
    server.wait()?;
    let row = output.lines().rev().find(|line| line.split_whitespace().next() == Some(len.to_string().as_str()));
    let figure = row.and_then(|row| row.split_whitespace().nth(column));
    Ok(figure.ok_or_else(|| format!("{program} printed no result: {output}"))?.parse()?)
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn measure(pairs: usize) -> Result<()> {
    let mut child =
        Command::new(std::env::current_exe()?).arg("peer").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut fabric = fabric()?;
    let offer = fabric.offer(LINK)?;
    let mut to_child = child.stdin.take().ok_or("no stdin")?;
    writeln!(to_child, "{}", hex(&offer.0))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    fabric.connect(LINK, &Offer(unhex(&line)?))?;
    let mut heard = Heard::default();
    let remote = introduce(&mut fabric, &mut heard)?;

    let report = |what: &str, ours: &mut [f64], theirs: &mut [f64], unit: &str| {
        let (ours, theirs) = (median(ours), median(theirs));
        println!("{what}: fabric {ours:.1} {unit}, perftest {theirs:.1} {unit}, {:.3} of it", ours / theirs);
    };
    for (len, count) in [(64 << 10, 1000), (1 << 20, 100)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            theirs.push(perftest("ib_write_bw", len, count, &[], 3)?);
            ours.push(bandwidth(&mut fabric, &mut heard, remote, len, count)?);
        }
        report(&format!("WRITE bandwidth, {} KiB", len >> 10), &mut ours, &mut theirs, "MiB/s");
    }
    for len in [64, 4096] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            theirs.push(perftest("ib_send_lat", len, 500, &["-e"], 4)?);
            ours.push(latency(&mut fabric, &mut heard, remote, len, 500)?);
        }
        report(&format!("latency, {len} B, asleep"), &mut ours, &mut theirs, "µs");
    }
    for (name, count) in fabric.counters().by_name() {
        println!("{name}: {count}");
    }
    fabric.disconnect(LINK, DownReason::Closed("done".into()));
    while heard.down.is_none() {
        step(&mut fabric, Wait::Sleep, &mut |event| heard.take(event))?;
    }
    child.wait()?;
    Ok(())
}
