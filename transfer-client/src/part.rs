//! Some tensors of a bundle, or slices of them: where a version has to move, only they do.
//!
//! The boxes of the tensors follow from the bundle's table, which its reader does not have yet. So the first fetch of a
//! key asks for the table alone. The session remembers it: later versions usually have the same one, and a fetch asks for
//! the table and the boxes at once. The table that comes is compared with the one by which the boxes were chosen. If
//! they differ, the fetch starts again with the newer one. What is read by reference is the whole version.

use crate::buckets::{BucketCall, does_not_fit};
use crate::bundle::{BundleError, FetchedBundle};
use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::fetch::{Fetch, FetchOptions, fetch_options};
use crate::gathered::Body;
use crate::session::{Answered, Session};
use crate::slice::span;
use crate::subscriber::Since;
use crate::tensor::Lease;
use crate::{Error, FetchedSlice, Tensor};
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::{Answer, Command, Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{
    BodyBox, BodyRange, Excerpt, Key, MAX_EXCERPT_BYTES, Packing, Select, Slice, TensorBox, TensorName, Version,
};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};

/// A fetch of some tensors of a bundle, or of slices of them. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. See [`Fetch::only`] and [`Fetch::slices`].
#[derive(Debug)]
#[must_use = "a fetch is made by `.await`, or by `.call()`"]
pub struct FetchOnly<F, T = FetchedBundle> {
    pub(crate) call: FetchOnlyCall<T>,
    face: PhantomData<F>,
}

/// A tensor that is asked for, or a slice of it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) slice: Option<Slice>,
}

/// What has come: the names and slices, in the table's order.
pub(crate) struct Parts {
    pub(crate) parts: Vec<(TensorName, FetchedSlice)>,
    pub(crate) version: Version,
    pub(crate) report: Report,
}

/// Makes the result of the call.
type Finish<T> = fn(Parts) -> Result<T, Error>;

impl<F: Face> Fetch<F, FetchedBundle> {
    /// Fetches only the tensors of these names. Where the version has to move, nothing moves but the bundle's table and
    /// these tensors, and the report counts only them. The bundle that is returned has these tensors and no others, in
    /// the order in which they were pushed.
    ///
    /// The call fails with [`BundleError::NoSuchTensor`] if the version has no tensor of one of the names. A version
    /// that is kept until it is fetched a number of times can only be fetched as a whole.
    pub fn only<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> FetchOnly<F> {
        let wanted = |name: N| Wanted { name: name.as_ref().to_owned(), slice: None };
        FetchOnly::new(self, names.into_iter().map(wanted).collect(), bundle)
    }
}

impl<F: Face, T> FetchOnly<F, T> {
    pub(crate) fn new(fetch: Fetch<F, FetchedBundle>, wanted: Vec<Wanted>, finish: Finish<T>) -> Self {
        let (session, key, options, seen) = fetch.into_parts();
        let (key, under_way, in_buckets) = (Some(key), None, None);
        let call = FetchOnlyCall { session, key, wanted, options, seen, finish, under_way, in_buckets };
        FetchOnly { call, face: PhantomData }
    }

    fetch_options!(call.options);
}

impl<T> IntoFuture for FetchOnly<Async, T> {
    type Output = Result<T, Error>;
    type IntoFuture = Running<FetchOnlyCall<T>>;

    fn into_future(self) -> Running<FetchOnlyCall<T>> {
        Running::new(self.call)
    }
}

impl<T> FetchOnly<Blocking, T> {
    /// Makes the fetch.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<T, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A fetch of some tensors under way.
#[derive(Debug)]
pub struct FetchOnlyCall<T = FetchedBundle> {
    pub(crate) session: Arc<Session>,
    key: Option<Result<Key, Error>>,
    wanted: Vec<Wanted>,
    options: FetchOptions,
    /// What its subscriber had returned when it was made.
    seen: Option<Since>,
    finish: Finish<T>,
    under_way: Option<UnderWay>,
    /// The fetch of tensors that do not fit the landing pool.
    in_buckets: Option<BucketCall>,
}

#[derive(Debug)]
struct UnderWay {
    key: Key,
    started: Instant,
    limit: Instant,
    plan: Plan,
    stage: Stage,
    calls: Calls,
}

#[derive(Debug)]
enum Stage {
    /// The table, and the first boxes if the table is known.
    First,
    /// The other boxes of this version.
    Rest(Box<Rest>),
}

/// The answer to the first request, while the others are under way.
#[derive(Debug)]
struct Rest {
    first: Landed,
    version: Version,
    report: Report,
}

/// A body, and the boxes of the version's body that it consists of, each with its offset in this body. Both rise. `None`:
/// all of it.
struct Landed {
    body: Body,
    boxes: Option<Vec<(BodyBox, u64)>>,
}

impl std::fmt::Debug for Landed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landed").field("boxes", &self.boxes.as_ref().map(Vec::len)).finish_non_exhaustive()
    }
}

/// A tensor of the table that is asked for, or what the slice of it is.
pub(crate) struct Part<'a> {
    pub(crate) entry: &'a BundleEntry,
    pub(crate) found: Option<TensorBox>,
}

impl Part<'_> {
    /// Returns the bytes of the version's body, if there are any. Those of a tensor are a range, with the zeros behind
    /// it.
    fn bytes(&self) -> Result<Option<BodyBox>, Error> {
        let BundleEntry { offset, meta, .. } = self.entry;
        // The sum of all lengths was checked when the table was read.
        let len = padded(meta.len_bytes()).unwrap_or(0);
        match &self.found {
            Some(found) => Ok(found.bytes(*offset)),
            None if len == 0 => Ok(None),
            None => Ok(Some(BodyRange { offset: *offset, len }.try_into().map_err(BundleError::from)?)),
        }
    }

    /// Returns what it is in this body, if it is there.
    fn take(&self, landed: &Landed, version: Version, report: Report) -> Result<Option<FetchedSlice>, Error> {
        let BundleEntry { offset, meta, .. } = self.entry;
        let slice = |at, len| landed.body.bytes(at, len).map_err(BundleError::from);
        let Some(boxes) = &landed.boxes else {
            return Ok(Some(match &self.found {
                None => FetchedSlice::landed(slice(*offset, meta.len_bytes())?, meta.clone(), version, report),
                Some(found) => {
                    let (first, len) = span(found);
                    let bytes = slice(offset + first as u64, len as u64)?;
                    FetchedSlice::viewed(bytes, found, version, report)
                }
            }));
        };
        let meta = self.found.as_ref().map_or(meta, TensorBox::meta);
        let Some(own) = self.bytes()? else {
            return Ok(Some(FetchedSlice::landed(slice(0, 0)?, meta.clone(), version, report)));
        };
        let before = boxes.partition_point(|(b, _)| b.offset() <= own.offset()).checked_sub(1);
        let Some((b, at)) = before.and_then(|before| boxes.get(before)) else { return Ok(None) };
        // Tensors beside each other come as one range.
        let is_in_range = self.found.is_none() && b.repeats().is_empty() && own.end() <= b.end();
        if *b != own && !is_in_range {
            return Ok(None);
        }
        let bytes = slice(at + own.offset() - b.offset(), meta.len_bytes())?;
        Ok(Some(FetchedSlice::landed(bytes, meta.clone(), version, report)))
    }
}

/// What is asked for, by which table.
#[derive(Debug)]
struct Plan {
    table: Option<Arc<BundleTable>>,
    /// The boxes, in pieces that fit into one request. The first may be empty.
    pieces: Vec<Vec<BodyBox>>,
}

impl Plan {
    /// Plans by a table that is known from an earlier version. Without one, or if what is wanted does not fit it, only
    /// the table is asked for.
    fn new(key: &Key, known: Option<Arc<BundleTable>>, wanted: &[Wanted]) -> Plan {
        let boxes = known.as_ref().and_then(|table| boxes_of(&parts(key, table, wanted).ok()?).ok());
        let mut pieces = vec![Vec::new()];
        let mut bytes = 0;
        for b in boxes.iter().flatten() {
            if bytes + b.wire_bytes() > MAX_EXCERPT_BYTES {
                pieces.push(Vec::new());
                bytes = 0;
            }
            bytes += b.wire_bytes();
            if let Some(piece) = pieces.last_mut() {
                piece.push(b.clone());
            }
        }
        Plan { table: known.filter(|_| boxes.is_some()), pieces }
    }
}

/// What is wanted, in the table's order.
pub(crate) fn parts<'a>(key: &Key, table: &'a BundleTable, wanted: &[Wanted]) -> Result<Vec<Part<'a>>, Error> {
    let mut found: BTreeMap<usize, &Wanted> = BTreeMap::new();
    for one in wanted {
        let at = table.find(&one.name).ok_or_else(|| BundleError::NoSuchTensor { name: one.name.clone() })?;
        if found.insert(at, one).is_some_and(|before| before.slice != one.slice) {
            return Err(BundleError::NamedTwice { name: one.name.clone() }.into());
        }
    }
    let part = |(at, Wanted { name, slice }): (usize, &Wanted)| {
        let entry = &table.entries()[at];
        let found = slice.as_ref().map(|slice| slice.of(&entry.meta)).transpose().map_err(|e| {
            let text = format!("tensor {name:?} of key {key:?} has {}: {e}", entry.meta);
            Failure::new(FailureCode::Invalid, text)
        })?;
        Ok(Part { entry, found })
    };
    found.into_iter().map(part).collect()
}

/// The boxes of these tensors and slices. Whole tensors beside each other are one box.
pub(crate) fn boxes_of(parts: &[Part<'_>]) -> Result<Vec<BodyBox>, Error> {
    let (mut boxes, mut last_is_whole) = (Vec::<BodyBox>::new(), false);
    for part in parts {
        let Some(b) = part.bytes()? else { continue };
        let is_whole = part.found.is_none();
        match boxes.last_mut() {
            Some(last) if is_whole && last_is_whole && last.end() == b.offset() => {
                let range = BodyRange { offset: last.offset(), len: b.end() - last.offset() };
                *last = range.try_into().map_err(BundleError::from)?;
            }
            _ => boxes.push(b),
        }
        last_is_whole = is_whole;
    }
    Ok(boxes)
}

/// The number of bytes that these boxes have where they land.
fn packed_bytes(boxes: &[BodyBox]) -> u64 {
    Packing::new(boxes.iter().cloned().collect()).len_bytes().unwrap_or(u64::MAX)
}

impl<T> FetchOnlyCall<T> {
    /// Asks for the table, and for the first boxes of the plan.
    fn ask(&self, key: &Key, started: Instant, limit: Instant, plan: &Plan) -> Result<Calls, Error> {
        let mut calls = Calls::new(self.session.clone(), started, limit);
        calls.add(self.command(key, self.options.select, limit, (true, &plan.pieces[0]))?, None);
        Ok(calls)
    }

    fn command(
        &self,
        key: &Key,
        select: Select,
        limit: Instant,
        (with_metadata, boxes): (bool, &[BodyBox]),
    ) -> Result<Command, Error> {
        let timeout = limit.saturating_duration_since(Instant::now());
        let excerpt = Excerpt::new(with_metadata, boxes.to_vec()).map_err(BundleError::from)?;
        let options = FetchOptions { select, timeout, watches: false, ..self.options };
        Ok(options.command(key.clone(), Some(Box::new(excerpt))))
    }

    /// Begins the call. Returns its result if the version is found in shared memory.
    fn start(&mut self, key: Key) -> Result<Option<T>, Error> {
        let FetchOptions { select, require, trace, .. } = self.options;
        // The trace of a fetch must contain its report, and only the sidecar writes that.
        let found = if trace.is_none() { self.session.look_up(&key, select, require) } else { None };
        if let Some((hazard, tensor)) = found {
            let body = Body::new::<BundleError>(Lease::looked_up(&self.session, hazard), &tensor)?;
            let table = Arc::new(table_of(&body, &tensor)?);
            return self.whole(&key, &table, body, &tensor).map(Some);
        }
        let started = Instant::now();
        let limit = deadline(started, self.options.timeout);
        let plan = Plan::new(&key, self.session.bundle_tables().get(&key), &self.wanted);
        let calls = self.ask(&key, started, limit, &plan)?;
        self.under_way = Some(UnderWay { key, started, limit, plan, stage: Stage::First, calls });
        Ok(None)
    }

    /// Makes the result of a whole version, which is read by reference.
    fn whole(&self, key: &Key, table: &BundleTable, body: Body, tensor: &FetchedTensor) -> Result<T, Error> {
        let FetchedTensor { version, ref meta, mut report, .. } = *tensor;
        if body.len != table.body_len() {
            let (expected_bytes, found_bytes) = (table.body_len(), body.len);
            return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
        }
        let parts = parts(key, table, &self.wanted)?;
        report.bytes = meta.body_offset() + packed_bytes(&boxes_of(&parts)?);
        self.finish(&parts, &[Landed { body, boxes: None }], version, report)
    }

    /// Makes the result of what has landed. What is wanted rises, and so does what has landed.
    fn finish(&self, wanted: &[Part<'_>], landed: &[Landed], version: Version, report: Report) -> Result<T, Error> {
        let mut parts = Vec::with_capacity(wanted.len());
        let mut left = landed;
        for part in wanted {
            let BundleEntry { name, offset, meta } = part.entry;
            let found = loop {
                let (offset, len, body_len) = (*offset, meta.len_bytes(), landed[0].body.len);
                let (first, behind) = left.split_first().ok_or(BundleError::OutOfBody { offset, len, body_len })?;
                match part.take(first, version, report)? {
                    Some(found) => break found,
                    None => left = behind,
                }
            };
            parts.push((name.clone(), found));
        }
        self.made(Parts { parts, version, report })
    }

    fn made(&self, parts: Parts) -> Result<T, Error> {
        let version = parts.version;
        let made = (self.finish)(parts)?;
        if let Some(seen) = &self.seen {
            seen.saw(version);
        }
        Ok(made)
    }

    /// Starts again, because the version has another table than the one by which its boxes were chosen.
    fn start_again(&mut self, now: UnderWay, table: Option<Arc<BundleTable>>) -> Result<(), Error> {
        let UnderWay { key, started, limit, .. } = now;
        if Instant::now() >= limit {
            let waited = started.elapsed();
            let text = format!("after {waited:.1?} the bundle {key:?} still changed its tensors with each version");
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        let plan = Plan::new(&key, table, &self.wanted);
        let calls = self.ask(&key, started, limit, &plan)?;
        self.under_way = Some(UnderWay { key, started, limit, plan, stage: Stage::First, calls });
        Ok(())
    }

    /// Handles the answer to the first request. Returns the result if all is here.
    fn first(&mut self, mut now: UnderWay) -> Result<Option<T>, Error> {
        let (body, tensor) = fetched(&self.session, now.calls.take_one())?;
        let table = Arc::new(table_of(&body, &tensor)?);
        self.session.bundle_tables().remember(&now.key, table.clone());
        if !tensor.is_part {
            return self.whole(&now.key, &table, body, &tensor).map(Some);
        }
        let parts = parts(&now.key, &table, &self.wanted)?;
        if now.plan.table.as_ref() != Some(&table) {
            self.start_again(now, Some(table))?;
            return Ok(None);
        }
        let FetchedTensor { version, report, .. } = tensor;
        let first = landed(body, now.plan.pieces[0].clone())?;
        let rest = &now.plan.pieces[1..];
        if rest.is_empty() {
            return self.finish(&parts, &[first], version, report).map(Some);
        }
        let mut calls = Calls::new(self.session.clone(), now.started, now.limit);
        for boxes in rest {
            calls.add(self.command(&now.key, Select::Exactly(version), now.limit, (false, boxes))?, None);
        }
        now.calls = calls;
        now.stage = Stage::Rest(Box::new(Rest { first, version, report }));
        self.under_way = Some(now);
        Ok(None)
    }

    /// Handles the answers to the other requests. Returns the result if all is here.
    fn rest(&mut self, mut now: UnderWay) -> Result<Option<T>, Error> {
        let Stage::Rest(answered) = std::mem::replace(&mut now.stage, Stage::First) else { return Err(Error::Ended) };
        let Rest { first, version, mut report } = *answered;
        let Some(table) = now.plan.table.clone() else { return Err(Error::Ended) };
        let mut all = vec![first];
        let ended: Vec<_> = now.calls.take().map(|(_, ended)| ended).collect();
        for (ended, asked) in ended.into_iter().zip(now.plan.pieces[1..].to_vec()) {
            let (body, tensor) = match fetched(&self.session, ended) {
                Ok(fetched) => fetched,
                // A newer version has replaced it.
                Err(Error::Failed(failure)) if failure.code == FailureCode::VersionGone && !self.wants_exactly() => {
                    self.start_again(now, Some(table))?;
                    return Ok(None);
                }
                Err(e) => return Err(e),
            };
            report.bytes += match tensor.is_part {
                true => tensor.report.bytes,
                false => packed_bytes(&asked),
            };
            report.copied += tensor.report.copied;
            all.push(match tensor.is_part {
                true => landed(body, asked)?,
                false => Landed { body, boxes: None },
            });
        }
        self.finish(&parts(&now.key, &table, &self.wanted)?, &all, version, report).map(Some)
    }

    fn wants_whole_tensors(&self) -> bool {
        self.wanted.iter().all(|wanted| wanted.slice.is_none())
    }

    fn wants_exactly(&self) -> bool {
        matches!(self.options.select, Select::Exactly(_))
    }
}

impl<T> Call for FetchOnlyCall<T> {
    type Output = Result<T, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        if let Some(key) = self.key.take() {
            match key.and_then(|key| self.start(key)) {
                Ok(None) => {}
                Ok(Some(found)) => return ControlFlow::Break(Ok(found)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
        loop {
            if let Some(call) = &mut self.in_buckets {
                return call.step(waker).map_break(|parts| self.made(parts?));
            }
            let Some(now) = &mut self.under_way else { return ControlFlow::Break(Err(Error::Ended)) };
            if let ControlFlow::Continue(at) = now.calls.step(waker) {
                return ControlFlow::Continue(at);
            }
            let Some(now) = self.under_way.take() else { return ControlFlow::Break(Err(Error::Ended)) };
            let (key, limit) = (now.key.clone(), now.limit);
            let done = match now.stage {
                Stage::First => self.first(now),
                Stage::Rest(_) => self.rest(now),
            };
            match done {
                Ok(None) => {}
                Err(Error::Failed(failure)) if does_not_fit(&failure) && self.wants_whole_tensors() => {
                    let timeout = limit.saturating_duration_since(Instant::now());
                    let options = FetchOptions { timeout, ..self.options };
                    let wanted = Some(std::mem::take(&mut self.wanted));
                    self.in_buckets = Some(BucketCall::new(&self.session, key, options, wanted, failure));
                }
                Ok(Some(made)) => return ControlFlow::Break(Ok(made)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
    }

    fn needs_timer(&self) -> bool {
        self.under_way.as_ref().is_some_and(|now| now.calls.needs_timer())
            || self.in_buckets.as_ref().is_some_and(Call::needs_timer)
    }
}

/// The body of an answer.
pub(crate) fn fetched(session: &Arc<Session>, ended: crate::calls::Ended) -> Result<(Body, FetchedTensor), Error> {
    match ended.and_then(Answered::success)? {
        Answer::Fetched { lease, tensor } => {
            let body = Body::new::<BundleError>(Lease::handed_out(session, lease), &tensor)?;
            Ok((body, tensor))
        }
        // The table only passes answers to a fetch.
        _ => Err(Error::Ended),
    }
}

/// The table of a bundle.
pub(crate) fn table_of(body: &Body, tensor: &FetchedTensor) -> Result<BundleTable, Error> {
    if !BundleTable::is_bundle(&body.metadata) {
        return Err(BundleError::NotABundle { meta: tensor.meta.clone() }.into());
    }
    Ok(BundleTable::read(&body.metadata).map_err(BundleError::from)?)
}

/// A body that consists of these boxes.
fn landed(body: Body, boxes: Vec<BodyBox>) -> Result<Landed, Error> {
    let (expected_bytes, found_bytes) = (packed_bytes(&boxes), body.len);
    if expected_bytes != found_bytes {
        return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
    }
    let mut end = 0_u64;
    let placed = boxes.into_iter().map(|b| {
        let at = end.next_multiple_of(ALIGNMENT);
        end = at + b.len_bytes();
        (b, at)
    });
    Ok(Landed { body, boxes: Some(placed.collect()) })
}

/// The bundle of whole tensors.
pub(crate) fn bundle(parts: Parts) -> Result<FetchedBundle, Error> {
    let Parts { parts, version, report } = parts;
    let (mut described, mut tensors) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    for (name, slice) in parts {
        let meta = slice.meta().clone();
        described.push((name, meta.clone()));
        tensors.push(Tensor::of_bundle(slice.into_bytes(), meta, version, report));
    }
    let table = BundleTable::new(described).map_err(BundleError::from)?;
    Ok(FetchedBundle::new(table, tensors, version, report))
}
