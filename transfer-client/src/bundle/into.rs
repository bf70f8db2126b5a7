//! Fetches of bundles into the caller's memory.
//!
//! A bundle lands as a whole, in the pool or in buckets, and is then copied: so no tensor is written unless all are there, of one
//! version, and each fits.

use super::fetched::FetchedBundle;
use super::writable::BundleMut;
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchCall, FetchIntoError, FetchedInto, Landing, is_by_reference};
use crate::gathered::copy_threads;
use crate::request::{AnyClient, Call, Request, RequestCall, Watched};
use crate::session::{ANSWER_GRACE, Session, cancelled_unsent};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode};

/// A fetch of a bundle into memory that is about to be made. Set its options before [`Fetch::into`], then `.await` it, or
/// `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`], with the tensors as they were.
pub type FetchBundleInto<C> = Request<C, FetchBundleIntoCall>;

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Fetches into tensors of the arena, by their names, which must have the element types and shapes that they have in the bundle.
    /// Tensors of the bundle that have no name there are left out.
    ///
    /// The bundle lands as a whole, and each tensor is copied then, which the report counts. If one of them is not there or does not
    /// fit, none is written.
    pub fn into(self, tensors: BundleMut) -> FetchBundleInto<C> {
        Request::from_call(FetchBundleIntoCall {
            session: self.call.session().clone(),
            fetch: Some(self.call),
            tensors: Some(tensors),
        })
    }
}

impl FetchedInto<BundleMut> {
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
}

/// A fetch of a bundle into memory under way.
#[derive(Debug)]
pub struct FetchBundleIntoCall {
    session: Arc<Session>,
    /// `None` once it was cancelled.
    fetch: Option<FetchCall<FetchedBundle>>,
    /// `None` once they were returned.
    tensors: Option<BundleMut>,
}

type Output = Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>;

impl FetchBundleIntoCall {
    fn conclude(&mut self, fetched: Result<FetchedBundle, Error>) -> Output {
        let Some(mut tensors) = self.tensors.take() else {
            return Err(FetchIntoError::new(cancelled_unsent(), None));
        };
        match fetched.and_then(|found| check(&found, &tensors).map(|()| found)) {
            Ok(found) => {
                let mut report = *found.report();
                for (name, tensor) in tensors.iter_mut() {
                    if let Some(from) = found.get(name) {
                        // Cannot fail: both have the same length.
                        let _ = tensor.block_mut().copy_in_parallel(0, from.as_bytes(), copy_threads());
                        report.copied += from.meta().len_bytes();
                    }
                }
                let landing = if is_by_reference(found.report()) { Landing::OnThisHost } else { Landing::Whole };
                Ok(FetchedInto::new(tensors, found.version(), report, landing))
            }
            Err(e) => Err(FetchIntoError::new(e, Some(tensors))),
        }
    }
}

/// Checks that each tensor is in the bundle, with its element type and shape.
fn check(found: &FetchedBundle, tensors: &BundleMut) -> Result<(), Error> {
    for (name, tensor) in tensors.iter() {
        let from = found.get(name).ok_or_else(|| BundleError::NoSuchTensor { name: name.to_owned() })?;
        if from.meta() != tensor.meta() {
            let (found, destination) = (from.meta(), tensor.meta());
            let text = format!("tensor {name:?} of the bundle is {found}, and the destination is {destination}");
            return Err(Failure::new(FailureCode::Invalid, text).into());
        }
    }
    Ok(())
}

impl Call for FetchBundleIntoCall {
    type Output = Output;

    fn watch(&mut self, time: Duration) -> Watched<Output> {
        let Some(fetch) = &mut self.fetch else { return Watched::Steps };
        match fetch.watch(time) {
            Watched::Ended(fetched) => Watched::Ended(self.conclude(fetched)),
            Watched::Waits => Watched::Waits,
            Watched::Steps => Watched::Steps,
        }
    }

    fn step(&mut self, waker: &Waker) -> ControlFlow<Output, Instant> {
        if self.tensors.is_none() {
            return ControlFlow::Continue(Instant::now() + ANSWER_GRACE);
        }
        let fetched = match &mut self.fetch {
            Some(fetch) => fetch.step(waker),
            None => ControlFlow::Break(Err(cancelled_unsent())),
        };
        fetched.map_break(|fetched| self.conclude(fetched))
    }

    fn cancel(&mut self) {
        // No peer writes into the tensors.
        self.fetch = None;
    }

    fn needs_timer(&self) -> bool {
        self.fetch.as_ref().is_some_and(FetchCall::needs_timer)
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
