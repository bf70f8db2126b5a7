//! Fetching: notes, and parts of the bundles of a committed attempt.

use super::manifest::{Bundles, Places, Starts, heads_guess, range_of};
use super::record::Record;
use super::shared::{ABSENT, Absence, ExchangeState, absence};
use super::word::Word;
use super::{BlockReader, ExchangeError};
use crate::bundle::fetched;
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchOptions, Tensor};
use crate::gathered::Body;
use crate::request::Io;
use crate::request::{BlockingClient, Call};
use crate::session::{OneCall, Session};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::{Command, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyRange, DType, Excerpt, Key, Name, TensorMeta};
use transfer_core::wire::bundle::BundleTable;

/// The time between two looks whether a version that is being fetched is still there.
const LOOK: Duration = Duration::from_secs(2);

/// A fetch of a part of a version.
struct FetchPart {
    session: Arc<Session>,
    call: OneCall,
}

impl Call for FetchPart {
    type Output = Result<(Body, FetchedTensor), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        self.call.step(waker).map_break(|ended| fetched(&self.session, ended))
    }

    fn needs_timer(&self) -> bool {
        self.call.needs_timer()
    }
}

/// Fetches a part of the newest version of a key.
pub(super) async fn fetch_part(
    io: &Io,
    key: Key,
    excerpt: Excerpt,
    timeout: Duration,
) -> Result<(Body, FetchedTensor), Error> {
    let options = FetchOptions { timeout, ..FetchOptions::new() };
    fetch_by(io, options.command(key, Some(Box::new(excerpt))), timeout).await
}

/// Fetches what this command asks for.
pub(super) async fn fetch_by(io: &Io, command: Command, timeout: Duration) -> Result<(Body, FetchedTensor), Error> {
    let session = io.session();
    let call = OneCall::begin(session.clone(), command, timeout);
    io.run(FetchPart { session, call }).await
}

/// Fetches the note of a task: the number of the attempt that has committed.
pub(super) async fn fetch_note(io: &Io, key: Key, timeout: Duration) -> Result<Option<u32>, Error> {
    let tensor = io.run(Fetch::<BlockingClient>::new(io.session(), Ok(key), Tensor::new).timeout(timeout).call).await?;
    Ok(tensor.as_bytes().try_into().ok().map(u32::from_le_bytes))
}

/// Fetches the record of an exchange.
pub(super) async fn fetch_record(io: &Io, key: Key, name: &str, timeout: Duration) -> Result<Record, Error> {
    let tensor = io.run(Fetch::<BlockingClient>::new(io.session(), Ok(key), Tensor::new).timeout(timeout).call).await?;
    // A copy, so that it cannot change after the check.
    let bytes = tensor.as_bytes().to_vec();
    Ok(Record::read(name, &bytes)?)
}

/// A committed attempt: where its blocks are.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u32,
    bundles: Vec<OfBundle>,
    /// `None` if the task has written nothing.
    pub(super) reader: Option<BlockReader>,
    /// The node that has the bundles, if they move from there.
    pub(super) node: Option<Name>,
}

/// A bundle of an attempt.
#[derive(Debug)]
pub(super) struct OfBundle {
    pub(super) number: u32,
    starts: Starts,
    /// The places of its blocks, once its table was read.
    places: Mutex<Option<Arc<Places>>>,
}

impl Attempt {
    /// The bundles that have blocks for a partition.
    pub(super) fn bundles_of(&self, partition: u32) -> impl Iterator<Item = &OfBundle> {
        self.bundles.iter().filter(move |bundle| !bundle.blocks_of(partition).is_empty())
    }
}

impl OfBundle {
    /// The numbers of its blocks for a partition.
    pub(super) fn blocks_of(&self, partition: u32) -> std::ops::Range<usize> {
        self.starts.of_partition(partition)
    }

    /// The places of its blocks, if its table was read.
    pub(super) fn places(&self) -> Option<Arc<Places>> {
        self.places.lock().clone()
    }
}

/// The blocks of one task for one partition.
pub(super) struct Blocks {
    pub(super) attempt: Arc<Attempt>,
    pub(super) tensors: Vec<Tensor>,
    /// The report of their fetches together. `None` if there are no blocks, or if they came with those of another task.
    pub(super) report: Option<Report>,
}

/// What was found of a task.
pub(super) enum Found {
    Blocks(Blocks),
    /// It has not committed.
    NotYet,
    /// It has committed, and is lost.
    Lost,
}

impl ExchangeState {
    /// Looks for the attempt that has committed a task, and waits a while for it.
    pub(super) async fn locate(&self, io: &Io, task: u32, patience: Duration) -> Result<Option<u32>, Error> {
        match fetch_note(io, self.note_key(task)?, patience).await {
            // A note may be of an attempt that was lost since; then its blocks are not found.
            Ok(Some(attempt)) => return Ok(Some(attempt)),
            Ok(None) => {}
            Err(e) if absence(&e).is_some() || is_slow(&e) => {}
            Err(e) => return Err(e),
        }
        match self.look(io, task).await? {
            Word::Committed(attempt) => Ok(Some(attempt)),
            _ => Ok(None),
        }
    }

    /// Fetches the blocks of a task for a partition, which `attempt` has committed. Without a partition, finds out where the
    /// blocks are.
    pub(super) async fn deliver(
        &self,
        io: &Io,
        task: u32,
        partition: Option<u32>,
        mut attempt: u32,
    ) -> Result<Found, Error> {
        let mut since = Instant::now();
        loop {
            let failed = match self.blocks(io, task, partition, attempt).await {
                Ok(blocks) => return Ok(Found::Blocks(blocks)),
                Err(e) => e,
            };
            let Some(absence) = absence(&failed) else { return Err(failed) };
            self.know(task, None);
            match self.look(io, task).await? {
                Word::Committed(now) if now != attempt => {
                    (attempt, since) = (now, Instant::now());
                    continue;
                }
                Word::Committed(_) if absence == Absence::Certain || since.elapsed() >= ABSENT => {
                    return Ok(Found::Lost);
                }
                Word::Committed(_) => {}
                _ => return Ok(Found::NotYet),
            }
            io.sleep_until(Instant::now() + Duration::from_millis(100)).await;
        }
    }

    async fn blocks(&self, io: &Io, task: u32, partition: Option<u32>, number: u32) -> Result<Blocks, Error> {
        let known = self.known(task).filter(|known| known.number == number);
        let attempt = match known {
            Some(attempt) => attempt,
            None => {
                let attempt = Arc::new(self.read_attempt(io, task, number).await?);
                self.know(task, Some(attempt.clone()));
                attempt
            }
        };
        let mut blocks = Blocks { attempt: attempt.clone(), tensors: Vec::new(), report: None };
        let Some(partition) = partition else { return Ok(blocks) };
        let of = (task, number);
        let wanted: Vec<_> = attempt.bundles_of(partition).collect();
        let fetched = io.all(wanted, |bundle| self.blocks_of(io, of, bundle, partition));
        for fetched in fetched.await {
            let (bytes, tensor) = fetched?;
            for bytes in bytes {
                let meta = TensorMeta::of(DType::U8, &[bytes.len() as u64])?;
                blocks.tensors.push(Tensor::of_bundle(bytes, meta, tensor.version, tensor.report));
            }
            let (bytes, copied) = blocks.report.map_or((0, 0), |before| (before.bytes, before.copied));
            let report = tensor.report;
            blocks.report = Some(Report { bytes: report.bytes + bytes, copied: report.copied + copied, ..report });
        }
        Ok(blocks)
    }

    /// Reads the table, the schema and the numbers of the blocks of an attempt.
    async fn read_attempt(&self, io: &Io, task: u32, number: u32) -> Result<Attempt, Error> {
        let damaged = |why| self.damaged((task, number), why);
        let key = self.bundle_key((task, number), 0)?;
        // What lies in front of the blocks comes with the table, if the guess is right.
        let start = BodyRange { offset: 0, len: heads_guess(self.partitions()) };
        let (body, places) = self.read_table(io, (task, number), 0, Some(start)).await?;
        let is_whole = body.len == places.body_len;
        let end = range_of(places.heads()).and_then(|range| range.end());
        let has_come = body.len == start.len && end.is_some_and(|end| end <= start.len);
        let heads = match is_whole || has_come {
            true => take(&body, Some(start), places.heads(), &places)?,
            false => self.fetch_places(io, key, places.heads(), &places).await?.0,
        };
        let [schema, bundles, node] = &heads[..] else { return Err(damaged("its bundle lacks the schema")) };
        // Copies, so that they cannot change after the check.
        let (schema, bundles, node) = (schema.to_vec(), bundles.to_vec(), node.to_vec());
        let node = Name::from_bytes(&node).map_err(|_| damaged("it names no node"))?;
        let Bundles(bundles) = Bundles::read(&bundles, self.partitions())
            .ok_or_else(|| damaged("the numbers of its blocks are not those of the partitions"))?;
        let reader = if schema.is_empty() { None } else { Some(BlockReader::new(&schema)?) };
        let places = Arc::new(places);
        let bundle = |(number, starts)| {
            let places = Mutex::new((number == 0).then(|| places.clone()));
            OfBundle { number, starts, places }
        };
        // What is there as a whole is read in place. So is what lies at this node, if it is not on disk.
        let node = (!is_whole && node != self.node).then_some(node);
        Ok(Attempt { number, bundles: bundles.into_iter().map(bundle).collect(), reader, node })
    }

    /// Whether all bundles of an attempt are there. Its bundle 0 is.
    ///
    /// # Errors
    /// Any [`Error`] that does not tell.
    pub(super) async fn are_there(&self, io: &Io, (task, number): (u32, u32)) -> Result<bool, Error> {
        let attempt = match self.read_attempt(io, task, number).await {
            Ok(attempt) => attempt,
            Err(e) if absence(&e).is_some() => return Ok(false),
            Err(e) => return Err(e),
        };
        let others: Vec<u32> =
            attempt.bundles.iter().map(|bundle| bundle.number).filter(|number| *number != 0).collect();
        let found = io.all(others, async |bundle| self.read_table(io, (task, number), bundle, None).await.map(drop));
        for found in found.await {
            match found {
                Err(e) if absence(&e).is_some() => return Ok(false),
                Err(e) if is_slow(&e) => {}
                found => found?,
            }
        }
        Ok(true)
    }

    /// Reads the table of a bundle, and this range of its body. Also returns what has come of the body: all of it where it is
    /// read in place, and nothing if it is shorter than the range.
    async fn read_table(
        &self,
        io: &Io,
        of: (u32, u32),
        bundle: u32,
        range: Option<BodyRange>,
    ) -> Result<(Body, Places), Error> {
        let key = self.bundle_key(of, bundle)?;
        let excerpt = Excerpt::of_ranges(true, range).map_err(BundleError::from)?;
        let (body, tensor) = loop {
            // The time is short, so that a key that nobody publishes is noticed. A table that is slow comes later.
            match fetch_part(io, key.clone(), excerpt.clone(), io.left(ABSENT)).await {
                Err(e) if is_slow(&e) && Instant::now() < io.limit() => {}
                fetched => break fetched?,
            }
        };
        if !BundleTable::is_bundle(&body.metadata) {
            return Err(BundleError::NotABundle { meta: tensor.meta }.into());
        }
        let table = BundleTable::read(&body.metadata).map_err(BundleError::from)?;
        let places = Places::of(&table, bundle == 0).ok_or_else(|| self.damaged(of, "its bundle has other tensors"))?;
        Ok((body, places))
    }

    /// Fetches the blocks of a bundle for a partition.
    async fn blocks_of(
        &self,
        io: &Io,
        of: (u32, u32),
        bundle: &OfBundle,
        partition: u32,
    ) -> Result<(Vec<transfer_memory::view::Bytes>, FetchedTensor), Error> {
        let places = match bundle.places() {
            Some(places) => places,
            None => {
                let places = Arc::new(self.read_table(io, of, bundle.number, None).await?.1);
                *bundle.places.lock() = Some(places.clone());
                places
            }
        };
        let wanted = places.blocks(bundle.blocks_of(partition));
        let wanted = wanted.ok_or_else(|| self.damaged(of, "its bundle has too few blocks"))?;
        let (bytes, tensor) = self.fetch_places(io, self.bundle_key(of, bundle.number)?, wanted, &places).await?;
        Ok((bytes, tensor.ok_or_else(|| self.damaged(of, "its bundle has empty blocks"))?))
    }

    /// Fetches neighbours of a bundle: nothing else moves.
    async fn fetch_places(
        &self,
        io: &Io,
        key: Key,
        wanted: &[(u64, u64)],
        places: &Places,
    ) -> Result<(Vec<transfer_memory::view::Bytes>, Option<FetchedTensor>), Error> {
        let Some(range) = range_of(wanted) else { return Ok((Vec::new(), None)) };
        let excerpt = Excerpt::of_ranges(false, [range]).map_err(BundleError::from)?;
        let fetched = fetch_part(io, key.clone(), excerpt, io.left(io.timeout()));
        let (body, mut tensor) = first(fetched, gone(io, key)).await?;
        // Where it is read by reference, all of it is there, whatever was asked for.
        tensor.report.bytes = tensor.report.bytes.min(range.len);
        Ok((take(&body, Some(range), wanted, places)?, Some(tensor)))
    }

    fn damaged(&self, (task, attempt): (u32, u32), why: &'static str) -> Error {
        ExchangeError::Damaged { name: self.name.clone(), task, attempt, why }.into()
    }
}

/// Returns once nobody publishes this key, with the error that says so. A fetch of a large part has a long time-out, and
/// would take all of it to find out.
async fn gone<T>(io: &Io, key: Key) -> Result<T, Error> {
    loop {
        io.sleep_until(Instant::now() + LOOK).await;
        match fetch_part(io, key.clone(), Excerpt::metadata(), ABSENT).await {
            Err(e) if absence(&e) == Some(Absence::Certain) => return Err(e),
            _ => {}
        }
    }
}

/// Runs two futures, and returns the output of the one that ends first.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Pending => other.as_mut().poll(cx),
        ready => ready,
    })
    .await
}

/// Whether a fetch was too slow, of a version that is there.
pub(super) fn is_slow(error: &Error) -> bool {
    matches!(error.failure_code(), Some(FailureCode::Deadline | FailureCode::PoolFull))
}

/// Takes neighbours out of a body, which is the whole one or this range of it.
fn take(
    body: &Body,
    range: Option<BodyRange>,
    wanted: &[(u64, u64)],
    places: &Places,
) -> Result<Vec<transfer_memory::view::Bytes>, Error> {
    let start = match range {
        _ if body.len == places.body_len => 0,
        Some(range) if body.len == range.len => range.offset,
        _ => {
            let (expected_bytes, found_bytes) = (range.map_or(places.body_len, |range| range.len), body.len);
            return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
        }
    };
    let bytes = wanted.iter().map(|(offset, len)| body.bytes(offset - start, *len));
    Ok(bytes.collect::<Result<_, _>>().map_err(BundleError::from)?)
}
