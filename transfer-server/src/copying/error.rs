//! The reasons why a file is not copied here.

use crate::config::Size;
use std::io;
use tonic::{Code, Status};
use transfer_core::op::{Failure, FailureCode};

/// The reason why a file is not copied here. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CopyError {
    /// The sidecar takes no files.
    #[error("this sidecar takes no files: --copy-folder of transferd names a folder for them")]
    Off,
    /// The caller administers another tenant.
    #[error("files are taken of tenant {tenant} here (--copy-tenant), and the caller administers another one")]
    OtherTenant {
        /// The tenant of copies.
        tenant: String,
    },
    /// The path is not valid.
    #[error("the path {path:?} {why}")]
    Path {
        /// The path.
        path: String,
        /// The error, and the requirement.
        why: &'static str,
    },
    /// A value of the call is not valid.
    #[error("{0}")]
    Invalid(String),
    /// A folder of the path does not exist.
    #[error("there is no folder {folder:?} in the folder for copies, and a copy makes none")]
    NoFolder {
        /// The folder.
        folder: String,
    },
    /// A file of that path exists.
    #[error("{path:?} exists already: --overwrite replaces it")]
    Exists {
        /// The path.
        path: String,
    },
    /// Something other than a regular file or a folder is in the way.
    #[error("{path:?} is {what}: only a regular file is replaced, and no link is followed")]
    InTheWay {
        /// The path.
        path: String,
        /// What is there, in words.
        what: &'static str,
    },
    /// Another copy to the same path is under way.
    #[error("another copy to {path:?} is under way")]
    Twice {
        /// The path.
        path: String,
    },
    /// The file is larger than one may be.
    #[error("the file has {bytes} bytes, and --copy-max-bytes is {most}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        most: Size,
    },
    /// The folder is full.
    #[error(
        "the file has {bytes} bytes, and of --copy-total-bytes {most} are used: {used} bytes of files, and {coming} of copies under way"
    )]
    Full {
        /// Its length.
        bytes: u64,
        /// The limit.
        most: Size,
        /// The bytes of files in the folder.
        used: u64,
        /// The bytes of other copies that are under way.
        coming: u64,
    },
    /// The size of the folder is not known.
    #[error("the folder for copies has more than {most} entries, so its size is not looked up: move some of them away")]
    ManyEntries {
        /// The limit.
        most: usize,
    },
    /// Too many copies are under way.
    #[error("{most} copies are under way here, which is --copy-at-once: try again later")]
    TooMany {
        /// The limit.
        most: u32,
    },
    /// Too many copies of one caller are under way.
    #[error(
        "{caller} has {own} copies under way here, and one caller has at most half of --copy-at-once {most}: try again later"
    )]
    TooManyOfOne {
        /// The caller, in words.
        caller: String,
        /// Its copies.
        own: u64,
        /// The limit of all.
        most: u32,
    },
    /// The pieces come too slowly.
    #[error(
        "{came} bytes came in {seconds} s, and a copy that moves less than {least} in that time is over: others wait for its place"
    )]
    Slow {
        /// The bytes that came.
        came: u64,
        /// The least number of bytes.
        least: u64,
        /// The length of the interval.
        seconds: u64,
    },
    /// The pieces would go in the clear.
    #[error(
        "the link to node {node} is over verbs, which is not encrypted, and this sidecar has certificates: --unencrypted allows it, \
         --require tcp of transferd avoids it"
    )]
    InTheClear {
        /// The sender's node.
        node: String,
    },
    /// There is no link to the sender's node.
    #[error("there is no link to node {node}: {why}")]
    NoLink {
        /// The sender's node.
        node: String,
        /// The reason.
        why: String,
    },
    /// A file operation failed.
    #[error("cannot {what} {path:?}: {source}")]
    Disk {
        /// The operation.
        what: &'static str,
        /// The path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is no memory for it.
    #[error("there is no landing pool for the file: {0}")]
    NoPool(String),
    /// A piece did not come.
    #[error("piece {piece} of {pieces} did not come: {failure}")]
    Fetch {
        /// The number of the piece, from 1.
        piece: u64,
        /// The number of pieces.
        pieces: u64,
        /// The reason.
        failure: Failure,
    },
    /// A piece is not as the call said.
    #[error(
        "piece {piece} of {pieces} has {found} bytes and has to have {wanted}: the sender does not do what it said"
    )]
    Piece {
        /// The number of the piece, from 1.
        piece: u64,
        /// The number of pieces.
        pieces: u64,
        /// Its length.
        found: u64,
        /// The expected length.
        wanted: u64,
    },
    /// The written bytes differ from those that the sender read.
    #[error("the bytes that came have the digest {found}, and the sender's have {wanted}")]
    Digest {
        /// The digest of the written bytes.
        found: String,
        /// The sender's digest.
        wanted: String,
    },
    /// The caller has hung up.
    #[error("the caller has hung up")]
    Gone,
    /// The sidecar ends.
    #[error("the sidecar is stopping")]
    Stopping,
    /// A defect.
    #[error("{0}")]
    Internal(String),
}

impl From<CopyError> for Status {
    fn from(error: CopyError) -> Status {
        let code = match &error {
            CopyError::Path { .. } | CopyError::Invalid(_) | CopyError::Piece { .. } => Code::InvalidArgument,
            CopyError::OtherTenant { .. } => Code::PermissionDenied,
            CopyError::NoFolder { .. } => Code::NotFound,
            CopyError::Exists { .. } => Code::AlreadyExists,
            CopyError::Twice { .. } => Code::Aborted,
            CopyError::Off | CopyError::InTheWay { .. } | CopyError::InTheClear { .. } => Code::FailedPrecondition,
            CopyError::TooLarge { .. }
            | CopyError::Full { .. }
            | CopyError::ManyEntries { .. }
            | CopyError::TooMany { .. }
            | CopyError::TooManyOfOne { .. }
            | CopyError::NoPool(_) => Code::ResourceExhausted,
            CopyError::Disk { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
                io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                _ => Code::Internal,
            },
            CopyError::NoLink { .. } | CopyError::Stopping => Code::Unavailable,
            CopyError::Fetch { failure, .. } => match failure.code {
                FailureCode::PermissionDenied => Code::PermissionDenied,
                FailureCode::Deadline | FailureCode::UnknownKey => Code::DeadlineExceeded,
                FailureCode::TooLarge | FailureCode::PoolFull => Code::ResourceExhausted,
                _ => Code::Unavailable,
            },
            CopyError::Slow { .. } => Code::DeadlineExceeded,
            CopyError::Digest { .. } => Code::DataLoss,
            CopyError::Gone => Code::Cancelled,
            CopyError::Internal(_) => Code::Internal,
        };
        Status::new(code, error.to_string())
    }
}
