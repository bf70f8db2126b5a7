//! Fetches of bundles into the caller's memory.
//!
//! Where it can, a bundle lands in the caller's tensors, all of them by one request for one version. For that the reader has to know
//! the bundle's table: the session remembers it, or asks for it alone first. The table that comes with the version is compared with
//! that one. If they differ, the version is fetched as a whole and copied, like all that cannot land in place.
//!
//! # Layout
//! - this file: the request and its options. `call`: the call. `chosen`: what is asked for, and what can land in place. `split`: several
//!   requests for one version. `whole`: the fetch of all that is wanted, where it is copied.

mod call;
mod chosen;
mod split;
mod whole;

use super::fetched::FetchedBundle;
use super::only::FetchOnly;
use super::slices::FetchedSlices;
use super::writable::BundleMut;
use crate::fetch::{Fetch, FetchedInto, Tensor};
use crate::landing::{Landing, MemoryView, ViewOf, Viewed};
use crate::request::{AnyClient, Request, RequestCall};
use crate::session::Session;
pub(crate) use call::FetchBundleIntoCall;
use std::sync::Arc;
use transfer_core::tensor::Slice;
use whole::Whole;

/// A fetch of a bundle into memory that is about to be made. Set its options before [`Fetch::into`], then `.await` it, or
/// `.call()` it on a [`crate::BlockingClient`].
///
/// # Errors
/// [`FetchIntoError`](crate::FetchIntoError), with the tensors if they are the caller's again: as they were, or half new with
/// [`Error::DestinationTorn`](crate::Error::DestinationTorn).
pub type FetchBundleInto<C> = Request<C, FetchBundleIntoCall>;

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Fetches into tensors of the arena, by their names, which must have the element types and shapes that they have in the bundle.
    /// Tensors of the bundle that have no name there are left out.
    ///
    /// From another node, tensors of 64 KiB and more land where they are to be, without a further copy. Shorter ones land beside and are
    /// copied, which the report counts, but for those that lie one behind the other in the order of the bundle, as
    /// [parts](FetchBundleInto::at) of one tensor can. Where the tensors lie apart in more pieces than one request has ranges for, about 23,
    /// several requests for exactly one version are made, up to 256. If that is replaced meanwhile, the next one is tried, up to three times, and then
    /// all is copied. A tensor is never divided between requests: of one that has more long runs itself, the others are copied
    /// ([`Landing::TooManyRuns`]). A bundle of this host is copied.
    /// [`FetchedInto::landings`] tells how each came. If one of the tensors is not there or does not fit, none is written,
    /// unless the error is [`Error::DestinationTorn`](crate::Error::DestinationTorn): then another version has landed there first.
    ///
    /// The call takes the tensors, and returns them as [`Fetch::into`] of one tensor does.
    pub fn into(self, tensors: BundleMut) -> FetchBundleInto<C> {
        let session = self.call.session().clone();
        FetchBundleInto::of(session, Whole::All(self.call), tensors)
    }
}

impl<C: AnyClient> FetchOnly<C, FetchedSlices> {
    /// Fetches the slices into tensors of the arena, by the names of their tensors. Each has the element type and the shape of its slice.
    /// Where the version has to move, nothing else moves. The rest is as for whole tensors; see [`Fetch::into`].
    pub fn into(self, tensors: BundleMut) -> FetchBundleInto<C> {
        let session = self.call.session().clone();
        FetchBundleInto::of(session, Whole::Parts(self.call), tensors)
    }
}

impl<C: AnyClient> FetchBundleInto<C> {
    fn of(session: Arc<Session>, whole: Whole, tensors: BundleMut) -> Self {
        Request::from_call(FetchBundleIntoCall::new(session, whole, tensors))
    }

    /// Fetches the tensor of this name into a slice of `tensor`, one of those that are fetched into, and not into one of its own name. A
    /// tensor of which slices are named is for what is fetched into these, and keeps its other elements: with it, the three parts of a
    /// fused parameter are fetched into one tensor. Runs of 64 KiB and more that lie in one piece there land in place.
    pub fn at(self, name: &str, tensor: &str, slice: Slice) -> Self {
        self.viewed(name, tensor, Viewed::Slice(slice))
    }

    /// Fetches the tensor of this name into a part of the memory of `tensor`, as [`at`](Self::at) does.
    pub fn at_view(self, name: &str, tensor: &str, view: MemoryView) -> Self {
        self.viewed(name, tensor, Viewed::Memory(view))
    }

    fn viewed(mut self, name: &str, tensor: &str, view: Viewed) -> Self {
        self.call.views.push(ViewOf { name: name.to_owned(), tensor: tensor.to_owned(), view });
        self
    }

    /// Lands as a whole first, in the landing pool or in buckets, and copies when all is there. It costs the copy, and the tensors are
    /// never half new: no [`Error::DestinationTorn`](crate::Error::DestinationTorn) comes of it.
    pub fn staged(mut self) -> Self {
        self.call.is_staged = true;
        self
    }

    /// Keeps the tensors of the bundle that have no name among those that are fetched into: [`FetchedInto::rest`] has them. Of a fetch
    /// of slices there are none.
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
        self.each().iter().map(|(name, landing)| (name.as_str(), *landing))
    }
}
