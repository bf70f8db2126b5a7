//! Fetches of bundles into the caller's memory.
//!
//! Where it can, a bundle lands in the caller's tensors, all of them by one request for one version. For that the reader has to know
//! the bundle's table: the session remembers it, or asks for it alone first. The table that comes with the version is compared with
//! that one. If they differ, the version is fetched as a whole and copied, like all that cannot land in place.

mod asked;
mod scatter;

use super::fetched::{FetchedBundle, bundle_of, take_bundle};
use super::parts::{fetched, table_of};
use super::writable::BundleMut;
use crate::digest::{Proof, Proving};
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchCall, FetchIntoError, FetchOptions, FetchedInto, Landing, Tensor, is_by_reference};
use crate::gathered::copy_threads;
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, Request, RequestCall, Watched};
use crate::session::{ANSWER_GRACE, Ended, OneCall, Session, cancelled_unsent, deadline};
use asked::{Asked, LandingOutcome, torn_by};
use scatter::MIN_RUN_BYTES;
use std::collections::HashSet;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode, Report};
use transfer_core::tensor::{Excerpt, Key, Select, TensorMeta, Version};
use transfer_core::wire::bundle::BundleTable;

/// A fetch of a bundle into memory that is about to be made. Set its options before [`Fetch::into`], then `.await` it, or
/// `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`], with the tensors if they are the caller's again: as they were, or half new with
/// [`Error::DestinationTorn`](crate::Error::DestinationTorn).
pub type FetchBundleInto<C> = Request<C, FetchBundleIntoCall>;

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Fetches into tensors of the arena, by their names, which must have the element types and shapes that they have in the bundle.
    /// Tensors of the bundle that have no name there are left out.
    ///
    /// From another node, tensors of 64 KiB and more land where they are to be, without a further copy. Shorter ones land beside and are
    /// copied, which the report counts, and so are those beyond what one request has room for: about 11 tensors that are apart
    /// in the arena, and any number that lie there in the order of the bundle, one behind the other. A bundle of this host is copied.
    /// [`FetchedInto::landings`] tells how each came. If one of the tensors is not there or does not fit, none is written,
    /// unless the error is [`Error::DestinationTorn`](crate::Error::DestinationTorn): then another version has landed there first.
    ///
    /// The call takes the tensors, and returns them as [`Fetch::into`] of one tensor does.
    pub fn into(self, tensors: BundleMut) -> FetchBundleInto<C> {
        Request::from_call(FetchBundleIntoCall {
            session: self.call.session().clone(),
            fetch: Some(self.call),
            tensors,
            is_staged: false,
            is_cancelled: false,
            keeps_rest: false,
            times: None,
            why: None,
            torn: Vec::new(),
            stage: Stage::New,
        })
    }
}

impl<C: AnyClient> FetchBundleInto<C> {
    /// Lands as a whole first, in the landing pool or in buckets, and copies when all is there. It costs the copy, and the tensors are
    /// never half new: no [`Error::DestinationTorn`](crate::Error::DestinationTorn) comes of it.
    pub fn staged(mut self) -> Self {
        self.call.is_staged = true;
        self
    }
}

impl<C: AnyClient> FetchBundleInto<C> {
    /// Keeps the tensors of the bundle that have no name among those that are fetched into: [`FetchedInto::rest`] has them.
    pub fn keep_rest(mut self) -> Self {
        self.call.keeps_rest = true;
        self
    }
}

impl FetchedInto<BundleMut> {
    /// The other tensors of the bundle, if [`FetchBundleInto::keep_rest`] was asked for.
    #[must_use]
    pub fn rest(&self) -> &[(String, Tensor)] {
        self.kept()
    }

    /// The tensors.
    #[must_use]
    pub fn tensors(&self) -> &BundleMut {
        self.memory()
    }

    /// The tensors, writable.
    #[must_use]
    pub fn into_tensors(self) -> BundleMut {
        self.into_memory()
    }

    /// How each tensor came, by its name, and why not in place.
    pub fn landings(&self) -> impl ExactSizeIterator<Item = (&str, Landing)> {
        self.memory().iter().map(|(name, _)| name).zip(self.each().iter().copied())
    }
}

/// A fetch of a bundle into memory under way.
#[derive(Debug)]
pub struct FetchBundleIntoCall {
    session: Arc<Session>,
    /// The fetch of all of it, with the options. `None` once it was cancelled.
    fetch: Option<FetchCall<FetchedBundle>>,
    /// Those that are not lent to the sidecar.
    tensors: BundleMut,
    is_staged: bool,
    /// Whether its end was asked for.
    is_cancelled: bool,
    /// Whether the other tensors of the bundle are wanted.
    keeps_rest: bool,
    /// When it began, and its deadline.
    times: Option<(Instant, Instant)>,
    /// Why it lands as a whole, if that is the same for all tensors.
    why: Option<Landing>,
    /// The tensors that have bytes of another layout, if they have.
    torn: Vec<(String, TensorMeta)>,
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
    InPlace(Box<Asked>),
    Cancelled,
    /// Its result was returned.
    Ended,
}

type Output = Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>;

/// What a step leads to.
type Next = ControlFlow<Output, Stage>;

impl FetchBundleIntoCall {
    fn key(&self) -> Option<Key> {
        self.fetch.as_ref().and_then(|fetch| fetch.key().ok())
    }

    /// The options, with the time that is left.
    fn options(&mut self) -> FetchOptions {
        let options = self.fetch.as_ref().map_or_else(FetchOptions::new, FetchCall::options);
        let (_, limit) = *self.times.get_or_insert_with(|| {
            let now = Instant::now();
            (now, deadline(now, options.timeout))
        });
        FetchOptions { timeout: limit.saturating_duration_since(Instant::now()), watches: false, ..options }
    }

    /// Returns the reason for which none of it can land in place, whatever the version is.
    fn lands_as_a_whole(&self) -> Option<Option<Landing>> {
        let options = self.fetch.as_ref().map(FetchCall::options);
        let (select, proving) = options.map(|options| (options.select, options.proving)).unzip();
        let is_long = |tensor: &TensorMut| reason(&self.session, tensor).is_none();
        match () {
            () if self.is_staged => Some(Some(Landing::Staged)),
            () if proving.is_some_and(|proving| proving != Proving::Not) => Some(Some(Landing::Verified)),
            () if self.session.home().is_returned() => Some(Some(Landing::ReturnedArena)),
            // Its fetches are counted, so a part of it cannot be asked for.
            () if matches!(select, None | Some(Select::Following(_))) => Some(Some(Landing::Whole)),
            () if !self.tensors.iter().any(|(_, tensor)| is_long(tensor)) => Some(None),
            () => None,
        }
    }

    /// Decides how it is fetched.
    fn begin(&mut self) -> Next {
        let Some(key) = self.key() else { return self.whole(None) };
        if let Some(why) = self.lands_as_a_whole() {
            return self.whole(why);
        }
        let known = self.session.bundle_tables().get(&key);
        match known {
            Some(table) if check(&table, &self.tensors).is_ok() => self.ask(&key, table),
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
            self.fetch.iter_mut().for_each(|fetch| fetch.set_timeout(timeout));
        }
        ControlFlow::Continue(Stage::Whole)
    }

    fn ask_for_table(&mut self, key: Key) -> Next {
        let options = self.options();
        let excerpt = match Excerpt::of_ranges(true, Vec::new()) {
            Ok(excerpt) => excerpt,
            Err(e) => return self.failed(BundleError::from(e).into()),
        };
        let command = options.command(key, Some(Box::new(excerpt)));
        let call = OneCall::begin(self.session.clone(), command, options.timeout);
        ControlFlow::Continue(Stage::Table(Box::new(call)))
    }

    /// Handles the table, or a version that is read by reference.
    fn handle_table(&mut self, ended: Ended) -> Next {
        let Some(key) = self.key() else { return self.whole(None) };
        let (body, tensor) = match fetched(&self.session, ended) {
            // A tensor that is no bundle, or a version that is fetched a number of times, has no parts.
            Err(Error::Failed(failure)) if failure.code == FailureCode::Invalid => {
                return self.whole(Some(Landing::Whole));
            }
            Err(e) => return self.failed(e),
            Ok(fetched) => fetched,
        };
        if !tensor.is_part {
            return ControlFlow::Break(match bundle_of(&body, &tensor, &Proof::none(&key)) {
                Ok(found) => {
                    self.saw(tensor.version);
                    self.copy(&found)
                }
                Err(e) => return self.failed(e),
            });
        }
        let table = match table_of(&body, &tensor) {
            Ok(table) => Arc::new(table),
            Err(e) => return self.failed(e),
        };
        self.session.bundle_tables().remember(&key, table.clone());
        match check(&table, &self.tensors) {
            Ok(()) => self.ask(&key, table),
            Err(e) => self.failed(e),
        }
    }

    /// Asks for a version with this table into the tensors.
    fn ask(&mut self, key: &Key, table: Arc<BundleTable>) -> Next {
        let options = self.options();
        let tensors = mem::take(&mut self.tensors);
        match Asked::new(&self.session, (key, &options), table, tensors, self.keeps_rest) {
            Ok(asked) => ControlFlow::Continue(Stage::InPlace(Box::new(asked))),
            Err((why, tensors)) => {
                self.tensors = tensors;
                self.whole(why)
            }
        }
    }

    /// Handles what came of a fetch into the tensors.
    fn handle_outcome(&mut self, key: &Key, outcome: LandingOutcome) -> Next {
        match outcome {
            LandingOutcome::InPlace { tensors, landings, rest, version, report } => {
                self.saw(version);
                ControlFlow::Break(Ok(FetchedInto::of_bundle((tensors, rest), version.0, report, landings)))
            }
            LandingOutcome::Elsewhere { tensors, lease, found, table } => {
                self.tensors = tensors;
                let found = match take_bundle(lease, found, &Proof::none(key)) {
                    Ok(found) => found,
                    Err(e) => return self.failed(e),
                };
                self.why = Some(match () {
                    () if *found.table() != table => Landing::OtherLayout,
                    () if self.session.home().is_returned() => Landing::ReturnedArena,
                    () => Landing::NotOpened,
                });
                self.session.bundle_tables().remember(key, found.table().clone());
                self.saw(Version(found.version()));
                ControlFlow::Break(self.copy(&found))
            }
            // It is as long as another layout: the tensors have bytes of others, until all of them are fetched once more.
            LandingOutcome::OtherLayout { tensors, torn } => {
                (self.tensors, self.torn) = (tensors, torn);
                self.whole(Some(Landing::OtherLayout))
            }
            LandingOutcome::Failed { tensors, error } => match (tensors, error) {
                (Some(tensors), Error::Failed(failure)) if failure.code == FailureCode::TooLarge => {
                    // It has another layout, or cannot land in place here, and comes in buckets.
                    self.tensors = tensors;
                    self.whole(Some(Landing::Whole))
                }
                (Some(tensors), error) => {
                    self.tensors = tensors;
                    self.failed(error)
                }
                (None, error) => ControlFlow::Break(Err(FetchIntoError::new(error, None))),
            },
        }
    }

    fn saw(&self, version: Version) {
        if let Some(fetch) = &self.fetch {
            fetch.saw(version);
        }
    }

    fn failed(&mut self, error: Error) -> Next {
        ControlFlow::Break(self.failure(error))
    }

    fn failure(&mut self, error: Error) -> Output {
        let tensors = mem::take(&mut self.tensors);
        let error = match (error, self.key()) {
            // They were written before.
            (error, Some(key)) if !self.torn.is_empty() => torn_by(&key, mem::take(&mut self.torn), error),
            (error, _) => error,
        };
        Err(FetchIntoError::new(error, Some(tensors)))
    }

    /// Copies what lies elsewhere.
    fn copy(&mut self, found: &FetchedBundle) -> Output {
        if let Err(e) = check(found.table(), &self.tensors) {
            return self.failure(e);
        }
        if let (Some(Landing::OtherLayout), Some(key)) = (self.why, self.key()) {
            self.session.bundle_tables().remember(&key, found.table().clone());
        }
        let mut tensors = mem::take(&mut self.tensors);
        let mut report: Report = *found.report();
        let by_reference = is_by_reference(&report);
        let why = |tensor| match (by_reference, self.why) {
            (true, _) => Landing::OnThisHost,
            (false, Some(why)) => why,
            (false, None) => reason(&self.session, tensor).unwrap_or(Landing::Whole),
        };
        let landings = tensors.iter().map(|(_, tensor)| why(tensor)).collect();
        for (name, tensor) in tensors.iter_mut() {
            if let Some(from) = found.get(name) {
                // Cannot fail: both have the same length.
                let _ = tensor.block_mut().copy_in_parallel(0, from.as_bytes(), copy_threads());
                report.copied += from.meta().len_bytes();
            }
        }
        let mut rest = Vec::new();
        if self.keeps_rest {
            let named: HashSet<&str> = tensors.iter().map(|(name, _)| name).collect();
            let others = found.iter().filter(|(name, _)| !named.contains(name));
            rest.extend(others.map(|(name, tensor)| (name.to_owned(), tensor.clone())));
        }
        Ok(FetchedInto::of_bundle((tensors, rest), found.version(), report, landings))
    }

    fn step_once(&mut self, waker: &Waker) -> ControlFlow<Output, ControlFlow<Instant, Stage>> {
        let waits = |at| ControlFlow::Continue(ControlFlow::Break(at));
        let goes_on = |next: Next| next.map_continue(ControlFlow::Continue);
        match mem::replace(&mut self.stage, Stage::Ended) {
            Stage::New => goes_on(self.begin()),
            Stage::Whole => match self.fetch.as_mut().map(|fetch| fetch.step(waker)) {
                Some(ControlFlow::Continue(at)) => {
                    self.stage = Stage::Whole;
                    waits(at)
                }
                Some(ControlFlow::Break(Ok(found))) => ControlFlow::Break(self.copy(&found)),
                Some(ControlFlow::Break(Err(e))) => goes_on(self.failed(e)),
                None => goes_on(self.failed(cancelled_unsent())),
            },
            Stage::Table(mut call) => match call.step(waker) {
                ControlFlow::Continue(at) => {
                    self.stage = Stage::Table(call);
                    waits(at)
                }
                ControlFlow::Break(ended) => goes_on(self.handle_table(ended)),
            },
            Stage::InPlace(mut asked) => match asked.step(waker) {
                ControlFlow::Continue(at) => {
                    self.stage = Stage::InPlace(asked);
                    waits(at)
                }
                ControlFlow::Break(ended) => {
                    let key = asked.key().clone();
                    let outcome = asked.conclude(&self.session, ended);
                    goes_on(self.handle_outcome(&key, outcome))
                }
            },
            Stage::Cancelled => goes_on(self.failed(cancelled_unsent())),
            Stage::Ended => waits(Instant::now() + ANSWER_GRACE),
        }
    }
}

/// Returns the reason for which a tensor cannot land in place, whatever the version is.
fn reason(session: &Session, tensor: &TensorMut) -> Option<Landing> {
    match session.check_arena(tensor) {
        Err(_) => Some(Landing::OtherArena),
        Ok(()) if tensor.meta().len_bytes() < MIN_RUN_BYTES => Some(Landing::Short),
        Ok(()) => None,
    }
}

/// Checks that each tensor is in the bundle, with its element type and shape, and is given once.
fn check(table: &BundleTable, tensors: &BundleMut) -> Result<(), Error> {
    let mut given = HashSet::with_capacity(tensors.len());
    for (name, tensor) in tensors.iter() {
        if !given.insert(name) {
            let text = format!("the tensors to fetch into have the name {name:?} twice; give one tensor for each name");
            return Err(Failure::new(FailureCode::Invalid, text).into());
        }
        let at = table.find(name).ok_or_else(|| BundleError::NoSuchTensor { name: name.to_owned() })?;
        let (found, destination) = (&table.entries()[at].meta, tensor.meta());
        if found != destination {
            let text = format!("tensor {name:?} of the bundle is {found}, and the destination is {destination}");
            return Err(Failure::new(FailureCode::Invalid, text).into());
        }
    }
    Ok(())
}

impl Call for FetchBundleIntoCall {
    type Output = Output;

    fn watch(&mut self, time: Duration) -> Watched<Output> {
        if let (Stage::New, Some(why)) = (&self.stage, self.lands_as_a_whole()) {
            (self.why, self.stage) = (why, Stage::Whole);
        }
        let (Stage::Whole, Some(fetch)) = (&self.stage, &mut self.fetch) else { return Watched::Steps };
        match fetch.watch(time) {
            Watched::Ended(Ok(found)) => Watched::Ended(self.copy(&found)),
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
            Stage::InPlace(mut asked) => {
                asked.cancel();
                Stage::InPlace(asked)
            }
            ended => ended,
        };
        if matches!(self.stage, Stage::Cancelled) && self.torn.is_empty() {
            self.fetch = None;
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Whole => self.fetch.as_ref().is_some_and(FetchCall::needs_timer),
            Stage::Table(call) => call.needs_timer(),
            Stage::InPlace(asked) => asked.needs_timer(),
            Stage::New | Stage::Cancelled | Stage::Ended => false,
        }
    }
}

impl RequestCall for FetchBundleIntoCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        if let Some(fetch) = &mut self.fetch {
            fetch.set_timeout(timeout);
        }
    }
}
