//! How fast the TCP fabric is between two processes of this host, next to a bare copy through sockets.
//!
//!     cargo run --release -p transfer-fabric --example tcp_speed [-- ROUNDS [BUFFER_BYTES]]
//!
//! It starts itself a second time as the receiver. Each round copies 64 MiB from a prefaulted buffer into another one: through 1, 2
//! and 4 bare sockets, and by a write of the fabric. The rounds take turns, because other load on the machine changes, and the best
//! of each is compared. Then it posts 4 KiB writes as fast as they complete.

use rustix::event::{PollFd, PollFlags, poll};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::fabric::{Fabric, FabricEvent, GrantAccess, LinkId, Offer, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};
use transfer_fabric::tcp::{TcpConfig, TcpFabric};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BYTES: u64 = 64 << 20;
const SMALL: u64 = 4 << 10;
const LINK: LinkId = LinkId(1);
const SEGMENT: SegmentId = SegmentId(1);
const STREAMS: [usize; 3] = [1, 2, 4];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("receive") => receiver(args.get(2).and_then(|n| n.parse().ok())),
        rounds => sender(rounds.unwrap_or("20").parse()?, args.get(2)),
    }
}

fn fabric(buffer: Option<usize>) -> Result<TcpFabric> {
    let mut config = TcpConfig::new("127.0.0.1:0".parse()?);
    config.socket_buffer_bytes = buffer;
    let mut fabric = TcpFabric::new(config)?;
    let options = SegmentOptions { len: BYTES, pages: Pages::Base, lock: Lock::Try };
    let segment = Segment::create("speed", &options, &PinnedBudget::new(BYTES))?;
    fabric.register(SEGMENT, Arc::new(segment))?;
    Ok(fabric)
}

/// How long to go on polling before sleeping, as a busy engine does.
const SPIN: Duration = Duration::from_micros(100);

/// Polls, and sleeps when there has been nothing to do for a while.
fn step(fabric: &mut TcpFabric, sink: &mut dyn FnMut(FabricEvent<'_>)) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        if fabric.poll(sink) {
            return Ok(());
        }
    }
    fabric.arm();
    if !fabric.poll(sink)
        && let [fd] = fabric.wait_fds()[..]
    {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
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

/// Receives: bare streams in threads, the fabric in this one. Speaks with the sender over stdin and stdout.
fn receiver(buffer: Option<usize>) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    std::thread::spawn(move || -> Result<()> {
        for streams in STREAMS {
            for _ in 0..streams {
                let (mut stream, _) = listener.accept()?;
                std::thread::spawn(move || -> Result<()> {
                    let mut to = vec![1_u8; BYTES as usize / streams];
                    loop {
                        stream.read_exact(&mut to)?;
                        stream.write_all(&[1])?;
                    }
                });
            }
        }
        Ok(())
    });
    let mut fabric = fabric(buffer)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    println!("{}", hex(&fabric.accept(LINK, &Offer(unhex(&line)?))?.0));
    let (mut up, mut down, mut granted) = (false, false, None);
    while !down {
        step(&mut fabric, &mut |event| match event {
            FabricEvent::Connected { .. } => up = true,
            FabricEvent::Granted { remote, .. } => granted = Some(remote),
            FabricEvent::LinkDown { .. } => down = true,
            _ => {}
        })?;
        if std::mem::take(&mut up) {
            fabric.grant(LINK, LocalSlice { segment: SEGMENT, offset: 0, len: BYTES }, GrantAccess::Write, 0)?;
        }
        if let Some(remote) = granted.take() {
            println!("{} {}", remote.address, remote.key().0);
        }
    }
    Ok(())
}

/// One copy through bare sockets.
fn bare(streams: &mut [TcpStream], from: &[u8]) -> Result<Duration> {
    let start = Instant::now();
    let parts = from.chunks(from.len() / streams.len());
    std::thread::scope(|scope| {
        let copy = |(stream, part): (&mut TcpStream, &[u8])| {
            stream.write_all(part)?;
            stream.read_exact(&mut [0])
        };
        let mut pairs = streams.iter_mut().zip(parts);
        let own = pairs.next();
        let others: Vec<_> = pairs.map(|pair| scope.spawn(move || copy(pair))).collect();
        own.map(copy).transpose()?;
        for other in others {
            other.join().map_err(|_| "a thread panicked")??;
        }
        Ok(start.elapsed())
    })
}

/// `count` writes of `len` bytes; the time until all are placed.
fn writes(fabric: &mut TcpFabric, remote: RemoteSlice, len: u64, count: u64) -> Result<Duration> {
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < count {
        while posted < count {
            let offset = posted * len % BYTES;
            let to = remote.sub(offset, len).ok_or("the grant is too short")?;
            let from = LocalSlice { segment: SEGMENT, offset, len };
            match fabric.post_write(LINK, WorkId(posted), &[from], to, Some(0)) {
                Ok(()) => posted += 1,
                Err(PostError::Full(_)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut down = None;
        step(fabric, &mut |event| match event {
            FabricEvent::WriteDone { .. } => done += 1,
            FabricEvent::LinkDown { reason, .. } => down = Some(reason),
            _ => {}
        })?;
        if let Some(reason) = down {
            return Err(reason.into());
        }
    }
    Ok(start.elapsed())
}

fn sender(rounds: u32, buffer: Option<&String>) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("receive")
        .args(buffer)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let mut line = || -> Result<String> { Ok(lines.next().ok_or("the receiver ended")??) };
    let port: u16 = line()?.parse()?;
    let mut sets = Vec::new();
    for streams in STREAMS {
        let set = (0..streams).map(|_| TcpStream::connect(("127.0.0.1", port)));
        sets.push(set.collect::<std::io::Result<Vec<_>>>()?);
    }
    let mut fabric = fabric(buffer.and_then(|n| n.parse().ok()))?;
    let offer = fabric.offer(LINK)?;
    let mut to_child = child.stdin.take().ok_or("no stdin")?;
    writeln!(to_child, "{}", hex(&offer.0))?;
    fabric.connect(LINK, &Offer(unhex(&line()?)?))?;
    let mut up = false;
    while !up {
        step(&mut fabric, &mut |event| up |= matches!(event, FabricEvent::Connected { .. }))?;
    }
    let grant = line()?;
    let (address, key) = grant.split_once(' ').ok_or("no grant")?;
    let remote = RemoteSlice::new(address.parse()?, BYTES, RemoteKey(key.parse()?));

    let from = vec![1_u8; BYTES as usize];
    let mut times = vec![Vec::new(); STREAMS.len() + 1];
    for _ in 0..rounds {
        for (times, set) in times.iter_mut().zip(&mut sets) {
            times.push(bare(set, &from)?);
        }
        // As often as bare copies are tried.
        for _ in STREAMS {
            times[STREAMS.len()].push(writes(&mut fabric, remote, BYTES, 1)?);
        }
    }
    let rate = |time: Duration| BYTES as f64 / time.as_secs_f64() / 1e9;
    let rates = times.iter_mut().map(|times| {
        times.sort();
        (rate(times[0]), rate(times[times.len() / 2]))
    });
    let rates: Vec<(f64, f64)> = rates.collect();
    for (streams, (best, median)) in STREAMS.iter().zip(&rates) {
        println!("bare, {streams} streams: {best:.2} GB/s, median {median:.2}");
    }
    let of = |pick: fn(&(f64, f64)) -> f64| {
        pick(&rates[STREAMS.len()]) / rates[..STREAMS.len()].iter().map(pick).fold(0.0, f64::max)
    };
    let (best, median) = rates[STREAMS.len()];
    println!(
        "fabric: {best:.2} GB/s, median {median:.2}; {:.3} and {:.3} of the best bare ones",
        of(|r| r.0),
        of(|r| r.1)
    );
    let queued = writes(&mut fabric, remote, BYTES, 16)?;
    println!("fabric, 16 of 64 MiB queued: {:.2} GB/s", 16.0 * rate(queued));
    for (len, count) in [(SMALL, 400_000), (64 << 10, 50_000), (1 << 20, 2_000)] {
        let time = writes(&mut fabric, remote, len, count)?;
        let per_second = count as f64 / time.as_secs_f64();
        println!("writes of {} KiB: {per_second:.0} per second, {:.2} GB/s", len >> 10, per_second * len as f64 / 1e9);
    }
    let pings = 2_000;
    let start = Instant::now();
    for _ in 0..pings {
        writes(&mut fabric, remote, 64, 1)?;
    }
    println!(
        "one write of 64 B at a time: {:.1} µs until placed",
        start.elapsed().as_secs_f64() * 1e6 / f64::from(pings)
    );
    fabric.disconnect(LINK, transfer_core::fabric::DownReason::Closed("done".into()));
    while up {
        step(&mut fabric, &mut |event| up &= !matches!(event, FabricEvent::LinkDown { .. }))?;
    }
    child.wait()?;
    Ok(())
}
