//! Slices of some tensors of a bundle.

use super::fetched::FetchedBundle;
use super::only::FetchOnly;
use super::parts::{Parts, Wanted};
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchedSlice};
use crate::request::AnyClient;
use transfer_core::tensor::Slice;
use transfer_core::wire::bundle::BundleTable;

/// Slices of tensors of one bundle, all of one version. The bytes of the report are those of the slices and of the
/// bundle's table.
pub type FetchedSlices = FetchedBundle<FetchedSlice>;

impl FetchedSlices {
    fn of(parts: Parts) -> Result<FetchedSlices, Error> {
        let Parts { parts, version, report } = parts;
        let (named, slices): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|(name, slice)| ((name, slice.meta().clone()), slice)).unzip();
        let table = BundleTable::new(named).map_err(BundleError::from)?;
        Ok(FetchedBundle::new(table, slices, version, report))
    }
}

impl<C: AnyClient> Fetch<C, FetchedBundle> {
    /// Fetches only these slices of the tensors of these names; [`s!`](crate::s) makes one, and `None` is all of a
    /// tensor. Where the version has to move, nothing moves but the bundle's table and these slices, and the report
    /// counts only them. Where it lies on this host, they are views of it and no byte moves.
    ///
    /// The call fails with [`BundleError::NoSuchTensor`] if the version has no tensor of one of the names, with
    /// [`BundleError::NamedTwice`] for two slices of one tensor, and with [`FailureCode::Invalid`](crate::FailureCode)
    /// for a slice that does not fit its tensor. A version that is kept until it is fetched a number of times can only be
    /// fetched as a whole.
    pub fn slices<N: AsRef<str>, S: Into<Option<Slice>>>(
        self,
        slices: impl IntoIterator<Item = (N, S)>,
    ) -> FetchOnly<C, FetchedSlices> {
        let wanted = |(name, slice): (N, S)| Wanted { name: name.as_ref().to_owned(), slice: slice.into() };
        FetchOnly::new(self, slices.into_iter().map(wanted).collect(), FetchedSlices::of)
    }
}
