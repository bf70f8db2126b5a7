//! Fetching: notes, and parts of the bundles of a committed attempt.

use crate::attempt::{Attempt, OfBundle};
use crate::block::BlockReader;
use crate::calls::{ABSENCE_TIMEOUT, Absence, REREAD_INTERVAL, absence, fetch_note, fetch_part, is_slow};
use crate::error::{Error, ExchangeError};
use crate::manifest::{Bundles, Places, heads_guess, range_of};
use crate::state::ExchangeState;
use crate::word::Word;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use transfer_client::flow::Io;
use transfer_client::{BundleError, Bytes, FetchedExcerpt, Key, Report};
use transfer_core::tensor::{BodyRange, Excerpt, Name};
use transfer_core::wire::bundle::BundleTable;

/// The time between two looks whether a version that is being fetched is still there.
const PRESENCE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The blocks of one task for one partition.
pub(super) struct Blocks {
    pub(super) attempt: Arc<Attempt>,
    pub(super) blocks: Vec<Bytes>,
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
                Word::Committed(_) if absence == Absence::Certain || since.elapsed() >= ABSENCE_TIMEOUT => {
                    return Ok(Found::Lost);
                }
                Word::Committed(_) => {}
                _ => return Ok(Found::NotYet),
            }
            io.sleep_until(Instant::now() + REREAD_INTERVAL).await;
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
        let mut blocks = Blocks { attempt: attempt.clone(), blocks: Vec::new(), report: None };
        let Some(partition) = partition else { return Ok(blocks) };
        let of = (task, number);
        let wanted: Vec<_> = attempt.bundles_of(partition).collect();
        let fetched = io.all(wanted, |bundle| self.blocks_of(io, of, bundle, partition));
        for fetched in fetched.await {
            let (found, report) = fetched?;
            blocks.blocks.extend(found);
            let mut sum = report;
            if let Some(before) = blocks.report {
                sum.bytes += before.bytes;
                sum.copied += before.copied;
                sum.relayed += before.relayed;
            }
            blocks.report = Some(sum);
        }
        Ok(blocks)
    }

    /// Reads the table, the schema and the numbers of the blocks of an attempt.
    async fn read_attempt(&self, io: &Io, task: u32, number: u32) -> Result<Attempt, Error> {
        let damaged = |why| self.damaged((task, number), why);
        let key = self.bundle_key((task, number), 0)?;
        // What lies in front of the blocks comes with the table, if the guess is right.
        let start = BodyRange { offset: 0, len: heads_guess(self.partitions()) };
        let (table, places) = self.read_table(io, (task, number), 0, Some(start)).await?;
        let is_whole = table.body_len() == places.body_len;
        let end = range_of(places.heads()).and_then(|range| range.end());
        let has_come = table.body_len() == start.len && end.is_some_and(|end| end <= start.len);
        let heads = match is_whole || has_come {
            true => take(&table, Some(start), places.heads(), &places)?,
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
        let bundle = |(number, starts)| OfBundle::new(number, starts, (number == 0).then(|| places.clone()));
        // What is there as a whole is read in place. So is what lies at this node, if it is not on disk.
        let node = (!is_whole && node.as_str() != self.client.node()).then_some(node);
        Ok(Attempt { number, bundles: bundles.into_iter().map(bundle).collect(), reader, node })
    }

    /// Whether what an attempt has committed is there.
    ///
    /// # Errors
    /// Any [`Error`] that does not tell.
    pub(super) async fn is_there(&self, io: &Io, of: (u32, u32)) -> Result<bool, Error> {
        let key = self.bundle_key(of, 0)?;
        let until = Instant::now() + ABSENCE_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match fetch_part(io, key.clone(), Excerpt::metadata(), left).await {
                Ok(_) => return self.are_there(io, of).await,
                Err(e) => match absence(&e) {
                    Some(Absence::Certain) => return Ok(false),
                    Some(Absence::Perhaps) if Instant::now() >= until => return Ok(false),
                    Some(Absence::Perhaps) => io.sleep_until(Instant::now() + REREAD_INTERVAL).await,
                    // It is there, and slow.
                    None if is_slow(&e) => return Ok(true),
                    None => return Err(e),
                },
            }
        }
    }

    /// Whether all bundles of an attempt are there. Its bundle 0 is.
    ///
    /// # Errors
    /// Any [`Error`] that does not tell.
    async fn are_there(&self, io: &Io, (task, number): (u32, u32)) -> Result<bool, Error> {
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
    ) -> Result<(FetchedExcerpt, Places), Error> {
        let key = self.bundle_key(of, bundle)?;
        let excerpt = Excerpt::of_ranges(true, range).map_err(BundleError::from)?;
        let fetched = loop {
            // The time is short, so that a key that nobody publishes is noticed. A table that is slow comes later.
            match fetch_part(io, key.clone(), excerpt.clone(), io.left(ABSENCE_TIMEOUT)).await {
                Err(e) if is_slow(&e) && Instant::now() < io.limit() => {}
                fetched => break fetched?,
            }
        };
        if !BundleTable::is_bundle(fetched.metadata()) {
            return Err(BundleError::NotABundle { meta: fetched.meta().clone() }.into());
        }
        let table = BundleTable::read(fetched.metadata()).map_err(BundleError::from)?;
        let places = Places::of(&table, bundle == 0).ok_or_else(|| self.damaged(of, "its bundle has other tensors"))?;
        Ok((fetched, places))
    }

    /// Fetches the blocks of a bundle for a partition.
    async fn blocks_of(
        &self,
        io: &Io,
        of: (u32, u32),
        bundle: &OfBundle,
        partition: u32,
    ) -> Result<(Vec<Bytes>, Report), Error> {
        let places = match bundle.places() {
            Some(places) => places,
            None => {
                let places = Arc::new(self.read_table(io, of, bundle.number, None).await?.1);
                bundle.found(places.clone());
                places
            }
        };
        let wanted = places.blocks(bundle.blocks_of(partition));
        let wanted = wanted.ok_or_else(|| self.damaged(of, "its bundle has too few blocks"))?;
        let (bytes, report) = self.fetch_places(io, self.bundle_key(of, bundle.number)?, wanted, &places).await?;
        Ok((bytes, report.ok_or_else(|| self.damaged(of, "its bundle has empty blocks"))?))
    }

    /// Fetches neighbours of a bundle: nothing else moves.
    async fn fetch_places(
        &self,
        io: &Io,
        key: Key,
        wanted: &[(u64, u64)],
        places: &Places,
    ) -> Result<(Vec<Bytes>, Option<Report>), Error> {
        let Some(range) = range_of(wanted) else { return Ok((Vec::new(), None)) };
        let excerpt = Excerpt::of_ranges(false, [range]).map_err(BundleError::from)?;
        let fetched = fetch_part(io, key.clone(), excerpt, io.left(io.timeout()));
        let fetched = first(fetched, gone(io, key)).await?;
        // Where it is read by reference, all of it is there, whatever was asked for.
        let bytes = fetched.report().bytes.min(range.len);
        Ok((take(&fetched, Some(range), wanted, places)?, Some(Report { bytes, ..fetched.report() })))
    }

    fn damaged(&self, (task, attempt): (u32, u32), why: &'static str) -> Error {
        ExchangeError::Damaged { name: self.name.clone(), task, attempt, why }.into()
    }
}

/// Returns once nobody publishes this key, with the error that says so. A fetch of a large part has a long time-out, and
/// would take all of it to find out.
async fn gone<T>(io: &Io, key: Key) -> Result<T, Error> {
    loop {
        io.sleep_until(Instant::now() + PRESENCE_CHECK_INTERVAL).await;
        match fetch_part(io, key.clone(), Excerpt::metadata(), ABSENCE_TIMEOUT).await {
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

/// Takes neighbours out of a body, which is the whole one or this range of it.
fn take(
    body: &FetchedExcerpt,
    range: Option<BodyRange>,
    wanted: &[(u64, u64)],
    places: &Places,
) -> Result<Vec<Bytes>, Error> {
    let start = match range {
        _ if body.body_len() == places.body_len => 0,
        Some(range) if body.body_len() == range.len => range.offset,
        _ => {
            let (expected_bytes, found_bytes) = (range.map_or(places.body_len, |range| range.len), body.body_len());
            return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
        }
    };
    Ok(wanted.iter().map(|(offset, len)| body.bytes(offset - start, *len)).collect::<Result<_, _>>()?)
}
