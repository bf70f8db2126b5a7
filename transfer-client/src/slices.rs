//! Slices of some tensors of a bundle.

use crate::Error;
use crate::face::Face;
use crate::fetch::Fetch;
use crate::part::{FetchOnly, Parts, Wanted};
use crate::{BundleError, FetchedBundle, FetchedSlice};
use std::sync::Arc;
use transfer_core::op::Report;
use transfer_core::tensor::Slice;
use transfer_core::wire::bundle::BundleTable;

/// Slices of tensors of one bundle, all of one version. Each keeps the memory of what it lies in.
#[derive(Debug, Clone)]
pub struct FetchedSlices {
    table: Arc<BundleTable>,
    slices: Vec<FetchedSlice>,
    version: u64,
    report: Report,
}

impl FetchedSlices {
    fn of(parts: Parts) -> Result<FetchedSlices, Error> {
        let Parts { parts, version, report } = parts;
        let (named, slices): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|(name, slice)| ((name, slice.meta().clone()), slice)).unzip();
        let table = BundleTable::new(named).map_err(BundleError::from)?;
        Ok(FetchedSlices { table: Arc::new(table), slices, version: version.0, report })
    }

    /// The slice of the tensor of this name, if it was asked for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FetchedSlice> {
        self.slices.get(self.table.find(name)?)
    }

    /// The names of the tensors and their slices, in the order in which the tensors were pushed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &FetchedSlice)> {
        self.table.entries().iter().map(|entry| entry.name.as_str()).zip(&self.slices)
    }

    /// The number of slices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// The version of the bundle.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The report of the fetch, of all slices together. Its bytes are those of the slices and of the bundle's table.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

impl<F: Face> Fetch<F, FetchedBundle> {
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
    ) -> FetchOnly<F, FetchedSlices> {
        let wanted = |(name, slice): (N, S)| Wanted { name: name.as_ref().to_owned(), slice: slice.into() };
        FetchOnly::new(self, slices.into_iter().map(wanted).collect(), FetchedSlices::of)
    }
}
