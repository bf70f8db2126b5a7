//! Errors of bundles.

use transfer_core::tensor::{InvalidExcerpt, TensorMeta};
use transfer_core::wire::bundle::InvalidBundle;

/// An error of a bundle, or of data that claims to be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The table of names and shapes is not valid.
    #[error(transparent)]
    Table(#[from] InvalidBundle),
    /// The fetched version is not a bundle.
    #[error("{meta} is no bundle: fetch it with fetch(), or with fetch_table() if it is record batches")]
    NotABundle {
        /// The description of the version.
        meta: TensorMeta,
    },
    /// The tensors of the table do not fill the body.
    #[error("the tensors of the bundle have {expected_bytes} bytes, its body has {found_bytes}")]
    WrongLength {
        /// The length that follows from the table, in bytes.
        expected_bytes: u64,
        /// The length of the body, in bytes.
        found_bytes: u64,
    },
    /// The version has no tensor of this name.
    #[error("the bundle has no tensor {name:?}")]
    NoSuchTensor {
        /// The name.
        name: String,
    },
    /// Two slices of one tensor are asked for with one fetch.
    #[error("tensor {name:?} of the bundle is asked for with two slices: make a fetch for each")]
    NamedTwice {
        /// The name.
        name: String,
    },
    /// The boxes of some tensors cannot be asked for.
    #[error(transparent)]
    Excerpt(#[from] InvalidExcerpt),
    /// A tensor cannot be taken back, because this process may still read its memory. Its version stays published.
    #[error(
        "{name:?} of the bundle, {meta}, cannot be taken back: this process still holds its memory, as a frozen tensor or \
         an array of it, or it was pushed a second time; the version stays published"
    )]
    NotAlone {
        /// The tensor's name.
        name: String,
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// A tensor does not lie in the body, or not in one piece.
    #[error("{len} bytes at {offset} are no tensor of a body of {body_len} bytes")]
    OutOfBody {
        /// Its offset in the body, in bytes.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
        /// The length of the body, in bytes.
        body_len: u64,
    },
}
