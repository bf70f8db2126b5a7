//! What encryption costs: the TCP fabric with TLS beside the same without.
//!
//!     cargo run --release -p transfer-fabric --example tls_speed [-- ROUNDS]
//!
//! Two fabrics in two threads of this process, each asleep while it has nothing to do. In each round a link is made, 64 MiB are written
//! over it, then 4 KiB a number of times, one after the other; once in the clear and once encrypted, in turns, because other load on
//! the machine changes. Of each, the shortest time is printed, and the least processor time of both threads together, which other load
//! hardly changes. Links begin without the gRPC call that carries their offers.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use transfer_core::fabric::{DownReason, Fabric, FabricEvent, GrantAccess, LinkId, Offer, WorkId};
use transfer_core::memory::{LocalSlice, RemoteSlice, SegmentId};
use transfer_fabric::tcp::{TcpConfig, TcpFabric, TlsSource};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const BYTES: u64 = 64 << 20;
const SMALL: u64 = 4 << 10;
const SMALL_WRITES: u32 = 500;
const SEGMENT: SegmentId = SegmentId(1);
const ALL: LocalSlice = LocalSlice { segment: SEGMENT, offset: 0, len: BYTES };

#[derive(Debug)]
struct Certificates(Arc<ClientConfig>, Arc<ServerConfig>);

impl TlsSource for Certificates {
    fn client(&self) -> Option<Arc<ClientConfig>> {
        Some(self.0.clone())
    }

    fn server(&self) -> Option<Arc<ServerConfig>> {
        Some(self.1.clone())
    }
}

/// One authority and one certificate (ECDSA P-256), for both sides.
fn certificates() -> Result<Arc<Certificates>> {
    let authority_key = KeyPair::generate()?;
    let mut params = CertificateParams::new([])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut roots = RootCertStore::empty();
    roots.add(params.self_signed(&authority_key)?.der().clone())?;
    let roots = Arc::new(roots);
    let key = KeyPair::generate()?;
    let issuer = Issuer::new(params, authority_key);
    let chain = vec![CertificateParams::new(["transferd".to_owned()])?.signed_by(&key, &issuer)?.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls13 = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(tls13)?;
    let client = client.with_root_certificates(roots.clone()).with_client_auth_cert(chain.clone(), key.clone_key())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(tls13)?;
    let server = server.with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
    Ok(Arc::new(Certificates(Arc::new(client), Arc::new(server))))
}

fn fabric(tls: Option<Arc<Certificates>>) -> Result<TcpFabric> {
    let mut config = TcpConfig::new("127.0.0.1:0".parse()?);
    config.tls = tls.map(|tls| tls as Arc<dyn TlsSource>);
    let mut fabric = TcpFabric::new(config)?;
    let options = SegmentOptions { len: BYTES, pages: Pages::Base, lock: Lock::Try };
    fabric.register(SEGMENT, Arc::new(Segment::create("speed", &options, &PinnedBudget::new(BYTES))?))?;
    Ok(fabric)
}

/// Polls; where there was nothing to do, sleeps until there is, or until the bell rings.
fn step(fabric: &mut TcpFabric, bell: Option<&UnixStream>, sink: &mut dyn FnMut(FabricEvent<'_>)) -> Result<()> {
    if fabric.poll(sink) {
        return Ok(());
    }
    fabric.arm();
    if !fabric.poll(sink)
        && let [fd] = fabric.wait_fds()[..]
    {
        let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        fds.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        poll(&mut fds, None)?;
        fabric.woken();
    }
    Ok(())
}

/// Accepts links, and opens its memory to each.
fn receive(
    mut fabric: TcpFabric,
    bell: &UnixStream,
    offers: &Receiver<(LinkId, Offer)>,
    tell: &Sender<Told>,
) -> Result<()> {
    bell.set_nonblocking(true)?;
    loop {
        match offers.try_recv() {
            Ok((link, offer)) => {
                let _ = (&*bell).read(&mut [0])?;
                tell.send(Told::Accepted(fabric.accept(link, &offer)?))?;
            }
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        let (mut up, mut granted) = (None, None);
        step(&mut fabric, Some(bell), &mut |event| match event {
            FabricEvent::Connected { link } => up = Some(link),
            FabricEvent::Granted { remote, .. } => granted = Some(remote),
            _ => {}
        })?;
        if let Some(link) = up {
            fabric.grant(link, ALL, GrantAccess::Write, 0)?;
        }
        if let Some(remote) = granted {
            tell.send(Told::Granted(remote))?;
        }
    }
}

enum Told {
    Accepted(Offer),
    Granted(RemoteSlice),
}

struct Pair {
    fabric: TcpFabric,
    links: u32,
    offers: Sender<(LinkId, Offer)>,
    bell: UnixStream,
    told: Receiver<Told>,
}

/// What something took: time, and processor time of this process.
#[derive(Clone, Copy)]
struct Cost {
    time: Duration,
    processor: Duration,
}

impl Cost {
    fn of(what: impl FnOnce() -> Result<()>) -> Result<Cost> {
        let processor = || -> Result<Duration> { Ok(clock_gettime(ClockId::ProcessCPUTime).try_into()?) };
        let (start, before) = (Instant::now(), processor()?);
        what()?;
        Ok(Cost { time: start.elapsed(), processor: processor()?.saturating_sub(before) })
    }
}

/// What one round took: a link, a large write, a small one.
type Round = [Cost; 3];

impl Pair {
    fn new(tls: Option<Arc<Certificates>>) -> Result<Pair> {
        let (offers, offered) = channel();
        let (tell, told) = channel();
        let (bell, heard) = UnixStream::pair()?;
        let receiver = fabric(tls.clone())?;
        std::thread::spawn(move || {
            if let Err(error) = receive(receiver, &heard, &offered, &tell) {
                eprintln!("the receiver has ended: {error}");
            }
        });
        Ok(Pair { fabric: fabric(tls)?, links: 0, offers, bell, told })
    }

    /// Polls until an event is the one.
    fn until(&mut self, mut is: impl FnMut(FabricEvent<'_>) -> bool) -> Result<()> {
        let mut seen = false;
        while !seen {
            step(&mut self.fabric, None, &mut |event| seen |= is(event))?;
        }
        Ok(())
    }

    fn write(&mut self, link: LinkId, len: u64, remote: &RemoteSlice) -> Result<()> {
        let part = remote.sub(0, len).ok_or("a write beyond the grant")?;
        self.fabric.post_write(link, WorkId(1), &[LocalSlice { len, ..ALL }], part, None)?;
        self.until(|event| matches!(event, FabricEvent::WriteDone { .. }))
    }

    fn round(&mut self) -> Result<Round> {
        self.links += 1;
        let link = LinkId(self.links);
        let setup = Cost::of(|| {
            self.offers.send((link, self.fabric.offer(link)?))?;
            self.bell.write_all(&[1])?;
            let Told::Accepted(answer) = self.told.recv()? else { return Err("no answer".into()) };
            self.fabric.connect(link, &answer)?;
            self.until(|event| matches!(event, FabricEvent::Connected { .. }))
        })?;
        let Told::Granted(remote) = self.told.recv()? else { return Err("no grant".into()) };
        self.write(link, BYTES, &remote)?;
        let large = Cost::of(|| self.write(link, BYTES, &remote))?;
        let small = Cost::of(|| (0..SMALL_WRITES).try_for_each(|_| self.write(link, SMALL, &remote)))?;
        let small = Cost { time: small.time / SMALL_WRITES, processor: small.processor / SMALL_WRITES };
        self.fabric.disconnect(link, DownReason::Closed("done".to_owned()));
        self.until(|event| matches!(event, FabricEvent::LinkDown { .. }))?;
        Ok([setup, large, small])
    }
}

fn main() -> Result<()> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(20), |n| n.parse())?;
    let mut pairs = [("clear", Pair::new(None)?), ("TLS", Pair::new(Some(certificates()?))?)];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for ((_, pair), rounds) in pairs.iter_mut().zip(&mut all) {
            rounds.push(pair.round()?);
        }
    }
    println!("{:8}{:>24}{:>30}{:>24}", "", "a link", "64 MiB", "4 KiB");
    for ((name, _), rounds) in pairs.iter().zip(&all) {
        let least = |of: fn(&Cost) -> Duration, which: usize| {
            let times = rounds.iter().map(|round| of(&round[which]).as_secs_f64());
            times.fold(f64::INFINITY, f64::min)
        };
        let [time, processor]: [fn(&Cost) -> Duration; 2] = [|cost| cost.time, |cost| cost.processor];
        let us = |of, which| least(of, which) * 1e6;
        let gib = BYTES as f64 / (1_u64 << 30) as f64;
        println!(
            "{name:8}{:>9.0} µs, cpu {:>4.0} µs{:>9.2} GiB/s, cpu {:>3.0} ms/GiB{:>8.1} µs, cpu {:>4.1} µs",
            us(time, 0),
            us(processor, 0),
            gib / least(time, 1),
            least(processor, 1) * 1e3 / gib,
            us(time, 2),
            us(processor, 2)
        );
    }
    Ok(())
}
