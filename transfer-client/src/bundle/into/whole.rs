//! The fetch of all that is wanted, where it does not land in place.

use crate::bundle::fetched::FetchedBundle;
use crate::bundle::only::FetchOnlyCall;
use crate::bundle::parts::Wanted;
use crate::bundle::slices::FetchedSlices;
use crate::error::{BundleError, Error};
use crate::fetch::{FetchCall, FetchOptions, FetchedSlice, Tensor};
use crate::request::{Call, RequestCall};
use std::ops::ControlFlow;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode, Report};
use transfer_core::tensor::{Key, TensorMeta, Version};

/// The fetch of all that is wanted, which is copied then.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and nearly every call has the larger one")]
pub(super) enum Whole {
    All(FetchCall<FetchedBundle>),
    Parts(FetchOnlyCall<FetchedSlices>),
}

/// What it has fetched.
pub(super) enum Found {
    All(FetchedBundle),
    Parts(FetchedSlices),
}

impl Whole {
    pub(super) fn key(&self) -> Option<Key> {
        match self {
            Whole::All(fetch) => fetch.key(),
            Whole::Parts(fetch) => fetch.key(),
        }
        .ok()
    }

    pub(super) fn options(&self) -> FetchOptions {
        match self {
            Whole::All(fetch) => fetch.options(),
            Whole::Parts(fetch) => fetch.options(),
        }
    }

    /// The slices that are wanted. `None`: all tensors.
    pub(super) fn wanted(&self) -> Option<&[Wanted]> {
        match self {
            Whole::All(_) => None,
            Whole::Parts(fetch) => Some(fetch.wanted()),
        }
    }

    pub(super) fn saw(&self, version: Version) {
        match self {
            Whole::All(fetch) => fetch.saw(version),
            Whole::Parts(fetch) => fetch.saw(version),
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        match self {
            Whole::All(fetch) => fetch.set_timeout(timeout),
            Whole::Parts(fetch) => fetch.set_timeout(timeout),
        }
    }

    pub(super) fn step(&mut self, waker: &Waker) -> ControlFlow<Result<Found, Error>, Instant> {
        match self {
            Whole::All(fetch) => fetch.step(waker).map_break(|found| found.map(Found::All)),
            Whole::Parts(fetch) => fetch.step(waker).map_break(|found| found.map(Found::Parts)),
        }
    }

    pub(super) fn needs_timer(&self) -> bool {
        match self {
            Whole::All(fetch) => fetch.needs_timer(),
            Whole::Parts(fetch) => fetch.needs_timer(),
        }
    }
}

impl Found {
    pub(super) fn get(&self, name: &str) -> Result<FetchedSlice, Error> {
        let found = match self {
            Found::All(bundle) => bundle.get(name).map(Tensor::as_whole_slice),
            Found::Parts(slices) => slices.get(name).cloned(),
        };
        Ok(found.ok_or_else(|| BundleError::NoSuchTensor { name: name.to_owned() })?)
    }

    pub(super) fn head(&self) -> (u64, Report) {
        match self {
            Found::All(bundle) => (bundle.version(), *bundle.report()),
            Found::Parts(slices) => (slices.version(), *slices.report()),
        }
    }
}

/// Checks that what is fetched has the description of its place.
pub(super) fn check_fits(name: &str, found: &TensorMeta, destination: &TensorMeta) -> Result<(), Error> {
    if found == destination {
        return Ok(());
    }
    let text = format!("tensor {name:?} of the bundle is {found}, and the destination is {destination}");
    Err(Failure::new(FailureCode::Invalid, text).into())
}
