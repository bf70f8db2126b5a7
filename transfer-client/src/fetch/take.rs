//! Fetches of rows of a tensor, by their indices.
//!
//! A request has room for a few hundred indices, which rise in it. So the indices are sorted, and longer lists take several
//! requests: the first one chooses the version, and the others are for exactly that. What lands is copied to its places in the
//! result, once. If the version is replaced meanwhile, all starts again with the newer one, until the deadline.

use super::call::{does_not_fit, look_up};
use super::options::{FetchOptions, fetch_options};
use super::slice::FetchedSlice;
use crate::error::{BatchError, Error, SessionEnd};
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{ANSWER_GRACE, Answered, Ended, Lease, OneCall, Session, deadline};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::memory::LocalSlice;
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{Excerpt, Key, Rows, Select, TensorMeta, Version};
use transfer_memory::view::{Bytes, OwnMemory};

/// The most requests that are on their way at the same time. The owner packs 8 parts at a time for a node, which has other
/// workers.
const MAX_IN_FLIGHT: usize = 4;

/// A fetch of rows that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`].
pub type Take<C> = Request<C, TakeCall>;

impl<C: AnyClient> Take<C> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, indices: Vec<i64>) -> Self {
        let (options, wanted) = (FetchOptions::new(), Wanted::new(&indices));
        Request::from_call(TakeCall { session, key, options, wanted, most: usize::MAX, stage: Stage::New })
    }

    fetch_options!(call.options);
}

/// The rows that are wanted.
#[derive(Debug)]
struct Wanted {
    /// Their indices, each once, in rising order.
    rows: Vec<i64>,
    /// The places in the result, in the order of their rows.
    places: Vec<usize>,
    /// Where the places of each row begin there, and their end.
    starts: Vec<usize>,
}

impl Wanted {
    fn new(indices: &[i64]) -> Wanted {
        let mut places: Vec<_> = (0..indices.len()).collect();
        places.sort_by_key(|place| indices[*place]);
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        for (at, place) in places.iter().enumerate() {
            if rows.last() != Some(&indices[*place]) {
                rows.push(indices[*place]);
                starts.push(at);
            }
        }
        starts.push(places.len());
        Wanted { rows, places, starts }
    }

    /// Whether the result is the rows in rising order, each once.
    fn is_as_sent(&self) -> bool {
        self.rows.len() == self.places.len() && self.places.is_sorted()
    }

    /// The description of the result.
    fn meta(&self, of: &TensorMeta) -> Result<TensorMeta, Error> {
        let inner = of.shape().dims().get(1..).unwrap_or(&[]);
        let dims: Vec<_> = std::iter::once(self.places.len() as u64).chain(inner.iter().copied()).collect();
        Ok(TensorMeta::of(of.dtype(), &dims)?)
    }

    /// Copies some of the rows to their places. `from` says where each row lies in `bytes`.
    fn copy(&self, some: Range<usize>, row_bytes: usize, bytes: &[u8], from: impl Fn(usize) -> usize, to: &mut [u8]) {
        for at in some {
            let row = &bytes[from(at) * row_bytes..][..row_bytes];
            for place in &self.places[self.starts[at]..self.starts[at + 1]] {
                to[place * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
    }
}

/// A fetch of rows under way.
#[derive(Debug)]
pub struct TakeCall {
    session: Arc<Session>,
    key: Result<Key, Error>,
    options: FetchOptions,
    wanted: Wanted,
    /// The most rows of a request: as many as fit the landing pool.
    most: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    /// The first request, which chooses the version.
    First(Times, Box<Asked>),
    Rest(Times, Box<Rest>),
}

/// The time of a call: when it began, its deadline, and how often it has begun again.
#[derive(Debug, Clone, Copy)]
struct Times {
    started: Instant,
    limit: Instant,
    replaced: u32,
}

/// A request.
#[derive(Debug)]
struct Asked {
    /// Its rows among those that are wanted.
    rows: Range<usize>,
    call: OneCall,
}

/// What has landed, and the requests for the other rows.
#[derive(Debug)]
struct Rest {
    version: Version,
    /// What the first answer was a part of.
    publication: u64,
    /// The description of the result.
    meta: TensorMeta,
    report: Report,
    memory: OwnMemory,
    /// The first row that was not asked for.
    next: usize,
    in_flight: Vec<Asked>,
}

/// What a request has brought.
struct Brought {
    bytes: Bytes,
    tensor: FetchedTensor,
}

impl Brought {
    fn new(lease: Arc<Lease>, tensor: FetchedTensor) -> Result<Brought, Error> {
        let meta = &tensor.meta;
        if meta.metadata_bytes() > 0 {
            return Err(BatchError::NotATensor { meta: meta.clone() }.into());
        }
        let whole = LocalSlice { len: meta.len_bytes(), ..tensor.slice };
        let bytes = lease.session().clone().view(whole, lease)?;
        Ok(Brought { bytes, tensor })
    }
}

impl TakeCall {
    fn ask(&self, key: &Key, times: Times, select: Select, from: usize) -> Result<Asked, Error> {
        let rest = &self.wanted.rows[from..];
        let rest = &rest[..rest.len().min(self.most)];
        let rows = rest[..Rows::fitting(rest)].to_vec();
        let range = from..from + rows.len();
        let invalid = |e: transfer_core::tensor::InvalidExcerpt| Failure::new(FailureCode::Invalid, e.to_string());
        let excerpt = Excerpt::rows(Rows::new(rows).map_err(invalid)?);
        let timeout = times.limit.saturating_duration_since(Instant::now());
        let options = FetchOptions { select, timeout, watches: false, ..self.options };
        let command = options.command(key.clone(), Some(Box::new(excerpt)));
        let call = OneCall::new(self.session.clone(), command, times.started, times.limit);
        Ok(Asked { rows: range, call })
    }

    /// Looks the version up, or asks for the first rows.
    fn begin(&self, key: &Key) -> Result<ControlFlow<FetchedSlice, Stage>, Error> {
        if let Some((lease, tensor)) = look_up(&self.session, key, &self.options) {
            return self.here(key, &Brought::new(lease, tensor)?).map(ControlFlow::Break);
        }
        let started = Instant::now();
        let times = Times { started, limit: deadline(started, self.options.timeout), replaced: 0 };
        self.ask_first(key, times).map(ControlFlow::Continue)
    }

    fn ask_first(&self, key: &Key, times: Times) -> Result<Stage, Error> {
        Ok(Stage::First(times, Box::new(self.ask(key, times, self.options.select, 0)?)))
    }

    /// Gathers the rows of a version that lies on this host.
    fn here(&self, key: &Key, Brought { bytes, tensor }: &Brought) -> Result<FetchedSlice, Error> {
        let FetchedTensor { version, ref meta, mut report, .. } = *tensor;
        self.check(key, meta)?;
        let result = self.wanted.meta(meta)?;
        let mut memory = own_memory(&result)?;
        let row_bytes = row_bytes(&result);
        let rows = &self.wanted.rows;
        self.wanted.copy(0..rows.len(), row_bytes, bytes, |at| rows[at] as usize, memory.as_mut_bytes());
        report.bytes = result.len_bytes();
        report.copied += result.len_bytes();
        Ok(FetchedSlice::landed(memory.freeze(), result, version, report))
    }

    /// Checks that a tensor has the rows.
    fn check(&self, key: &Key, meta: &TensorMeta) -> Result<(), Error> {
        // They rise, so the ends say it of all.
        let mut ends: Vec<_> = self.wanted.rows.first().into_iter().chain(self.wanted.rows.last()).copied().collect();
        ends.dedup();
        let checked = Rows::new(ends).map_err(|e| e.to_string()).and_then(|ends| {
            let found = ends.of(meta).map_err(|e| format!("key {:?} has {meta}: {e}", key.as_str()));
            found.map(drop)
        });
        Ok(checked.map_err(|text| Failure::new(FailureCode::Invalid, text))?)
    }

    /// Handles the answer to the first request.
    fn first(
        &mut self,
        key: &Key,
        times: Times,
        asked: Asked,
        ended: Ended,
    ) -> Result<ControlFlow<FetchedSlice, Stage>, Error> {
        let Asked { rows, .. } = asked;
        let (lease, tensor) = match Answered::fetched(ended, &self.session) {
            Err(Error::Failed(failure)) if does_not_fit(&failure) && rows.len() > 1 => {
                self.most = rows.len() / 2;
                return self.ask_first(key, times).map(ControlFlow::Continue);
            }
            answer => answer?,
        };
        let brought = Brought::new(lease, tensor)?;
        if !brought.tensor.is_part {
            return self.here(key, &brought).map(ControlFlow::Break);
        }
        let FetchedTensor { version, ref meta, publication, mut report, .. } = brought.tensor;
        let result = self.wanted.meta(meta)?;
        if rows.len() == self.wanted.rows.len() && self.wanted.is_as_sent() {
            let slice = brought.tensor.slice;
            if *meta != result {
                return Err(SessionEnd::TooShort { slice, len_bytes: result.len_bytes() }.into());
            }
            return Ok(ControlFlow::Break(FetchedSlice::landed(brought.bytes, result, version, report)));
        }
        (report.bytes, report.copied) = (0, 0);
        let row_bytes = row_bytes(&result).max(1) as u64;
        // With those that are on their way it takes as much of the pool as a bucket of a bundle.
        let room = self.options.bucket_bytes / MAX_IN_FLIGHT as u64 / row_bytes;
        self.most = self.most.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1);
        let memory = own_memory(&result)?;
        let next = rows.end;
        let mut rest = Rest { version, publication, meta: result, report, memory, next, in_flight: Vec::new() };
        self.fill(key, &mut rest, rows, brought)?;
        Ok(ControlFlow::Continue(Stage::Rest(times, Box::new(rest))))
    }

    /// Copies what a request has brought to its places.
    fn fill(&self, key: &Key, now: &mut Rest, rows: Range<usize>, brought: Brought) -> Result<(), Error> {
        let Brought { bytes, tensor: FetchedTensor { meta, report, is_part, slice, .. } } = brought;
        let (row_bytes, inner) = (row_bytes(&now.meta), now.meta.shape().dims().get(1..));
        let count = meta.shape().dims().first().copied().unwrap_or(0);
        if meta.dtype() != now.meta.dtype()
            || meta.shape().dims().get(1..) != inner
            || is_part && count != rows.len() as u64
        {
            return Err(SessionEnd::TooShort { slice, len_bytes: rows.len() as u64 * row_bytes as u64 }.into());
        }
        let (first, all) = (rows.start, &self.wanted.rows);
        now.report.bytes += rows.len() as u64 * row_bytes as u64;
        now.report.copied += report.copied;
        let to = now.memory.as_mut_bytes();
        if is_part {
            self.wanted.copy(rows, row_bytes, &bytes, |at| at - first, to);
        } else {
            self.check(key, &meta)?;
            self.wanted.copy(rows, row_bytes, &bytes, |at| all[at] as usize, to);
        }
        Ok(())
    }

    /// Goes on with the other requests.
    fn rest(&mut self, key: &Key, times: Times, mut now: Box<Rest>, waker: &Waker) -> Result<Step, Error> {
        loop {
            while now.in_flight.len() < MAX_IN_FLIGHT && now.next < self.wanted.rows.len() {
                let asked = self.ask(key, times, Select::Exactly(now.version), now.next)?;
                now.next = asked.rows.end;
                now.in_flight.push(asked);
            }
            if now.in_flight.is_empty() {
                return Ok(Step::Done(self.finish(times, *now)));
            }
            let mut until = times.limit + ANSWER_GRACE;
            let mut ended = None;
            for (at, asked) in now.in_flight.iter_mut().enumerate() {
                match asked.call.step(waker) {
                    ControlFlow::Continue(at) => until = until.min(at),
                    ControlFlow::Break(end) => {
                        ended = Some((at, end));
                        break;
                    }
                }
            }
            let Some((at, end)) = ended else { return Ok(Step::Waits(Stage::Rest(times, now), until)) };
            let Asked { rows, .. } = now.in_flight.swap_remove(at);
            match Answered::fetched(end, &self.session) {
                // Another push has this number of version, too.
                Ok((_, tensor)) if tensor.is_part && tensor.publication != now.publication => {
                    drop(now);
                    return self.start_again(key, times).map(Step::Goes);
                }
                Ok((lease, tensor)) => self.fill(key, &mut now, rows, Brought::new(lease, tensor)?)?,
                Err(Error::Failed(failure)) if failure.code == FailureCode::VersionGone && !self.wants_exactly() => {
                    drop(now);
                    return self.start_again(key, times).map(Step::Goes);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn finish(&self, times: Times, now: Rest) -> FetchedSlice {
        let Rest { version, meta, mut report, memory, .. } = now;
        report.in_flight = times.started.elapsed().saturating_sub(report.queued + report.waited);
        // Rows that are wanted several times have moved once.
        report.copied += meta.len_bytes();
        FetchedSlice::landed(memory.freeze(), meta, version, report)
    }

    fn wants_exactly(&self) -> bool {
        matches!(self.options.select, Select::Exactly(_))
    }

    fn start_again(&self, key: &Key, mut times: Times) -> Result<Stage, Error> {
        times.replaced += 1;
        if Instant::now() >= times.limit {
            let (waited, replaced) = (times.started.elapsed(), times.replaced);
            let text = format!(
                "after {waited:.1?}: {} rows of key {key:?} take several requests, and its version was replaced {replaced} times \
                 meanwhile; publish it less often, or with keep, or take fewer rows",
                self.wanted.places.len()
            );
            return Err(Failure::new(FailureCode::Deadline, text).into());
        }
        self.ask_first(key, times)
    }
}

/// What a step of the other requests leads to.
enum Step {
    Goes(Stage),
    Waits(Stage, Instant),
    Done(FetchedSlice),
}

fn own_memory(meta: &TensorMeta) -> Result<OwnMemory, Error> {
    let wanted_bytes = meta.len_bytes();
    OwnMemory::new(wanted_bytes).map_err(|e| Error::NoMemory { wanted_bytes, reason: e.to_string() })
}

fn row_bytes(meta: &TensorMeta) -> usize {
    let rows = meta.shape().dims().first().copied().unwrap_or(0);
    meta.len_bytes().checked_div(rows).unwrap_or(0) as usize
}

impl Call for TakeCall {
    type Output = Result<FetchedSlice, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let key = match &self.key {
            Ok(key) => key.clone(),
            Err(e) => return ControlFlow::Break(Err(e.clone())),
        };
        loop {
            let next = match std::mem::replace(&mut self.stage, Stage::New) {
                Stage::New => self.begin(&key),
                Stage::First(times, mut asked) => match asked.call.step(waker) {
                    ControlFlow::Continue(at) => {
                        self.stage = Stage::First(times, asked);
                        return ControlFlow::Continue(at);
                    }
                    ControlFlow::Break(ended) => self.first(&key, times, *asked, ended),
                },
                Stage::Rest(times, now) => match self.rest(&key, times, now, waker) {
                    Ok(Step::Waits(stage, at)) => {
                        self.stage = stage;
                        return ControlFlow::Continue(at);
                    }
                    Ok(Step::Goes(stage)) => Ok(ControlFlow::Continue(stage)),
                    Ok(Step::Done(taken)) => Ok(ControlFlow::Break(taken)),
                    Err(e) => Err(e),
                },
            };
            match next {
                Ok(ControlFlow::Continue(stage)) => self.stage = stage,
                Ok(ControlFlow::Break(taken)) => return ControlFlow::Break(Ok(taken)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New => false,
            Stage::First(_, asked) => asked.call.needs_timer(),
            Stage::Rest(_, now) => now.in_flight.iter().any(|asked| asked.call.needs_timer()),
        }
    }
}

impl RequestCall for TakeCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}
