//! Bundles that do not fit the landing pool. They are fetched in *buckets*: ranges of one version's body, each of which lands in
//! the pool and is copied into memory of this process, while the next one is on its way.
//!
//! The first request brings the table. The last one brings it again, behind all others, and its stamp says whether all of
//! them were answered by one push. With digests the stamp is that of the bytes, and each request brings the table. If the version is replaced meanwhile, the fetch starts again with the newer one, until its
//! deadline.

use super::fetched::FetchedBundle;
use super::parts::{Part, Parts, Wanted, boxes_of, bundle, fetched, parts, table_of};
use crate::digest::{Proof, Proving};
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchOptions, FetchedSlice, LargeFetch};
use crate::gathered::copy_threads;
use crate::request::{AnyClient, Call};
use crate::session::{ANSWER_GRACE, Ended, OneCall, Session, deadline};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyBox, BodyRange, DType, Excerpt, Key, MAX_EXCERPT_RANGES, Select, TensorMeta, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::OwnMemory;

/// The shortest bucket, in bytes.
pub(crate) const MIN_BUCKET_BYTES: u64 = 64 << 10;

/// The number of buckets that are on their way at the same time.
const IN_FLIGHT: usize = 2;

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// The length of a bucket, 32 MiB by default and at least 64 KiB. A version that does not fit the landing pool is fetched
    /// in buckets: ranges that land in the pool one after the other, and are copied into memory of this process, which the report
    /// counts. Two are on their way at a time. Where the pool is smaller than a bucket, buckets are halved. If the version is
    /// replaced meanwhile, the fetch begins again with the newer one, until its time-out.
    pub fn bucket_bytes(mut self, bytes: u64) -> Self {
        self.call.set_bucket_bytes(bytes);
        self
    }
}

/// Fetches all of a version that turns out not to fit the landing pool.
pub(crate) fn in_buckets(
    session: &Arc<Session>,
    key: Key,
    options: FetchOptions,
    why: Failure,
) -> LargeFetch<FetchedBundle> {
    Box::new(WholeBundle(BucketCall::new(session, key, options, None, why)))
}

/// A fetch of all tensors of a bundle in buckets.
struct WholeBundle(BucketCall);

impl Call for WholeBundle {
    type Output = Result<(Version, FetchedBundle), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        self.0.step(waker).map_break(|parts| {
            let parts = parts?;
            Ok((parts.version, bundle(parts)?))
        })
    }

    fn needs_timer(&self) -> bool {
        self.0.needs_timer()
    }
}

/// A fetch in buckets.
#[derive(Debug)]
pub(crate) struct BucketCall {
    session: Arc<Session>,
    key: Key,
    options: FetchOptions,
    /// The tensors, whole ones, or `None` for all.
    wanted: Option<Vec<Wanted>>,
    started: Instant,
    limit: Instant,
    bucket_bytes: u64,
    /// Why it does not come as a whole.
    why: Failure,
    /// How often the version was replaced while it was fetched.
    replaced: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The table is asked for next.
    Start,
    /// The table is on its way.
    Table(Box<OneCall>),
    Body(Box<Filling>),
}

/// The memory that is filled, and the version that it is filled with.
#[derive(Debug)]
struct Filling {
    table: BundleTable,
    /// The metadata that the table was read of.
    metadata: Vec<u8>,
    version: Version,
    report: Report,
    /// The ranges of the body that are asked for.
    ranges: Vec<BodyRange>,
    memory: OwnMemory,
    /// What has landed, and what was asked for.
    landed: Cursor,
    asked: Cursor,
    in_flight: VecDeque<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    call: OneCall,
    ranges: Vec<BodyRange>,
    with_table: bool,
    /// The answer, if it came before that of an earlier bucket was read.
    ended: Option<Ended>,
}

/// A place in a list of ranges.
#[derive(Debug, Default, Clone, Copy)]
struct Cursor {
    range: usize,
    /// The place in that range, and in all of them together, in bytes.
    within: u64,
    at: u64,
}

impl Cursor {
    /// Takes the next ranges, at most `len` bytes and as many as fit into one request.
    fn take(&mut self, ranges: &[BodyRange], len: u64) -> Vec<BodyRange> {
        let (mut taken, mut left) = (Vec::new(), len);
        while let Some(range) = ranges.get(self.range)
            && left > 0
            && taken.len() < MAX_EXCERPT_RANGES
        {
            let take = (range.len - self.within).min(left);
            taken.push(BodyRange { offset: range.offset + self.within, len: take });
            (self.within, self.at, left) = (self.within + take, self.at + take, left - take);
            if self.within == range.len {
                (self.range, self.within) = (self.range + 1, 0);
            }
        }
        taken
    }

    fn is_at_end(&self, ranges: &[BodyRange]) -> bool {
        self.range == ranges.len()
    }
}

/// What a step of the body leads to.
enum Next {
    Goes,
    Waits(Instant),
    /// All has landed.
    Filled,
    /// The version was replaced.
    Again,
}

impl BucketCall {
    /// The fetch of all tensors, or of these whole ones, after another one has found that they do not fit the pool.
    pub(crate) fn new(
        session: &Arc<Session>,
        key: Key,
        options: FetchOptions,
        wanted: Option<Vec<Wanted>>,
        why: Failure,
    ) -> BucketCall {
        let started = Instant::now();
        let limit = deadline(started, options.timeout);
        let bucket_bytes = options.bucket_bytes.max(MIN_BUCKET_BYTES) / ALIGNMENT * ALIGNMENT;
        let (session, replaced, stage) = (session.clone(), 0, Stage::Start);
        BucketCall { session, key, options, wanted, started, limit, bucket_bytes, why, replaced, stage }
    }

    fn ask(&self, select: Select, with_table: bool, ranges: Vec<BodyRange>) -> Result<OneCall, Error> {
        let timeout = self.limit.saturating_duration_since(Instant::now());
        let excerpt = Excerpt::of_ranges(with_table, ranges).map_err(BundleError::from)?;
        let options = FetchOptions { select, timeout, watches: false, ..self.options };
        let command = options.command(self.key.clone(), Some(Box::new(excerpt)));
        Ok(OneCall::new(self.session.clone(), command, self.started, self.limit))
    }

    /// Reads the table, and asks for memory.
    fn begin_body(&self, ended: Ended) -> Result<Filling, Error> {
        let (body, tensor) = match fetched(&self.session, ended) {
            // A tensor that is no bundle, or a version that is fetched a number of times, has no parts.
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => return Err(self.why.clone().into()),
            answer => answer?,
        };
        let table = table_of(&body, &tensor)?;
        let FetchedTensor { version, mut report, is_part, ref meta, .. } = tensor;
        if !is_part {
            // By reference, the report is that of all of the version.
            report.bytes = meta.body_offset();
        }
        // Boxes of whole tensors do not repeat.
        let range = |b: BodyBox| BodyRange { offset: b.offset(), len: b.len_bytes() };
        let ranges: Vec<_> = boxes_of(&self.parts(&table)?)?.into_iter().map(range).collect();
        let wanted_bytes = ranges.iter().map(|range| range.len).sum();
        let no_memory = |e: std::io::Error| Error::NoMemory { wanted_bytes, reason: e.to_string() };
        let memory = OwnMemory::new(wanted_bytes).map_err(no_memory)?;
        let (landed, asked, in_flight) = (Cursor::default(), Cursor::default(), VecDeque::new());
        Ok(Filling { table, metadata: body.metadata, version, report, ranges, memory, landed, asked, in_flight })
    }

    fn parts<'a>(&self, table: &'a BundleTable) -> Result<Vec<Part<'a>>, Error> {
        match &self.wanted {
            None => Ok(table.entries().iter().map(|entry| Part { entry, found: None }).collect()),
            Some(wanted) => parts(&self.key, table, wanted),
        }
    }

    /// Asks for the next buckets, and copies the first one if it has landed.
    fn fill(&mut self, now: &mut Filling, waker: &Waker) -> Result<Next, Error> {
        self.ask_for_buckets(now)?;
        if now.in_flight.is_empty() {
            return Ok(Next::Filled);
        }
        let mut until = self.limit + ANSWER_GRACE;
        for bucket in now.in_flight.iter_mut().filter(|bucket| bucket.ended.is_none()) {
            match bucket.call.step(waker) {
                ControlFlow::Continue(at) => until = until.min(at),
                ControlFlow::Break(ended) => bucket.ended = Some(ended),
            }
        }
        let (ended, ranges, with_table) = match now.in_flight.pop_front() {
            Some(Bucket { ended: Some(ended), ranges, with_table, .. }) => (ended, ranges, with_table),
            first => {
                first.into_iter().for_each(|first| now.in_flight.push_front(first));
                return Ok(Next::Waits(until));
            }
        };
        let (body, tensor) = match fetched(&self.session, ended) {
            Ok(landed) => landed,
            Err(Error::Failed(failure)) if failure.code == FailureCode::VersionGone => return Ok(Next::Again),
            Err(Error::Failed(failure))
                if failure.code == FailureCode::TooLarge && self.bucket_bytes >= 2 * MIN_BUCKET_BYTES =>
            {
                // The pool is smaller than a bucket, so what has not landed is asked for in smaller ones.
                self.bucket_bytes = self.bucket_bytes / 2 / ALIGNMENT * ALIGNMENT;
                now.in_flight.clear();
                now.asked = now.landed;
                return Ok(Next::Goes);
            }
            Err(e) => return Err(e),
        };
        if with_table && BundleTable::read(&body.metadata).map_err(BundleError::from)?.stamp() != now.table.stamp() {
            return Ok(Next::Again);
        }
        let expected_bytes = ranges.iter().map(|range| range.len).sum();
        let whole_bytes = if tensor.is_part { expected_bytes } else { now.table.body_len() };
        if body.len != whole_bytes {
            return Err(BundleError::WrongLength { expected_bytes: whole_bytes, found_bytes: body.len }.into());
        }
        let mut from = 0;
        for BodyRange { offset, len } in ranges {
            let to = &mut now.memory.as_mut_bytes()[now.landed.at as usize..][..len as usize];
            // By reference all of the body is there.
            body.copy_out(if tensor.is_part { from } else { offset }, to, copy_threads()).map_err(BundleError::from)?;
            from += len;
            now.landed.take(&now.ranges, len);
        }
        now.report.bytes += expected_bytes;
        now.report.copied += tensor.report.copied + expected_bytes;
        Ok(Next::Goes)
    }

    fn ask_for_buckets(&self, now: &mut Filling) -> Result<(), Error> {
        while now.in_flight.len() < IN_FLIGHT && !now.asked.is_at_end(&now.ranges) {
            let before = now.asked;
            let ranges = now.asked.take(&now.ranges, self.bucket_bytes);
            // The last one comes behind all others, so that its stamp speaks for them.
            let is_last = now.asked.is_at_end(&now.ranges);
            if is_last && !now.in_flight.is_empty() {
                now.asked = before;
                break;
            }
            // A stamp that is made of digests comes again with its bytes, and other bytes may have been there meanwhile.
            let with_table = is_last || now.table.digests().is_some();
            let call = self.ask(Select::Exactly(now.version), with_table, ranges.clone())?;
            now.in_flight.push_back(Bucket { call, ranges, with_table, ended: None });
        }
        Ok(())
    }

    /// Makes tensors of what has landed.
    fn finish(&self, now: Filling) -> Result<Parts, Error> {
        let Filling { table, metadata, version, mut report, memory, .. } = now;
        report.in_flight = self.started.elapsed().saturating_sub(report.queued + report.waited);
        let bytes = memory.freeze();
        // Part of a version is not proved, so these are all tensors, and with them all of the body.
        if self.options.proving != Proving::Not {
            let meta = TensorMeta::of(DType::U8, &[table.body_len()])?;
            let meta = meta.with_metadata(u32::try_from(metadata.len()).unwrap_or(u32::MAX))?;
            let proof = Proof { key: &self.key, proving: self.options.proving };
            let head = (version, &meta, &metadata[..]);
            let compared = proof.compare(head, table.digests(), true, copy_threads(), [&bytes[..]]);
            report.verified = compared.inspect_err(|e| self.session.tell_wrong_digest(e))?;
        }
        let mut at = 0;
        let landed = self.parts(&table)?.into_iter().map(|Part { entry, .. }| {
            let len = entry.meta.len_bytes();
            // The sum of all lengths was checked when the table was read, and is that of the memory.
            let part = bytes.slice(at as usize..(at + len) as usize);
            let missing = BundleError::OutOfBody { offset: entry.offset, len, body_len: table.body_len() };
            at += padded(len).unwrap_or(len);
            let tensor = FetchedSlice::landed(part.ok_or(missing)?, entry.meta.clone(), version, report);
            Ok((entry.name.clone(), tensor))
        });
        let parts = landed.collect::<Result<_, BundleError>>()?;
        Ok(Parts { parts, version, report })
    }

    /// Starts again with the newer version, unless the caller wants exactly this one.
    fn start_again(&mut self) -> Result<(), Error> {
        let key = &self.key;
        if let Select::Exactly(version) | Select::Following(version) = self.options.select {
            let text = format!("{version} of key {key:?} was replaced while it was fetched in buckets");
            return Err(Failure::new(FailureCode::VersionGone, text).into());
        }
        self.replaced += 1;
        if Instant::now() >= self.limit {
            let (waited, replaced) = (self.started.elapsed(), self.replaced);
            let text = format!(
                "after {waited:.1?}: key {key:?} does not fit the landing pool, and its version was replaced {replaced} times while \
                 it was fetched in buckets; publish it less often, or with keep, or enlarge the pool"
            );
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        self.stage = Stage::Start;
        Ok(())
    }

    fn go_on(&mut self, waker: &Waker) -> Result<ControlFlow<Parts, Instant>, Error> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Start) {
                Stage::Start => self.stage = Stage::Table(Box::new(self.ask(self.options.select, true, Vec::new())?)),
                Stage::Table(mut call) => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::Table(call);
                        return Ok(ControlFlow::Continue(at));
                    }
                    ControlFlow::Break(ended) => self.stage = Stage::Body(Box::new(self.begin_body(ended)?)),
                },
                Stage::Body(mut now) => match self.fill(&mut now, waker)? {
                    Next::Goes => self.stage = Stage::Body(now),
                    Next::Waits(at) => {
                        self.stage = Stage::Body(now);
                        return Ok(ControlFlow::Continue(at));
                    }
                    Next::Filled => return Ok(ControlFlow::Break(self.finish(*now)?)),
                    Next::Again => {
                        // What is on its way is given up before the newer version is asked for.
                        drop(now);
                        self.start_again()?;
                    }
                },
            }
        }
    }
}

impl Call for BucketCall {
    type Output = Result<Parts, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        match self.go_on(waker) {
            Ok(ControlFlow::Continue(at)) => ControlFlow::Continue(at),
            Ok(ControlFlow::Break(parts)) => ControlFlow::Break(Ok(parts)),
            Err(e) => ControlFlow::Break(Err(e)),
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Start => false,
            Stage::Table(call) => call.needs_timer(),
            Stage::Body(now) => now.in_flight.iter().any(|bucket| bucket.call.needs_timer()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> BodyRange {
        BodyRange { offset, len }
    }

    // Promise: buckets
    #[test]
    fn buckets_cut_ranges_and_leave_nothing_out() {
        let ranges = [range(0, 640), range(1024, 64), range(2048, 256)];
        let mut cursor = Cursor::default();
        assert_eq!(cursor.take(&ranges, 512), [range(0, 512)]);
        assert_eq!(cursor.take(&ranges, 256), [range(512, 128), range(1024, 64), range(2048, 64)]);
        assert!(!cursor.is_at_end(&ranges));
        assert_eq!(cursor.take(&ranges, 512), [range(2112, 192)]);
        assert!(cursor.is_at_end(&ranges) && cursor.take(&ranges, 512).is_empty());
        assert_eq!(cursor.at, 640 + 64 + 256);
        // As many ranges as one request has.
        let many: Vec<_> = (0..=MAX_EXCERPT_RANGES as u64).map(|n| range(n * 128, 64)).collect();
        let mut cursor = Cursor::default();
        assert_eq!(cursor.take(&many, 1 << 20).len(), MAX_EXCERPT_RANGES);
        assert_eq!(cursor.take(&many, 1 << 20), many[MAX_EXCERPT_RANGES..]);
    }
}
