//! A fetch of a bundle into the caller's tensors.

use super::split::{Split, SplitEnd};
use super::whole::{Found, Whole, check_fits};
use crate::bundle::fetched::{bundle_of, take_bundle};
use crate::bundle::parts::{PartsRequest, fetched, landed, parts, table_of};
use crate::bundle::slices::FetchedSlices;
use crate::bundle::writable::BundleMut;
use crate::digest::Proof;
use crate::error::{BundleError, Error, TornDestination};
use crate::fetch::{FetchIntoError, FetchOptions, FetchedInto, Tensor, is_by_reference};
use crate::gathered::Body;
use crate::landing::{Asking, Beside, Landing, LandingCall, LandingPlace, Outcome, Targets, ViewOf};
use crate::request::{Call, RequestCall, Watched};
use crate::session::{ANSWER_GRACE, Ended, Lease, OneCall, Session, cancelled_unsent, deadline};
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Otherwise, Report};
use transfer_core::tensor::{BodyBox, Excerpt, Key, TensorMeta, Version};
use transfer_core::wire::bundle::{BundleEntry, BundleTable};

/// The number of versions of which several requests are tried, where each is replaced meanwhile.
const MAX_ATTEMPTS: u32 = 3;

/// A fetch of a bundle into memory under way.
#[derive(Debug)]
pub struct FetchBundleIntoCall {
    pub(super) session: Arc<Session>,
    pub(super) whole: Whole,
    /// The tensors until it begins.
    tensors: Option<BundleMut>,
    pub(super) views: Vec<ViewOf>,
    /// The tensors from then on.
    pub(super) targets: Option<Targets>,
    pub(super) is_staged: bool,
    /// Whether its end was asked for.
    is_cancelled: bool,
    /// Whether the other tensors of the bundle are wanted.
    pub(super) keeps_rest: bool,
    /// When it began, and its deadline.
    times: Option<(Instant, Instant)>,
    /// Why it lands as a whole, if that is the same for all tensors.
    why: Option<Landing>,
    /// The tensors that have bytes of another layout, if they have.
    torn: Vec<(String, TensorMeta)>,
    /// How often a version was replaced while it landed by several requests.
    replaced: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    /// All of it is fetched, and copied then.
    Whole,
    /// The table alone is fetched.
    Table(Box<OneCall>),
    /// It lands in the tensors.
    InPlace(Box<InPlace>),
    /// It lands in the tensors, by several requests.
    Split(Box<Split>),
    Cancelled,
    /// Its result was returned.
    Ended,
}

/// A request for a bundle with a known table.
#[derive(Debug)]
struct InPlace {
    call: LandingCall,
    table: Arc<BundleTable>,
    /// Of slices: the boxes that are asked for.
    boxes: Option<Vec<BodyBox>>,
}

type Output = Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>;

/// What a step leads to.
type Next = ControlFlow<Output, Stage>;

impl FetchBundleIntoCall {
    pub(super) fn new(session: Arc<Session>, whole: Whole, tensors: BundleMut) -> FetchBundleIntoCall {
        FetchBundleIntoCall {
            session,
            whole,
            tensors: Some(tensors),
            views: Vec::new(),
            targets: None,
            is_staged: false,
            is_cancelled: false,
            keeps_rest: false,
            times: None,
            why: None,
            torn: Vec::new(),
            replaced: 0,
            stage: Stage::New,
        }
    }

    /// The options, with the time that is left.
    fn options(&mut self) -> FetchOptions {
        let options = self.whole.options();
        let (_, limit) = *self.times.get_or_insert_with(|| {
            let now = Instant::now();
            (now, deadline(now, options.timeout))
        });
        FetchOptions { timeout: limit.saturating_duration_since(Instant::now()), watches: false, ..options }
    }

    /// Opens the tensors, if that has not been done.
    fn open(&mut self) -> Result<(), FetchIntoError<BundleMut>> {
        let Some(tensors) = self.tensors.take() else { return Ok(()) };
        match Targets::new(&self.session, tensors, &self.views) {
            Ok(targets) => self.targets = Some(targets),
            Err((e, tensors)) => return Err(FetchIntoError::new(e, Some(tensors))),
        }
        match self.check_names() {
            Ok(()) => Ok(()),
            Err(e) => Err(FetchIntoError::new(e, self.close())),
        }
    }

    pub(super) fn places(&self) -> &[LandingPlace] {
        self.targets.as_ref().map_or(&[], Targets::places)
    }

    /// The tensors, if they are the caller's again.
    fn close(&mut self) -> Option<BundleMut> {
        self.tensors.take().or_else(|| self.targets.take()?.close())
    }

    /// Decides how it is fetched.
    fn begin(&mut self) -> Next {
        if let Err(e) = self.open() {
            return ControlFlow::Break(Err(e));
        }
        let Some(key) = self.whole.key() else { return self.whole(None) };
        if let Some(why) = self.lands_as_a_whole() {
            return self.whole(why);
        }
        let known = self.session.bundle_tables().get(&key);
        match known {
            Some(table) if self.check(&key, &table).is_ok() => self.ask(&key, table, None),
            _ => self.ask_for_table(key),
        }
    }

    /// Fetches all of it, unless its end was asked for.
    fn whole(&mut self, why: Option<Landing>) -> Next {
        if self.is_cancelled {
            let text = "the call was given up, and the bundle is not fetched once more";
            return self.failed(Failure::new(FailureCode::Cancelled, text).into());
        }
        self.why = why;
        if self.times.is_some() {
            let timeout = self.options().timeout;
            self.whole.set_timeout(timeout);
        }
        ControlFlow::Continue(Stage::Whole)
    }

    fn ask_for_table(&mut self, key: Key) -> Next {
        let options = self.options();
        let command = options.command(key, Some(Box::new(Excerpt::metadata())));
        let call = OneCall::begin(self.session.clone(), command, options.timeout);
        ControlFlow::Continue(Stage::Table(Box::new(call)))
    }

    /// Handles the table, or a version that is read by reference.
    fn handle_table(&mut self, ended: Ended) -> Next {
        let Some(key) = self.whole.key() else { return self.whole(None) };
        let (body, tensor) = match fetched(&self.session, ended) {
            // A tensor that is no bundle, or a version that is fetched a number of times, has no parts.
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => {
                return self.whole(Some(Landing::Whole));
            }
            Err(e) => return self.failed(e),
            Ok(fetched) => fetched,
        };
        if !tensor.is_part {
            let version = tensor.version;
            let found = match self.whole.wanted() {
                None => bundle_of(&body, &tensor, &Proof::none(&key)).map(Found::All),
                Some(wanted) => FetchedSlices::of_whole(&key, wanted, body, &tensor).map(Found::Parts),
            };
            return match found {
                Ok(found) => {
                    self.whole.saw(version);
                    ControlFlow::Break(self.copy(&found))
                }
                Err(e) => self.failed(e),
            };
        }
        let table = match table_of(&body, &tensor) {
            Ok(table) => Arc::new(table),
            Err(e) => return self.failed(e),
        };
        self.session.bundle_tables().remember(&key, table.clone());
        match self.check(&key, &table) {
            Ok(()) => self.ask(&key, table, Some((tensor.version, tensor.report))),
            Err(e) => self.failed(e),
        }
    }

    /// Asks for a version with this table into the tensors. If the table was fetched for it, this is its version.
    fn ask(&mut self, key: &Key, table: Arc<BundleTable>, of: Option<(Version, Report)>) -> Next {
        let options = self.options();
        let request = match self.request(key, &table) {
            Ok(request) => request,
            Err(e) => return self.failed(e),
        };
        let Some(targets) = &self.targets else { return self.whole(None) };
        let fits = |request: &PartsRequest| LandingCall::fits(targets, &request.meta, &request.pieces);
        if !request.as_ref().is_some_and(fits) {
            let parts = match self.parts_with_rest(key, &table) {
                Ok(parts) => parts,
                Err(e) => return self.failed(e),
            };
            match of {
                // The table says which version several requests are for.
                None if Split::is_possible(&table, &parts, targets, options.bucket_bytes) => {
                    return self.ask_for_table(key.clone());
                }
                None => {}
                Some((version, report)) => {
                    let of_parts = (parts.as_slice(), self.whole.wanted());
                    match Split::plan((table.clone(), version), of_parts, targets, (options, report)) {
                        Ok(Some(split)) => return ControlFlow::Continue(Stage::Split(Box::new(split))),
                        Ok(None) => {}
                        Err(e) => return self.failed(e),
                    }
                }
            }
        }
        let Some(request) = request else { return self.whole(Some(Landing::TooManyRuns)) };
        let boxes = request.excerpt.is_some().then(|| request.boxes());
        let PartsRequest { excerpt, meta, pieces } = request;
        let asking = Asking { key, options: &options, excerpt, meta, pieces, otherwise: Otherwise::LandBeside };
        match LandingCall::begin(&self.session, targets, asking) {
            Ok(call) => ControlFlow::Continue(Stage::InPlace(Box::new(InPlace { call, table, boxes }))),
            Err(why) => self.whole(why),
        }
    }

    /// Handles what came of a fetch into the tensors.
    fn handle_outcome(&mut self, key: &Key, at: InPlace, ended: Ended) -> Next {
        let InPlace { call, table, boxes } = at;
        let opened: Vec<_> = call.opened().collect();
        let opened = self.targets.as_ref().map_or_else(Vec::new, |targets| targets.describe(opened));
        match call.conclude(&self.session, ended) {
            Outcome::Landed { beside, version, report } => {
                let found = beside.metadata().and_then(|bytes| BundleTable::read(&bytes).ok());
                if found.is_none_or(|found| found != *table) {
                    // It is as long as another layout: the tensors have bytes of others, until all of them are fetched once more.
                    self.note_torn(opened);
                    return self.whole(Some(Landing::OtherLayout));
                }
                match self.landed(&table, &beside, version, report) {
                    Ok(fetched) => ControlFlow::Break(fetched),
                    Err(e) => {
                        self.note_torn(opened);
                        self.failed(e)
                    }
                }
            }
            Outcome::Elsewhere { lease, found } => {
                let version = found.version;
                let found = match self.elsewhere(key, &table, boxes, lease, found) {
                    Ok(Some(found)) => found,
                    Ok(None) => return self.whole(Some(Landing::OtherLayout)),
                    Err(e) => return self.failed(e),
                };
                self.whole.saw(version);
                ControlFlow::Break(self.copy(&found))
            }
            Outcome::Failed { error: Error::Failed(failure), .. } if failure.code == FailureCode::TooLarge => {
                // It has another layout, or cannot land in place here, and comes in buckets.
                self.whole(Some(Landing::Whole))
            }
            Outcome::Failed { error, is_torn } => {
                if is_torn {
                    self.note_torn(opened);
                }
                self.failed(error)
            }
            Outcome::Lost { error } => {
                self.targets = None;
                self.failed(error)
            }
        }
    }

    /// Notes tensors that were written, beside those that earlier requests have written.
    fn note_torn(&mut self, written: Vec<(String, TensorMeta)>) {
        self.torn.retain(|torn| !written.contains(torn));
        self.torn.extend(written);
    }

    /// Makes the result of several requests.
    fn handle_split(&mut self, key: Key, split: Split, end: SplitEnd) -> Next {
        let Split { written, landings, rest, version, report, .. } = split;
        if let (Some(targets), false) = (&self.targets, matches!(end, SplitEnd::Landed | SplitEnd::Lost(_))) {
            let written = targets.describe(written);
            self.note_torn(written);
        }
        match end {
            SplitEnd::Landed => {
                let names = self.places().iter().map(|place| place.name.clone());
                let landings = names.zip(landings).collect();
                self.whole.saw(version);
                let waited = report.queued + report.waited;
                let in_flight = self.times.map_or(waited, |(started, _)| started.elapsed()).saturating_sub(waited);
                ControlFlow::Break(self.returned(rest, (version.0, Report { in_flight, ..report }), landings))
            }
            SplitEnd::Replaced => {
                self.replaced += 1;
                match self.replaced < MAX_ATTEMPTS && !self.is_cancelled {
                    true => self.ask_for_table(key),
                    false => self.whole(Some(Landing::Replaced)),
                }
            }
            SplitEnd::TooLarge => self.whole(Some(Landing::Whole)),
            SplitEnd::Failed(error) => self.failed(error),
            SplitEnd::Lost(error) => {
                self.targets = None;
                self.failed(error)
            }
        }
    }

    /// Copies what has landed beside, and makes the result.
    fn landed(
        &mut self,
        table: &BundleTable,
        beside: &Beside,
        version: Version,
        mut report: Report,
    ) -> Result<Output, Error> {
        let Some(targets) = &self.targets else { return Err(cancelled_unsent()) };
        report.copied += beside.copy(targets)?;
        let rest = match self.keeps_rest && self.whole.wanted().is_none() {
            true => self.rest_of(table, beside, version, report)?,
            false => Vec::new(),
        };
        let mut landings: Vec<_> = targets.places().iter().map(|place| (place.name.clone(), Landing::Short)).collect();
        beside.landings().for_each(|(place, landing)| landings[place].1 = landing);
        self.whole.saw(version);
        Ok(self.returned(rest, (version.0, report), landings))
    }

    /// The tensors of the bundle without a place, as they have landed beside.
    fn rest_of(
        &self,
        table: &BundleTable,
        beside: &Beside,
        version: Version,
        report: Report,
    ) -> Result<Vec<(String, Tensor)>, BundleError> {
        let Some(targets) = &self.targets else { return Ok(Vec::new()) };
        let body_at = beside.body_offset();
        let others = table.entries().iter().filter(|entry| targets.find(entry.name.as_str()).is_none());
        let tensor = |entry: &BundleEntry| {
            let (offset, len, body_len) = (entry.offset, entry.meta.len_bytes(), table.body_len());
            let bytes = beside.bytes(body_at + offset, len);
            let bytes = bytes.ok_or(BundleError::OutOfBody { offset, len, body_len })?;
            Ok((entry.name.as_str().to_owned(), Tensor::of_bytes(bytes, entry.meta.clone(), version, report)))
        };
        others.map(tensor).collect()
    }

    /// Reads what has landed in the pool, or lies on this host. `None` if slices were chosen by another table.
    fn elsewhere(
        &mut self,
        key: &Key,
        table: &BundleTable,
        boxes: Option<Vec<BodyBox>>,
        lease: Arc<Lease>,
        found: FetchedTensor,
    ) -> Result<Option<Found>, Error> {
        self.why = Some(match self.session.home().is_returned() {
            true => Landing::ReturnedArena,
            false => Landing::NotOpened,
        });
        let (Some(boxes), Some(wanted)) = (boxes, self.whole.wanted()) else {
            let found = take_bundle(lease, found, &Proof::none(key))?;
            if **found.table() != *table {
                self.why = Some(Landing::OtherLayout);
            }
            self.session.bundle_tables().remember(key, found.table().clone());
            return Ok(Some(Found::All(found)));
        };
        let body = Body::new::<BundleError>(lease, &found)?;
        let now = table_of(&body, &found)?;
        if !found.is_part {
            return FetchedSlices::of_whole(key, wanted, body, &found).map(|found| Some(Found::Parts(found)));
        }
        if now != *table {
            self.session.bundle_tables().remember(key, Arc::new(now));
            return Ok(None);
        }
        let parts = parts(key, table, wanted)?;
        FetchedSlices::of_landed(&parts, &landed(body, boxes)?, found.version, found.report)
            .map(|found| Some(Found::Parts(found)))
    }

    fn failed(&mut self, error: Error) -> Next {
        ControlFlow::Break(self.failure(error))
    }

    fn failure(&mut self, error: Error) -> Output {
        let error = match (error, self.whole.key()) {
            // They were written before.
            (error, Some(key)) if !self.torn.is_empty() => {
                let (key, tensors) = (key.as_str().to_owned(), mem::take(&mut self.torn));
                Error::DestinationTorn(Box::new(TornDestination { key, tensors, error }))
            }
            (error, _) => error,
        };
        Err(FetchIntoError::new(error, self.close()))
    }

    fn returned(
        &mut self,
        rest: Vec<(String, Tensor)>,
        (version, report): (u64, Report),
        landings: Vec<(String, Landing)>,
    ) -> Output {
        match self.close() {
            Some(tensors) => Ok(FetchedInto::of_bundle((tensors, rest), version, report, landings)),
            // Cannot be: what was lent is given back when its answer is read.
            None => Err(FetchIntoError::new(cancelled_unsent(), None)),
        }
    }

    /// Copies what lies elsewhere.
    fn copy(&mut self, found: &Found) -> Output {
        let (version, mut report) = found.head();
        let by_reference = is_by_reference(&report);
        let Some(targets) = &self.targets else { return self.failure(cancelled_unsent()) };
        let fit = |place: &LandingPlace| {
            let slice = found.get(&place.name)?;
            check_fits(&place.name, slice.meta(), place.view.meta())
        };
        if let Err(e) = targets.places().iter().try_for_each(fit) {
            return self.failure(e);
        }
        if let (Some(Landing::OtherLayout), Some(key), Found::All(bundle)) = (self.why, self.whole.key(), found) {
            self.session.bundle_tables().remember(&key, bundle.table().clone());
        }
        let slice_of = |(at, place): (usize, &LandingPlace)| Some((at, found.get(&place.name).ok()?));
        let slices: Vec<_> = targets.places().iter().enumerate().filter_map(slice_of).collect();
        targets.copy_all(&slices);
        report.copied += slices.iter().map(|(_, slice)| slice.meta().len_bytes()).sum::<u64>();
        let mut landings = Vec::with_capacity(targets.places().len());
        for (at, place) in targets.places().iter().enumerate() {
            landings.push((
                place.name.clone(),
                match (by_reference, self.why) {
                    (true, _) => Landing::OnThisHost,
                    (false, Some(why)) => why,
                    (false, None) => self.reason(at).unwrap_or(Landing::Whole),
                },
            ));
        }
        let mut rest = Vec::new();
        if let (true, Found::All(bundle)) = (self.keeps_rest, found) {
            let others = bundle.iter().filter(|(name, _)| targets.find(name).is_none());
            rest.extend(others.map(|(name, tensor)| (name.to_owned(), tensor.clone())));
        }
        self.returned(rest, (version, report), landings)
    }

    fn step_once(&mut self, waker: &Waker) -> ControlFlow<Output, ControlFlow<Instant, Stage>> {
        let waits = |at| ControlFlow::Continue(ControlFlow::Break(at));
        let goes_on = |next: Next| next.map_continue(ControlFlow::Continue);
        match mem::replace(&mut self.stage, Stage::Ended) {
            Stage::New => goes_on(self.begin()),
            Stage::Whole => match self.whole.step(waker) {
                ControlFlow::Continue(at) => {
                    self.stage = Stage::Whole;
                    waits(at)
                }
                ControlFlow::Break(Ok(found)) => ControlFlow::Break(self.copy(&found)),
                ControlFlow::Break(Err(e)) => goes_on(self.failed(e)),
            },
            Stage::Table(mut call) => match call.step(waker) {
                ControlFlow::Continue(at) => {
                    self.stage = Stage::Table(call);
                    waits(at)
                }
                ControlFlow::Break(ended) => goes_on(self.handle_table(ended)),
            },
            Stage::InPlace(mut at) => match at.call.step(waker) {
                ControlFlow::Continue(until) => {
                    self.stage = Stage::InPlace(at);
                    waits(until)
                }
                ControlFlow::Break(ended) => match self.whole.key() {
                    Some(key) => goes_on(self.handle_outcome(&key, *at, ended)),
                    None => goes_on(self.failed(cancelled_unsent())),
                },
            },
            Stage::Split(mut split) => {
                let (Some(key), Some(targets), Some((_, limit))) = (self.whole.key(), &self.targets, self.times) else {
                    return goes_on(self.failed(cancelled_unsent()));
                };
                match split.step((&self.session, &key), (targets, &self.whole), limit, waker) {
                    ControlFlow::Continue(until) => {
                        self.stage = Stage::Split(split);
                        waits(until)
                    }
                    ControlFlow::Break(end) => goes_on(self.handle_split(key, *split, end)),
                }
            }
            Stage::Cancelled => goes_on(self.failed(cancelled_unsent())),
            Stage::Ended => waits(Instant::now() + ANSWER_GRACE),
        }
    }
}

impl Call for FetchBundleIntoCall {
    type Output = Output;

    fn watch(&mut self, time: Duration) -> Watched<Output> {
        if matches!(self.stage, Stage::New) {
            if let Err(e) = self.open() {
                self.stage = Stage::Ended;
                return Watched::Ended(Err(e));
            }
            if let Some(why) = self.lands_as_a_whole() {
                (self.why, self.stage) = (why, Stage::Whole);
            }
        }
        let (Stage::Whole, Whole::All(fetch)) = (&self.stage, &mut self.whole) else { return Watched::Steps };
        match fetch.watch(time) {
            Watched::Ended(Ok(found)) => Watched::Ended(self.copy(&Found::All(found))),
            Watched::Ended(Err(e)) => Watched::Ended(self.failure(e)),
            Watched::Waits => Watched::Waits,
            Watched::Steps => Watched::Steps,
        }
    }

    fn step(&mut self, waker: &Waker) -> ControlFlow<Output, Instant> {
        loop {
            match self.step_once(waker) {
                ControlFlow::Break(output) => return ControlFlow::Break(output),
                ControlFlow::Continue(ControlFlow::Break(at)) => return ControlFlow::Continue(at),
                ControlFlow::Continue(ControlFlow::Continue(stage)) => self.stage = stage,
            }
        }
    }

    fn cancel(&mut self) {
        self.is_cancelled = true;
        self.stage = match mem::replace(&mut self.stage, Stage::Ended) {
            // No peer writes into the tensors.
            Stage::New | Stage::Whole | Stage::Table(_) => Stage::Cancelled,
            Stage::InPlace(mut at) => {
                at.call.cancel();
                Stage::InPlace(at)
            }
            Stage::Split(mut split) => {
                let failure = Failure::new(FailureCode::Cancelled, "the call was given up");
                split.end(SplitEnd::Failed(failure.into()));
                Stage::Split(split)
            }
            ended => ended,
        };
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Whole => self.whole.needs_timer(),
            Stage::Table(call) => call.needs_timer(),
            Stage::InPlace(at) => at.call.needs_timer(),
            Stage::Split(split) => split.needs_timer(),
            Stage::New | Stage::Cancelled | Stage::Ended => false,
        }
    }
}

impl RequestCall for FetchBundleIntoCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.whole.set_timeout(timeout);
    }
}
