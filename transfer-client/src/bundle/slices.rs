//! Slices of some tensors of a bundle.

use super::fetched::FetchedBundle;
use super::only::FetchOnly;
use super::parts::{Landed, Part, Parts, Wanted, boxes_of, packed_bytes, parts, table_of};
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, FetchedSlice};
use crate::gathered::Body;
use crate::request::AnyClient;
use transfer_core::op::{FetchedTensor, Report};
use transfer_core::tensor::{Key, Slice, Version};
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

    /// What these parts are of what has landed.
    pub(crate) fn of_landed(
        wanted: &[Part<'_>],
        landed: &Landed,
        version: Version,
        report: Report,
    ) -> Result<FetchedSlices, Error> {
        let mut parts = Vec::with_capacity(wanted.len());
        for part in wanted {
            let (offset, len, body_len) = (part.entry.offset, part.meta().len_bytes(), landed.body.len);
            let missing = BundleError::OutOfBody { offset, len, body_len };
            parts.push((part.entry.name.clone(), part.take(landed, version, report)?.ok_or(missing)?));
        }
        FetchedSlices::of(Parts { parts, version, report })
    }

    /// What is wanted of a whole version, which is read by reference.
    pub(crate) fn of_whole(
        key: &Key,
        wanted: &[Wanted],
        body: Body,
        tensor: &FetchedTensor,
    ) -> Result<FetchedSlices, Error> {
        let table = table_of(&body, tensor)?;
        if body.len != table.body_len() {
            let (expected_bytes, found_bytes) = (table.body_len(), body.len);
            return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
        }
        let parts = parts(key, &table, wanted)?;
        let bytes = tensor.meta.body_offset() + packed_bytes(&boxes_of(&parts)?);
        let report = Report { bytes, ..tensor.report };
        FetchedSlices::of_landed(&parts, &Landed { body, boxes: None }, tensor.version, report)
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
