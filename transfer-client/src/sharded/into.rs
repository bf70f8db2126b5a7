//! Fetches of a sharded state into the caller's memory: each piece lands where it belongs, by the same requests as those of a bundle.

use super::fetch::{FetchSharded, FetchShardedCall};
use super::plans::Plan;
use super::requests::{Ask, Output, Part};
use crate::bundle::{BundleMut, FetchedSlices, PartsRequest, Wanted, landed, parts, table_of};
use crate::digest::Proving;
use crate::error::{BundleError, DigestError, Error, TornDestination};
use crate::fetch::{FetchIntoError, FetchOptions, FetchedInto, is_by_reference};
use crate::gathered::Body;
use crate::landing::{
    Asking, Landing, LandingCall, LandingPlace, MIN_RUN_BYTES, MemoryView, Outcome, Targets, ViewOf, Viewed,
};
use crate::request::flow::{Flow, Io};
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{ANSWER_GRACE, Session, cancelled_unsent};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode, MAX_LANDING_RANGES, Otherwise, Report};
use transfer_core::tensor::{BodyBox, Key, MAX_EXCERPT_BYTES, MAX_RANK, Slice};
use transfer_core::wire::bundle::BundleTable;

/// A fetch of a sharded state into memory that is about to be made. Set its options before [`FetchSharded::into`], then `.await` it, or
/// `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`], with the tensors if they are the caller's again: as they were, or half new with
/// [`Error::DestinationTorn`](crate::Error::DestinationTorn).
pub type FetchShardedInto<C> = Request<C, FetchShardedIntoCall>;

impl<C: AnyClient> FetchSharded<C> {
    /// Fetches into tensors of the arena, by the names of the global tensors: all of each, or the [slice](FetchSharded::slices) that is
    /// asked for, which the tensor has the element type and the shape of.
    ///
    /// Pieces of other nodes land where they belong, without a further copy, where they have 64 KiB and more in one piece there. The
    /// others are copied, which the report counts, and so is what lies on this host. [`FetchedInto::landings`] tells how each tensor came.
    ///
    /// The call takes the tensors, and returns them as [`Fetch::into`](crate::Fetch::into) of one tensor does. All ranks' pieces are
    /// of one version. If that cannot be fetched to its end, the tensors are half new, and the error says which.
    pub fn into(self, tensors: BundleMut) -> FetchShardedInto<C> {
        let (session, timeout) = (self.call.session().clone(), self.call.timeout());
        let stage = Stage::New { fetch: Box::new(self.call), tensors, views: Vec::new() };
        Request::from_call(FetchShardedIntoCall { session, timeout, is_cancelled: false, stage })
    }
}

impl<C: AnyClient> FetchShardedInto<C> {
    /// Fetches the tensor of this name into a slice of `tensor`; see [`FetchBundleInto::at`](crate::FetchBundleInto::at).
    pub fn at(self, name: &str, tensor: &str, slice: Slice) -> Self {
        self.viewed(name, tensor, Viewed::Slice(slice))
    }

    /// Fetches the tensor of this name into a part of the memory of `tensor`, as [`at`](Self::at) does.
    pub fn at_view(self, name: &str, tensor: &str, view: MemoryView) -> Self {
        self.viewed(name, tensor, Viewed::Memory(view))
    }

    fn viewed(mut self, name: &str, tensor: &str, view: Viewed) -> Self {
        if let Stage::New { views, .. } = &mut self.call.stage {
            views.push(ViewOf { name: name.to_owned(), tensor: tensor.to_owned(), view });
        }
        self
    }
}

/// A fetch of a sharded state into memory under way.
pub struct FetchShardedIntoCall {
    session: Arc<Session>,
    timeout: Duration,
    is_cancelled: bool,
    stage: Stage,
}

enum Stage {
    New { fetch: Box<FetchShardedCall>, tensors: BundleMut, views: Vec<ViewOf> },
    Flows { flow: Flow<Result<(u64, Report), Error>>, into: Arc<IntoMemory>, key: Key },
    Ended,
}

type Fetched = Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>;

impl fmt::Debug for FetchShardedIntoCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchShardedIntoCall").finish_non_exhaustive()
    }
}

impl FetchShardedIntoCall {
    fn begin(
        &self,
        fetch: FetchShardedCall,
        tensors: BundleMut,
        views: &[ViewOf],
    ) -> Result<Stage, FetchIntoError<BundleMut>> {
        let (of, first, wanted, options, client) = match fetch.into_parts() {
            Ok(parts) => parts,
            Err(e) => return Err(FetchIntoError::new(e, Some(tensors))),
        };
        if options.proving != Proving::Not {
            let what = "what lands in memory of the caller is not compared with digests: fetch it without into, and copy what comes";
            let error = DigestError::NotProvable { key: of.key().as_str().to_owned(), what };
            return Err(FetchIntoError::new(error.into(), Some(tensors)));
        }
        let targets = match Targets::new(&self.session, tensors, views) {
            Ok(targets) => targets,
            Err((e, tensors)) => return Err(FetchIntoError::new(e, Some(tensors))),
        };
        let wanted = match of_places(wanted, targets.places()) {
            Ok(wanted) => wanted,
            Err(e) => return Err(FetchIntoError::new(e, targets.close())),
        };
        let (into, key) = (Arc::new(IntoMemory::new(targets)), of.key().clone());
        let lands = into.clone();
        let mut flow = Flow::new(&client, async move |io: Io| {
            of.fetch(io, first, Some(wanted), options, Some(&*lands), |assembly, _, (io, ..)| Ok(assembly.report(io)))
                .await
        });
        flow.set_timeout(self.timeout);
        Ok(Stage::Flows { flow, into, key })
    }
}

/// What is wanted, if each of it has a place, and each place is for something that is wanted.
fn of_places(wanted: Option<Vec<Wanted>>, places: &[LandingPlace]) -> Result<Vec<Wanted>, Error> {
    let Some(wanted) = wanted else {
        return Ok(places.iter().map(|place| Wanted { name: place.name.clone(), slice: None }).collect());
    };
    let mut named = HashSet::new();
    let placed: HashSet<&str> = places.iter().map(|place| place.name.as_str()).collect();
    for Wanted { name, .. } in &wanted {
        if !named.insert(name.as_str()) {
            return Err(BundleError::NamedTwice { name: name.clone() }.into());
        }
    }
    match placed.symmetric_difference(&named).next() {
        None => Ok(wanted),
        Some(name) => {
            let text =
                format!("what is asked for and what is fetched into need the same names, and only one has {name:?}");
            Err(Failure::new(FailureCode::Invalid, text).into())
        }
    }
}

fn finish(into: Arc<IntoMemory>, key: &Key, result: Result<(u64, Report), Error>) -> Fetched {
    // The flow has ended, and with it all other owners.
    let Ok(into) = Arc::try_unwrap(into) else { return Err(FetchIntoError::new(cancelled_unsent(), None)) };
    let IntoMemory { targets, written, landings, is_lost, .. } = into;
    match result {
        Ok((version, report)) => {
            let names = targets.places().iter().map(|place| place.name.clone());
            let landing = |landing: Option<Landing>| landing.unwrap_or(Landing::Short);
            let landings = names.zip(landings.into_inner().into_iter().map(landing)).collect();
            match targets.close() {
                Some(tensors) => Ok(FetchedInto::of_bundle((tensors, Vec::new()), version, report, landings)),
                None => Err(FetchIntoError::new(cancelled_unsent(), None)),
            }
        }
        Err(error) => {
            let written = written.into_inner();
            let error = match written.is_empty() {
                true => error,
                false => {
                    let (key, tensors) = (key.as_str().to_owned(), targets.describe(written));
                    Error::DestinationTorn(Box::new(TornDestination { key, tensors, error }))
                }
            };
            let tensors = if is_lost.into_inner() { None } else { targets.close() };
            Err(FetchIntoError::new(error, tensors))
        }
    }
}

impl Call for FetchShardedIntoCall {
    type Output = Fetched;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Fetched, Instant> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::New { tensors, .. } if self.is_cancelled => {
                    return ControlFlow::Break(Err(FetchIntoError::new(cancelled_unsent(), Some(tensors))));
                }
                Stage::New { fetch, tensors, views } => match self.begin(*fetch, tensors, &views) {
                    Ok(stage) => self.stage = stage,
                    Err(e) => return ControlFlow::Break(Err(e)),
                },
                Stage::Flows { mut flow, into, key } => {
                    if self.is_cancelled {
                        into.gives_up.store(true, Ordering::Relaxed);
                    }
                    let stepped = flow.step(waker);
                    let is_open = into.open.load(Ordering::Relaxed) > 0;
                    let result = match stepped {
                        ControlFlow::Break(result) => result,
                        // Nothing lands any more, so the memory is closed.
                        ControlFlow::Continue(_) if self.is_cancelled && !is_open => Err(given_up()),
                        ControlFlow::Continue(at) => {
                            self.stage = Stage::Flows { flow, into, key };
                            return ControlFlow::Continue(at);
                        }
                    };
                    drop(flow);
                    return ControlFlow::Break(finish(into, &key, result));
                }
                Stage::Ended => return ControlFlow::Continue(Instant::now() + ANSWER_GRACE),
            }
        }
    }

    fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

fn given_up() -> Error {
    Failure::new(FailureCode::Cancelled, "the call was given up").into()
}

impl RequestCall for FetchShardedIntoCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}

/// The caller's memory, and what has become of it.
pub(super) struct IntoMemory {
    targets: Targets,
    /// The places in which something may have been written.
    written: Mutex<BTreeSet<usize>>,
    /// How each place was filled, as far as it was. The worst of its pieces.
    landings: Mutex<Vec<Option<Landing>>>,
    /// Whether what is under way is to end: one request has failed, or the caller has given up.
    stops: AtomicBool,
    gives_up: AtomicBool,
    /// Whether a request has ended without an answer: it may still write into the memory.
    is_lost: AtomicBool,
    /// The number of requests that land in the memory.
    open: AtomicUsize,
}

/// A request to a rank.
pub(super) struct Question<'a> {
    pub(super) io: &'a Io,
    pub(super) key: &'a Key,
    pub(super) options: &'a FetchOptions,
    pub(super) table: &'a Arc<BundleTable>,
    pub(super) plan: &'a Plan,
    pub(super) ask: &'a Ask,
    pub(super) wanted: Vec<Wanted>,
}

impl IntoMemory {
    fn new(targets: Targets) -> IntoMemory {
        let landings = Mutex::new(vec![None; targets.places().len()]);
        IntoMemory {
            targets,
            written: Mutex::default(),
            landings,
            stops: AtomicBool::new(false),
            gives_up: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        }
    }

    /// Begins an attempt.
    pub(super) fn begin(&self) {
        self.stops.store(false, Ordering::Relaxed);
        self.landings.lock().fill(None);
    }

    /// Lets what is under way end.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed) || self.gives_up.load(Ordering::Relaxed)
    }

    /// Checks that each tensor of the result fits its place.
    pub(super) fn check(&self, key: &Key, outputs: &[Output]) -> Result<(), Error> {
        for Output { name, meta, .. } in outputs {
            let place = self.targets.find(name.as_str()).map(|place| self.targets.places()[place].view.meta());
            if let Some(destination) = place
                && destination != meta
            {
                let text = format!("tensor {name:?} of state {key:?} is {meta}, and the destination is {destination}");
                return Err(Failure::new(FailureCode::Invalid, text).into());
            }
        }
        Ok(())
    }

    /// The place of a piece, and its bytes there. `None` if it has none.
    fn place_of(&self, plan: &Plan, part: &Part) -> Result<Option<(usize, BodyBox)>, Error> {
        let output = &plan.outputs[part.asked.output];
        let Some(place) = self.targets.find(output.name.as_str()) else { return Ok(None) };
        let per_unit = output.meta.dtype().elements_per_unit();
        let (mut counts, mut own) = (output.target.counts(), part.asked.part.clone());
        if let (Some(count), Some(extent)) = (counts.last_mut(), own.0.last_mut()) {
            (*count, extent.start, extent.len) = (*count / per_unit, extent.start / per_unit, extent.len / per_unit);
        }
        // Dimensions that the slice drops have one index, as others may have.
        let mut extents = own.0.iter().zip(counts).filter(|(_, count)| *count != 1).map(|(extent, _)| extent);
        let view = &self.targets.places()[place].view;
        let (starts, lens): (Vec<_>, Vec<_>) = view
            .counts()
            .into_iter()
            .map(|count| match count {
                1 => (0, 1),
                _ => extents.next().map_or((0, 0), |extent| (extent.start, extent.len)),
            })
            .unzip();
        Ok(Some((place, view.part(&starts, &lens)?)))
    }

    /// Splits requests, so that the pieces of each can land in place by one request of the fabric.
    pub(super) fn split(&self, plan: &Plan, asks: &[Ask]) -> Result<Vec<Ask>, Error> {
        let mut split = Vec::new();
        for ask in asks {
            let (mut now, mut ranges, mut boxes) = (ask.empty(), 1, 0);
            for part in &ask.parts {
                let to = self.place_of(plan, part)?;
                let runs = to.filter(|(_, to)| to.run() >= MIN_RUN_BYTES).map_or(1, |(_, to)| to.runs());
                let runs = usize::try_from(runs).unwrap_or(usize::MAX);
                let bytes = BodyBox::wire_bytes_with(part.asked.part.0.len().clamp(1, MAX_RANK).saturating_sub(1));
                let is_full = ranges + runs > MAX_LANDING_RANGES || boxes + bytes > MAX_EXCERPT_BYTES;
                if is_full && !now.parts.is_empty() {
                    split.push(std::mem::replace(&mut now, ask.empty()));
                    (ranges, boxes) = (1, 0);
                }
                (ranges, boxes) = (ranges.saturating_add(runs), boxes + bytes);
                now.bytes += plan.outputs[part.asked.output].bytes_of(&part.asked.part);
                now.parts.push(part.clone());
            }
            split.push(now);
        }
        Ok(split)
    }

    /// Asks a rank for some pieces, which land in place as far as they can, and are copied otherwise. `silent` ends if the rank is
    /// not there.
    pub(super) async fn ask(&self, of: Question<'_>, silent: impl Future<Output = Error>) -> Result<Report, Error> {
        let Question { io, key, options, table, plan, ask, ref wanted } = of;
        let found = parts(key, table, wanted)?;
        let mut placed = Vec::with_capacity(found.len());
        for part in &found {
            let name = &part.entry.name;
            let shards = &plan.layouts[ask.rank as usize].layout.shards;
            let own = ask.parts.iter().find(|own| shards[own.shard].entry == *name);
            let place = own.map(|own| self.place_of(plan, own)).transpose()?.flatten();
            if let (Some(own), Some(_)) = (own, &place) {
                let (found, expected) =
                    (part.meta().len_bytes(), plan.outputs[own.asked.output].bytes_of(&own.asked.part));
                if found != expected {
                    return Err(BundleError::WrongLength { expected_bytes: expected, found_bytes: found }.into());
                }
            }
            placed.push((part, place));
        }
        let places: Vec<_> = placed.iter().map(|(_, place)| place.clone()).collect();
        let session = io.session();
        let request = PartsRequest::of_parts(table, placed)?;
        let (boxes, call) = match request {
            None => (Vec::new(), Err(Some(Landing::TooManyRuns))),
            Some(request) => {
                let boxes = request.boxes();
                let PartsRequest { excerpt, meta, pieces } = request;
                let otherwise = Otherwise::LandBeside;
                let is_returned = session.home().is_returned();
                let call = match is_returned {
                    true => Err(Some(Landing::ReturnedArena)),
                    false => LandingCall::begin(
                        &session,
                        &self.targets,
                        Asking { key, options, excerpt, meta, pieces, otherwise },
                    ),
                };
                (boxes, call)
            }
        };
        let call = match call {
            Ok(call) => call,
            Err(why) => {
                let slices = self.fetch_beside(&of, silent).await?;
                return Ok(self.copy(&found, &places, &slices, why));
            }
        };
        let opened: Vec<_> = call.opened().collect();
        match self.land(io, call, silent).await {
            Outcome::Landed { beside, report, .. } => {
                self.written.lock().extend(opened);
                let now = beside.metadata().and_then(|bytes| BundleTable::read(&bytes).ok());
                if now.is_none_or(|now| now != **table) {
                    return Err(other_layout(key));
                }
                let copied = beside.copy(&self.targets)?;
                // Those of which nothing has landed in place are written now, too.
                self.written.lock().extend(beside.landings().map(|(place, _)| place));
                beside.landings().for_each(|(place, landing)| self.note(place, landing));
                Ok(Report { copied: report.copied + copied, ..report })
            }
            Outcome::Elsewhere { lease, found: tensor } => {
                let (version, report, is_part) = (tensor.version, tensor.report, tensor.is_part);
                let body = Body::new::<BundleError>(lease, &tensor)?;
                if table_of(&body, &tensor)? != **table {
                    return Err(other_layout(key));
                }
                let slices = match is_part {
                    true => FetchedSlices::of_landed(&found, &landed(body, boxes)?, version, report)?,
                    false => FetchedSlices::of_whole(key, wanted, body, &tensor)?,
                };
                Ok(self.copy(&found, &places, &slices, Some(Landing::NotOpened)))
            }
            Outcome::Failed { error, is_torn } => {
                if is_torn {
                    self.written.lock().extend(opened);
                }
                Err(error)
            }
            Outcome::Lost { error } => {
                self.is_lost.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Waits until a request has ended, and nobody can write into the memory for it any more.
    async fn land(&self, io: &Io, mut call: LandingCall, silent: impl Future<Output = Error>) -> Outcome {
        let _open = Open::new(&self.open);
        let (mut silent, mut is_silent, mut is_cancelled) = (pin!(silent), None, false);
        let ended = poll_fn(|cx| {
            if is_silent.is_none()
                && let Poll::Ready(error) = silent.as_mut().poll(cx)
            {
                is_silent = Some(error);
            }
            if !is_cancelled && (is_silent.is_some() || self.has_stopped()) {
                is_cancelled = true;
                call.cancel();
            }
            match call.step(cx.waker()) {
                ControlFlow::Break(ended) => Poll::Ready(ended),
                ControlFlow::Continue(at) => {
                    io.poll_at(at);
                    Poll::Pending
                }
            }
        })
        .await;
        let outcome = call.conclude(&io.session(), ended);
        match (outcome, is_silent) {
            (Outcome::Failed { is_torn, .. }, Some(error)) => Outcome::Failed { error, is_torn },
            (outcome, _) => outcome,
        }
    }

    /// Fetches pieces of which nothing can land in place.
    async fn fetch_beside(
        &self,
        of: &Question<'_>,
        silent: impl Future<Output = Error>,
    ) -> Result<FetchedSlices, Error> {
        let named = of.wanted.iter().map(|wanted| (wanted.name.as_str(), wanted.slice.clone()));
        let fetch = crate::fetch::Fetch::<crate::BlockingClient, crate::FetchedBundle>::new(
            of.io.session(),
            Ok(of.key.clone()),
            crate::bundle::take_bundle,
        );
        let fetched = of.io.run(fetch.with(*of.options).slices(named));
        let stops = poll_fn(|_| if self.has_stopped() { Poll::Ready(given_up()) } else { Poll::Pending });
        let ends = async {
            match of.io.first(silent, stops).await {
                Ok(error) | Err(error) => error,
            }
        };
        of.io.first(fetched, ends).await?
    }

    /// Copies pieces to their places. If they do not lie on this host, `why` they have not landed there.
    fn copy(
        &self,
        found: &[crate::bundle::Part<'_>],
        places: &[Option<(usize, BodyBox)>],
        slices: &FetchedSlices,
        why: Option<Landing>,
    ) -> Report {
        let mut report = *slices.report();
        let by_reference = is_by_reference(&report);
        for (part, place) in found.iter().zip(places) {
            let (Some((place, to)), Some(slice)) = (place, slices.get(part.entry.name.as_str())) else { continue };
            self.written.lock().insert(*place);
            self.targets.copy(*place, to, slice);
            report.copied += to.len_bytes();
            self.note(
                *place,
                match () {
                    () if by_reference => Landing::OnThisHost,
                    () if !self.targets.is_own(*place) => Landing::OtherArena,
                    () => why.unwrap_or(Landing::Short),
                },
            );
        }
        report
    }

    /// Notes how a piece of a place has come.
    fn note(&self, place: usize, landing: Landing) {
        let noted = &mut self.landings.lock()[place];
        if noted.is_none_or(|noted| noted == Landing::InPlace) {
            *noted = Some(landing);
        }
    }
}

fn other_layout(key: &Key) -> Error {
    let text = format!("the shards of key {key:?} have another layout than their record says");
    Failure::new(FailureCode::Invalid, text).into()
}

/// A request that lands in the memory.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(open: &'a AtomicUsize) -> Open<'a> {
        open.fetch_add(1, Ordering::Relaxed);
        Open(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What never ends.
pub(super) fn never() -> impl Future<Output = Error> {
    pending()
}
