//! Some tensors of a bundle, or slices of them: where a version has to move, only they do.
//!
//! The boxes of the tensors follow from the bundle's table, which its reader does not have yet. So the first fetch of a
//! key asks for the table alone. The session remembers it: later versions usually have the same one, and a fetch asks for
//! the table and the boxes at once. The table that comes is compared with the one by which the boxes were chosen. If
//! they differ, the fetch starts again with the newer one. What is read by reference is the whole version.

use super::buckets::{TensorsOfBundle, large_parts};
use super::fetched::FetchedBundle;
use super::parts::{Landed, Part, Parts, Wanted, boxes_of, bundle, fetched, landed, packed_bytes, parts, table_of};
use crate::error::{BundleError, Error};
use crate::fetch::{BucketCall, Fetch, FetchOptions, LargeVersion, RangesOfBody, Since, does_not_fit, fetch_options};
use crate::gathered::Body;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{Calls, Ended, Lease, OneCall, Session, deadline};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Command, Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{BodyBox, Excerpt, Key, MAX_EXCERPT_BYTES, Select, Version};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};

/// A fetch of some tensors of a bundle, or of slices of them. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. See [`Fetch::only`] and [`Fetch::slices`].
pub type FetchOnly<C, T = FetchedBundle> = Request<C, FetchOnlyCall<T>>;

/// Makes the result of the call.
type Finish<T> = fn(Parts) -> Result<T, Error>;

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Fetches only the tensors of these names. Where the version has to move, nothing moves but the bundle's table and
    /// these tensors, and the report counts only them. The bundle that is returned has these tensors and no others, in
    /// the order in which they were pushed.
    ///
    /// The call fails with [`BundleError::NoSuchTensor`] if the version has no tensor of one of the names. A version
    /// that is kept until it is fetched a number of times can only be fetched as a whole.
    pub fn only<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> FetchOnly<C> {
        let wanted = |name: N| Wanted { name: name.as_ref().to_owned(), slice: None };
        FetchOnly::new(self, names.into_iter().map(wanted).collect(), bundle)
    }
}

impl<C: AnyClient, T> FetchOnly<C, T> {
    pub(crate) fn new(fetch: Fetch<C, FetchedBundle>, wanted: Vec<Wanted>, finish: Finish<T>) -> Self {
        let (session, key, options, seen) = fetch.into_parts();
        Request::from_call(FetchOnlyCall { session, key, wanted, options, seen, finish, stage: Stage::New })
    }

    fetch_options!(call.options);
}

/// A fetch of some tensors under way.
#[derive(Debug)]
pub struct FetchOnlyCall<T = FetchedBundle> {
    session: Arc<Session>,
    key: Result<Key, Error>,
    wanted: Vec<Wanted>,
    options: FetchOptions,
    /// What its subscriber had returned when it was made.
    seen: Option<Since>,
    finish: Finish<T>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    First(Box<First>),
    Rest(Box<Rest>),
    /// The tensors do not fit the landing pool.
    InBuckets(Box<BucketCall<RangesOfBody<TensorsOfBundle>>>),
}

/// The time of a call: when it began, and its deadline.
#[derive(Debug, Clone, Copy)]
struct Times {
    started: Instant,
    limit: Instant,
}

/// The first request: for the table, and for the first boxes if the table is known.
#[derive(Debug)]
struct First {
    times: Times,
    plan: Plan,
    call: OneCall,
}

/// The answer to the first request, and the requests for the other boxes of this version.
#[derive(Debug)]
struct Rest {
    times: Times,
    table: Arc<BundleTable>,
    first: Landed,
    version: Version,
    report: Report,
    pieces: Vec<Vec<BodyBox>>,
    calls: Calls,
}

/// What a step leads to.
enum Next<T> {
    Made(T),
    Asked(Stage),
}

/// What is asked for, by which table.
#[derive(Debug, Default)]
struct Plan {
    table: Option<Arc<BundleTable>>,
    /// The boxes of the first request, which may be none.
    first: Vec<BodyBox>,
    /// Those of the other requests.
    rest: Vec<Vec<BodyBox>>,
}

impl Plan {
    /// Plans by a table that is known from an earlier version. Without one, or if what is wanted does not fit it, only
    /// the table is asked for.
    fn new(key: &Key, known: Option<Arc<BundleTable>>, wanted: &[Wanted]) -> Plan {
        let boxes = known.as_ref().and_then(|table| boxes_of(&parts(key, table, wanted).ok()?).ok());
        let mut plan = Plan { table: known.filter(|_| boxes.is_some()), first: Vec::new(), rest: Vec::new() };
        let mut bytes = 0;
        for b in boxes.into_iter().flatten() {
            if bytes + b.wire_bytes() > MAX_EXCERPT_BYTES {
                plan.rest.push(Vec::new());
                bytes = 0;
            }
            bytes += b.wire_bytes();
            plan.rest.last_mut().unwrap_or(&mut plan.first).push(b);
        }
        plan
    }
}

impl<T> FetchOnlyCall<T> {
    pub(crate) fn key(&self) -> Result<Key, Error> {
        self.key.clone()
    }

    pub(crate) fn options(&self) -> FetchOptions {
        self.options
    }

    pub(crate) fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }

    pub(crate) fn saw(&self, version: Version) {
        if let Some(seen) = &self.seen {
            seen.saw(version);
        }
    }

    /// Asks for the table, and for the first boxes of a plan by this table.
    fn ask(&self, key: &Key, times: Times, known: Option<Arc<BundleTable>>) -> Result<Stage, Error> {
        let (plan, command) = match self.options.is_whole {
            true => {
                let timeout = times.limit.saturating_duration_since(Instant::now());
                let options = FetchOptions { timeout, watches: false, ..self.options };
                (Plan::default(), options.command(key.clone(), None))
            }
            false => {
                let plan = Plan::new(key, known, &self.wanted);
                let command = self.command(key, self.options.select, times.limit, (true, &plan.first))?;
                (plan, command)
            }
        };
        let call = OneCall::new(self.session.clone(), command, times.started, times.limit);
        Ok(Stage::First(Box::new(First { times, plan, call })))
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

    /// Begins the call. Its result is there if the version is found in shared memory.
    fn start(&self, key: &Key) -> Result<Next<T>, Error> {
        let FetchOptions { select, require, trace, .. } = self.options;
        // The trace of a fetch must contain its report, and only the sidecar writes that.
        let found = if trace.is_none() { self.session.look_up(key, select, require) } else { None };
        if let Some((hazard, tensor)) = found {
            let body = Body::new::<BundleError>(Lease::looked_up(&self.session, hazard), &tensor)?;
            let table = Arc::new(table_of(&body, &tensor)?);
            return self.whole(key, &table, body, &tensor).map(Next::Made);
        }
        let started = Instant::now();
        let times = Times { started, limit: deadline(started, self.options.timeout) };
        let known = self.session.bundle_tables().get(key);
        self.ask(key, times, known).map(Next::Asked)
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
        self.saw(version);
        Ok(made)
    }

    /// Starts again, because the version has another table than the one by which its boxes were chosen.
    fn start_again(&self, key: &Key, times: Times, table: Arc<BundleTable>) -> Result<Next<T>, Error> {
        if Instant::now() >= times.limit {
            let waited = times.started.elapsed();
            let text = format!("after {waited:.1?} the bundle {key:?} still changed its tensors with each version");
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        self.ask(key, times, Some(table)).map(Next::Asked)
    }

    /// Handles the answer to the first request.
    fn first(&self, key: &Key, times: Times, plan: Plan, ended: Ended) -> Result<Next<T>, Error> {
        let (body, tensor) = fetched(&self.session, ended)?;
        let table = Arc::new(table_of(&body, &tensor)?);
        self.session.bundle_tables().remember(key, table.clone());
        if !tensor.is_part {
            return self.whole(key, &table, body, &tensor).map(Next::Made);
        }
        let parts = parts(key, &table, &self.wanted)?;
        if plan.table.as_ref() != Some(&table) {
            return self.start_again(key, times, table);
        }
        let FetchedTensor { version, report, .. } = tensor;
        let first = landed(body, plan.first)?;
        if plan.rest.is_empty() {
            return self.finish(&parts, &[first], version, report).map(Next::Made);
        }
        let mut calls = Calls::new(self.session.clone(), times.started, times.limit);
        for boxes in &plan.rest {
            calls.add(self.command(key, Select::Exactly(version), times.limit, (false, boxes))?, None);
        }
        drop(parts);
        let rest = Rest { times, table, first, version, report, pieces: plan.rest, calls };
        Ok(Next::Asked(Stage::Rest(Box::new(rest))))
    }

    /// Handles the answers to the other requests.
    fn rest(&self, key: &Key, rest: Rest) -> Result<Next<T>, Error> {
        let Rest { times, table, first, version, mut report, pieces, mut calls } = rest;
        let mut all = vec![first];
        for ((_, ended), asked) in calls.take().zip(pieces) {
            let (body, tensor) = match fetched(&self.session, ended) {
                Ok(fetched) => fetched,
                // A newer version has replaced it.
                Err(Error::Failed(failure)) if failure.code == FailureCode::VersionGone && !self.wants_exactly() => {
                    return self.start_again(key, times, table);
                }
                Err(e) => return Err(e),
            };
            report.bytes += match tensor.is_part {
                true => tensor.report.bytes,
                false => packed_bytes(&asked),
            };
            report.copied += tensor.report.copied;
            report.relayed += tensor.report.relayed;
            all.push(match tensor.is_part {
                true => landed(body, asked)?,
                false => Landed { body, boxes: None },
            });
        }
        self.finish(&parts(key, &table, &self.wanted)?, &all, version, report).map(Next::Made)
    }

    /// Fetches the tensors in buckets, if they do not fit the landing pool.
    fn or_in_buckets(&mut self, key: &Key, times: Times, next: Result<Next<T>, Error>) -> Result<Next<T>, Error> {
        match next {
            Err(Error::Failed(failure))
                if does_not_fit(&failure) && self.wants_whole_tensors() && !self.options.is_whole =>
            {
                let timeout = times.limit.saturating_duration_since(Instant::now());
                let options = FetchOptions { timeout, ..self.options };
                let of = LargeVersion { session: self.session.clone(), key: key.clone(), options, why: failure };
                let call = large_parts(of, std::mem::take(&mut self.wanted));
                Ok(Next::Asked(Stage::InBuckets(Box::new(call))))
            }
            next => next,
        }
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
        let key = match &self.key {
            Ok(key) => key.clone(),
            Err(e) => return ControlFlow::Break(Err(e.clone())),
        };
        loop {
            let next = match std::mem::replace(&mut self.stage, Stage::New) {
                Stage::New => self.start(&key),
                Stage::First(mut first) => match first.call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::First(first);
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => {
                        let First { times, plan, .. } = *first;
                        let next = self.first(&key, times, plan, ended);
                        self.or_in_buckets(&key, times, next)
                    }
                },
                Stage::Rest(mut rest) => {
                    if let ControlFlow::Continue(at) = rest.calls.step(waker) {
                        self.stage = Stage::Rest(rest);
                        return ControlFlow::Continue(at);
                    }
                    let times = rest.times;
                    let next = self.rest(&key, *rest);
                    self.or_in_buckets(&key, times, next)
                }
                Stage::InBuckets(mut call) => match call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::InBuckets(call);
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(parts) => parts.and_then(|parts| self.made(parts)).map(Next::Made),
                },
            };
            match next {
                Ok(Next::Asked(stage)) => self.stage = stage,
                Ok(Next::Made(made)) => return ControlFlow::Break(Ok(made)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New => false,
            Stage::First(first) => first.call.needs_timer(),
            Stage::Rest(rest) => rest.calls.needs_timer(),
            Stage::InBuckets(call) => call.needs_timer(),
        }
    }
}

impl<T> RequestCall for FetchOnlyCall<T> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}
