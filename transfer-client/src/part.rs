//! Some tensors of a bundle: where a version has to move, only they do.
//!
//! The ranges of the tensors follow from the bundle's table, which its reader does not have yet. So the first fetch of a
//! key asks for the table alone. The session remembers it: later versions usually have the same one, and a fetch asks for
//! the table and the ranges at once. The table that comes is compared with the one by which the ranges were chosen. If
//! they differ, the fetch starts again with the newer one.

use crate::bundle::{BundleError, FetchedBundle};
use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::fetch::{Fetch, FetchOptions, fetch_options};
use crate::gathered::Body;
use crate::session::{Answered, Session};
use crate::tensor::Lease;
use crate::{Error, Tensor};
use std::collections::{HashMap, HashSet};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::memory::padded;
use transfer_core::op::{Answer, Command, Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyRange, Excerpt, Key, MAX_EXCERPT_RANGES, Select, Version};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};

/// The number of keys whose tables a session remembers.
const MOST_TABLES: usize = 64;

/// The tables of the bundles of which a session has fetched parts.
#[derive(Debug, Default)]
pub(crate) struct KnownTables(HashMap<Key, Arc<BundleTable>>);

impl KnownTables {
    fn get(&self, key: &Key) -> Option<Arc<BundleTable>> {
        self.0.get(key).cloned()
    }

    fn remember(&mut self, key: &Key, table: Arc<BundleTable>) {
        if self.0.len() >= MOST_TABLES && !self.0.contains_key(key) {
            // Which of them is forgotten matters little: it is fetched again.
            self.0.clear();
        }
        self.0.insert(key.clone(), table);
    }
}

/// A fetch of some tensors of a bundle. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. See [`Fetch::only`].
#[derive(Debug)]
#[must_use = "a fetch is made by `.await`, or by `.call()`"]
pub struct FetchOnly<F> {
    pub(crate) call: FetchOnlyCall,
    face: PhantomData<F>,
}

impl<F: Face> Fetch<F, FetchedBundle> {
    /// Fetches only the tensors of these names. Where the version has to move, nothing moves but the bundle's table and
    /// these tensors, and the report counts only them. The bundle that is returned has these tensors and no others, in
    /// the order in which they were pushed.
    ///
    /// The call fails with [`BundleError::NoSuchTensor`] if the version has no tensor of one of the names. A version
    /// that is kept until it is fetched a number of times can only be fetched as a whole.
    pub fn only<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> FetchOnly<F> {
        let (session, key, options) = self.into_parts();
        let names = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        let call = FetchOnlyCall { session, key: Some(key), names, options, under_way: None };
        FetchOnly { call, face: PhantomData }
    }
}

impl<F: Face> FetchOnly<F> {
    fetch_options!(call.options);
}

impl IntoFuture for FetchOnly<Async> {
    type Output = Result<FetchedBundle, Error>;
    type IntoFuture = Running<FetchOnlyCall>;

    fn into_future(self) -> Running<FetchOnlyCall> {
        Running::new(self.call)
    }
}

impl FetchOnly<Blocking> {
    /// Makes the fetch.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<FetchedBundle, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A fetch of some tensors under way.
#[derive(Debug)]
pub struct FetchOnlyCall {
    pub(crate) session: Arc<Session>,
    key: Option<Result<Key, Error>>,
    names: Vec<String>,
    options: FetchOptions,
    under_way: Option<UnderWay>,
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
    /// The table, and the first ranges if the table is known.
    First,
    /// The other ranges of this version.
    Rest(Box<Rest>),
}

/// The answer to the first request, while the others are under way.
#[derive(Debug)]
struct Rest {
    first: Landed,
    version: Version,
    report: Report,
}

/// A body, and the ranges of the version's body that it consists of, one behind the other.
struct Landed {
    body: Body,
    ranges: Vec<BodyRange>,
}

impl std::fmt::Debug for Landed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landed").field("ranges", &self.ranges.len()).finish_non_exhaustive()
    }
}

impl Landed {
    /// Returns the offset in this body of a tensor of the version, if it is here.
    fn place(&self, entry: &BundleEntry) -> Option<u64> {
        let mut at = 0;
        for range in &self.ranges {
            if range.offset <= entry.offset && Some(entry.offset + entry.meta.len_bytes()) <= range.end() {
                return Some(at + entry.offset - range.offset);
            }
            at += range.len;
        }
        // A tensor of no bytes is everywhere.
        (entry.meta.len_bytes() == 0).then_some(0)
    }
}

/// What is asked for, by which table.
#[derive(Debug)]
struct Plan {
    table: Option<Arc<BundleTable>>,
    /// The ranges, in pieces that fit into one request. The first may be empty.
    pieces: Vec<Vec<BodyRange>>,
}

impl Plan {
    /// Plans by a table that is known from an earlier version. Without one, or if it lacks a name, only the table is
    /// asked for.
    fn new(known: Option<Arc<BundleTable>>, names: &[String]) -> Plan {
        match known.as_ref().and_then(|table| wanted(table, names).ok()) {
            None => Plan { table: None, pieces: vec![Vec::new()] },
            Some(entries) => {
                let ranges = ranges_of(&entries);
                let mut pieces: Vec<_> = ranges.chunks(MAX_EXCERPT_RANGES).map(<[_]>::to_vec).collect();
                if pieces.is_empty() {
                    pieces.push(Vec::new());
                }
                Plan { table: known, pieces }
            }
        }
    }
}

/// The entries of these names, in the table's order.
fn wanted<'a>(table: &'a BundleTable, names: &[String]) -> Result<Vec<&'a BundleEntry>, BundleError> {
    let find = |name: &String| table.find(name).ok_or_else(|| BundleError::NoSuchTensor { name: name.clone() });
    let indices = names.iter().map(find).collect::<Result<HashSet<_>, _>>()?;
    Ok(table.entries().iter().enumerate().filter(|(n, _)| indices.contains(n)).map(|(_, entry)| entry).collect())
}

/// The ranges of these tensors and of the zeros behind them. Neighbours are one range.
fn ranges_of(entries: &[&BundleEntry]) -> Vec<BodyRange> {
    let mut ranges: Vec<BodyRange> = Vec::new();
    for entry in entries {
        // The sum of all lengths was checked when the table was read.
        let (offset, len) = (entry.offset, padded(entry.meta.len_bytes()).unwrap_or(0));
        match ranges.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.end() == Some(offset) => last.len += len,
            _ => ranges.push(BodyRange { offset, len }),
        }
    }
    ranges
}

impl FetchOnlyCall {
    /// Asks for the table, and for the first ranges of the plan.
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
        (with_metadata, ranges): (bool, &[BodyRange]),
    ) -> Result<Command, Error> {
        let timeout = limit.saturating_duration_since(Instant::now());
        let excerpt = Excerpt::new(with_metadata, ranges.to_vec()).map_err(BundleError::from)?;
        let options = FetchOptions { select, timeout, watches: false, ..self.options };
        Ok(options.command(key.clone(), Some(Box::new(excerpt))))
    }

    fn start(&mut self, key: Key) -> Result<UnderWay, Error> {
        let started = Instant::now();
        let limit = deadline(started, self.options.timeout);
        let plan = Plan::new(self.session.bundle_tables().get(&key), &self.names);
        let calls = self.ask(&key, started, limit, &plan)?;
        Ok(UnderWay { key, started, limit, plan, stage: Stage::First, calls })
    }

    /// Starts again, because the version has another table than the one by which its ranges were chosen.
    fn start_again(&mut self, now: UnderWay, table: Option<Arc<BundleTable>>) -> Result<(), Error> {
        let UnderWay { key, started, limit, .. } = now;
        if Instant::now() >= limit {
            let waited = started.elapsed();
            let text = format!("after {waited:.1?} the bundle {key:?} still changed its tensors with each version");
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        let plan = Plan::new(table, &self.names);
        let calls = self.ask(&key, started, limit, &plan)?;
        self.under_way = Some(UnderWay { key, started, limit, plan, stage: Stage::First, calls });
        Ok(())
    }

    /// Handles the answer to the first request. Returns the bundle if all is here.
    fn first(&mut self, mut now: UnderWay) -> Result<Option<FetchedBundle>, Error> {
        let (body, tensor) = fetched(&self.session, now.calls.take_one())?;
        if !BundleTable::is_bundle(&body.metadata) {
            return Err(BundleError::NotABundle { meta: tensor.meta }.into());
        }
        let table = Arc::new(BundleTable::read(&body.metadata).map_err(BundleError::from)?);
        self.session.bundle_tables().remember(&now.key, table.clone());
        let entries = wanted(&table, &self.names)?;
        let FetchedTensor { version, mut report, .. } = tensor;
        let asked: u64 = now.plan.pieces[0].iter().map(|range| range.len).sum();
        let ranges = match () {
            () if body.len == table.body_len() => vec![BodyRange { offset: 0, len: body.len }],
            () if now.plan.table.as_ref() == Some(&table) && body.len == asked => now.plan.pieces[0].clone(),
            () if now.plan.table.as_ref() != Some(&table) => {
                self.start_again(now, Some(table))?;
                return Ok(None);
            }
            () => {
                return Err(BundleError::WrongLength { expected_bytes: asked, found_bytes: body.len }.into());
            }
        };
        let is_whole = body.len == table.body_len();
        if is_whole {
            // Read by reference, whatever was asked for.
            report.bytes = tensor.meta.body_offset() + ranges_of(&entries).iter().map(|range| range.len).sum::<u64>();
        }
        let first = Landed { body, ranges };
        let rest = if is_whole { &[][..] } else { &now.plan.pieces[1..] };
        if rest.is_empty() {
            return bundle(&entries, &[first], version, report).map(Some);
        }
        let mut calls = Calls::new(self.session.clone(), now.started, now.limit);
        for ranges in rest {
            calls.add(self.command(&now.key, Select::Exactly(version), now.limit, (false, ranges))?, None);
        }
        now.calls = calls;
        now.stage = Stage::Rest(Box::new(Rest { first, version, report }));
        self.under_way = Some(now);
        Ok(None)
    }

    /// Handles the answers to the other requests. Returns the bundle if all is here.
    fn rest(&mut self, mut now: UnderWay) -> Result<Option<FetchedBundle>, Error> {
        let Stage::Rest(answered) = std::mem::replace(&mut now.stage, Stage::First) else { return Err(Error::Ended) };
        let Rest { first, version, mut report } = *answered;
        let Some(table) = now.plan.table.clone() else { return Err(Error::Ended) };
        let mut landed = vec![first];
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
            let expected_bytes = asked.iter().map(|range| range.len).sum();
            let ranges = match () {
                () if body.len == table.body_len() => vec![BodyRange { offset: 0, len: body.len }],
                () if body.len == expected_bytes => asked,
                () => return Err(BundleError::WrongLength { expected_bytes, found_bytes: body.len }.into()),
            };
            report.bytes += tensor.report.bytes;
            report.copied += tensor.report.copied;
            landed.push(Landed { body, ranges });
        }
        bundle(&wanted(&table, &self.names)?, &landed, version, report).map(Some)
    }

    fn wants_exactly(&self) -> bool {
        matches!(self.options.select, Select::Exactly(_))
    }
}

impl Call for FetchOnlyCall {
    type Output = Result<FetchedBundle, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        if let Some(key) = self.key.take() {
            match key.and_then(|key| self.start(key)) {
                Ok(under_way) => self.under_way = Some(under_way),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
        loop {
            let Some(now) = &mut self.under_way else { return ControlFlow::Break(Err(Error::Ended)) };
            if let ControlFlow::Continue(at) = now.calls.step(waker) {
                return ControlFlow::Continue(at);
            }
            let Some(now) = self.under_way.take() else { return ControlFlow::Break(Err(Error::Ended)) };
            let done = match now.stage {
                Stage::First => self.first(now),
                Stage::Rest(_) => self.rest(now),
            };
            match done {
                Ok(None) => {}
                Ok(Some(bundle)) => return ControlFlow::Break(Ok(bundle)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
    }

    fn needs_timer(&self) -> bool {
        self.under_way.as_ref().is_some_and(|now| now.calls.needs_timer())
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

/// The bundle of these tensors.
fn bundle(
    entries: &[&BundleEntry],
    landed: &[Landed],
    version: Version,
    report: Report,
) -> Result<FetchedBundle, Error> {
    let tensors = entries.iter().map(|entry| {
        let len = entry.meta.len_bytes();
        let missing = || BundleError::OutOfBody { offset: entry.offset, len, body_len: landed[0].body.len };
        let (body, at) = landed.iter().find_map(|l| Some((&l.body, l.place(entry)?))).ok_or_else(missing)?;
        Ok(Tensor::of_bundle(body.bytes(at, len)?, entry.meta.clone(), version, report))
    });
    let tensors = tensors.collect::<Result<Vec<_>, BundleError>>()?;
    let table = BundleTable::new(entries.iter().map(|entry| (entry.name.clone(), entry.meta.clone())).collect());
    Ok(FetchedBundle::new(table.map_err(BundleError::from)?, tensors, version, report))
}
