//! Errors of files.

use super::safetensors::BadHeader;
use std::io;
use std::path::{Path, PathBuf};
use transfer_client::{DType, TensorMeta};
use transfer_core::tensor::InvalidName;
use transfer_terminal::exit::Exit;
use transfer_terminal::units::bytes;

/// The reason why a file was not published, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is no regular file.
    #[error("{} is {what}, and not a regular file", path.display())]
    NotRegular {
        /// Its path.
        path: PathBuf,
        /// Its kind, in words.
        what: &'static str,
    },
    /// A file would be overwritten.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file was changed while it was read.
    #[error("{} has changed while it was read: it had {before} bytes, now it has {now}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length at first, in bytes.
        before: u64,
        /// Its length now, in bytes.
        now: u64,
    },
    /// The length of a file does not match the command line.
    #[error("{} has {found_bytes} bytes, and {meta} takes {}", path.display(), meta.len_bytes())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// The expected description.
        meta: Box<TensorMeta>,
        /// Its length, in bytes.
        found_bytes: u64,
    },
    /// The length of a file is no multiple of the element size.
    #[error("{} has {found_bytes} bytes, which is no whole number of {dtype} elements", path.display())]
    FileElements {
        /// The file.
        path: PathBuf,
        /// The element type.
        dtype: DType,
        /// Its length, in bytes.
        found_bytes: u64,
    },
    /// A file is no valid safetensors file.
    #[error("{} is no safetensors file that can be published", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<BadHeader>,
    },
    /// The metadata of a safetensors file is not valid.
    #[error("{key:?} should hold the texts of a safetensors file, and does not")]
    Metadata {
        /// The key.
        key: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// The key is not valid.
    #[error("{} cannot be published: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The error, with the beginning of the key.
        source: InvalidName,
    },
    /// A file's name cannot be a key.
    #[error("{} cannot be published under a key of its own name: {why}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Two tensors would have one key.
    #[error("there are two for the key {name:?}")]
    Twice {
        /// The key.
        name: String,
    },
    /// Two keys would have one file, or one a file where the other has a directory.
    #[error("two of the keys would be written to {name:?}")]
    TwoKeys {
        /// The file's name.
        name: String,
    },
    /// A file cannot be written because there is something else.
    #[error("{} is {what}, and nothing is written there", path.display())]
    InTheWay {
        /// Its path.
        path: PathBuf,
        /// Its kind, in words.
        what: &'static str,
    },
    /// A key cannot be the name of a file.
    #[error("the key {key:?} cannot be the name of a file below a directory: {why}")]
    UnsafeKey {
        /// The key.
        key: String,
        /// The reason.
        why: &'static str,
    },
    /// Arguments contradict each other.
    #[error("{0}")]
    Use(String),
    /// There is nothing to do.
    #[error("{0}")]
    Nothing(String),
    /// The tensors exceed the arena, and nothing would make room.
    #[error("{} do not fit into an arena of {}, and nothing would ever make room in it", bytes(*wanted_bytes), bytes(*arena_bytes))]
    TooMuch {
        /// All tensors together, in bytes.
        wanted_bytes: u64,
        /// The arena, in bytes.
        arena_bytes: u64,
    },
    /// A tensor is not the one that was listed.
    #[error("{key:?} was {listed} when it was listed, and is {found} now")]
    Replaced {
        /// The key.
        key: String,
        /// The listed description.
        listed: Box<TensorMeta>,
        /// The fetched description.
        found: Box<TensorMeta>,
    },
    /// Some pieces of a list are missing.
    #[error("not all pieces of {key:?} are published, so nobody can fetch it")]
    NotAllPieces {
        /// The key.
        key: String,
    },
    /// A tensor begins like a list of pieces, but is not valid.
    #[error("{key:?} should be a list of pieces, and is not: {why}")]
    NotPieces {
        /// The key.
        key: String,
        /// The reason.
        why: String,
    },
    /// A slice is asked for of a tensor in pieces.
    #[error("{key:?} was pushed in pieces, and only all of it can be fetched")]
    SliceOfPieces {
        /// The key.
        key: String,
    },
    /// A piece is not the listed one, because a newer version was pushed meanwhile.
    #[error("piece {piece:?} of version {version} of {key:?} is not there any more, or is another one")]
    PieceGone {
        /// The key.
        key: String,
        /// Its version.
        version: u64,
        /// The key of the piece.
        piece: String,
    },
    /// A file of digests is not valid.
    #[error("line {line} of {} is no digest: 64 hexadecimal digits, two spaces and a key in quotes", path.display())]
    NotDigests {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// There is no digest of a key.
    #[error("there is no digest for {key:?} to check it with")]
    NoDigest {
        /// The key.
        key: String,
    },
    /// The bytes differ from the expected ones.
    #[error("digest mismatch: key {key:?} has the BLAKE3 digest {found}, and should have {wanted}")]
    NotVerified {
        /// The key.
        key: String,
        /// The expected digest.
        wanted: String,
        /// The actual digest.
        found: String,
    },
    /// A signal has interrupted it.
    #[error("interrupted; nothing of it stays")]
    Interrupted,
    /// Some failed. Each was reported.
    #[error("{failed} of {all} failed")]
    Some {
        /// The number of failures.
        failed: usize,
        /// The number of tensors.
        all: usize,
        /// The exit status: that of the failures if they share one.
        exit: Exit,
    },
}

impl FilesError {
    /// The exit status of the program.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            FilesError::FileLength { .. }
            | FilesError::FileElements { .. }
            | FilesError::Use(_)
            | FilesError::TooMuch { .. }
            | FilesError::SliceOfPieces { .. }
            | FilesError::Key { .. }
            | FilesError::NotDigests { .. } => Exit::InvalidArguments,
            FilesError::Nothing(_) | FilesError::PieceGone { .. } => Exit::NotFound,
            FilesError::NotVerified { .. } | FilesError::NoDigest { .. } => Exit::NotVerified,
            FilesError::Interrupted => Exit::Interrupted,
            FilesError::Some { exit, .. } => *exit,
            FilesError::File { what: "write", path, source }
                if path == Path::new("-") && source.kind() == io::ErrorKind::BrokenPipe =>
            {
                Exit::ReaderGone
            }
            _ => Exit::Failed,
        }
    }

    /// The advice, if there is any.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let text = match self {
            FilesError::FileLength { .. } | FilesError::FileElements { .. } => {
                "Give --dtype and --shape as the file was written, or neither, for its plain bytes."
            }
            FilesError::File { what: "write", source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "Make room there, or write elsewhere; nothing of the file is left."
            }
            FilesError::NotRegular { what: "a pipe" | "a device", .. } => {
                "`-` reads the standard input: transferctl push KEY - < FILE."
            }
            FilesError::NotRegular { what: "a symbolic link" | "a socket", .. } => {
                "--skip-special skips everything that is no regular file."
            }
            FilesError::Exists { .. } => "--force replaces it.",
            FilesError::Changed { .. } => {
                "Push it again when no process writes to it, or push a copy. The file now differs from what was published."
            }
            FilesError::Header { source, .. } if matches!(**source, BadHeader::DType { .. }) => {
                "As plain bytes any file can be published: --format raw."
            }
            FilesError::Header { .. } => "Write it again. As plain bytes any file can be published: --format raw.",
            FilesError::Name { .. } => "Rename it; a key has 1 to 512 bytes of UTF-8.",
            FilesError::Key { .. } => {
                "Give a shorter key or --prefix; both together with the file's name have 512 bytes at most."
            }
            FilesError::Twice { .. } => {
                "Give each file, or each directory, a --prefix of its own in a push of its own."
            }
            FilesError::TwoKeys { .. } => "Fetch one of the two by itself: transferctl fetch KEY FILE.",
            FilesError::InTheWay { .. } => "Remove it, or fetch into another directory.",
            FilesError::UnsafeKey { .. } => "Fetch that one by itself: transferctl fetch KEY FILE.",
            FilesError::TooMuch { .. } => {
                "Give a larger --arena-bytes, or none; or say what makes room: --to WORKER, or --until fetched:N."
            }
            FilesError::SliceOfPieces { .. } => {
                "Fetch it without --slice; or push it from an arena that holds all of it."
            }
            FilesError::PieceGone { .. } => "A newer version was pushed meanwhile: fetch it again when that is done.",
            FilesError::Replaced { .. } => "Fetch them again when no new versions are published.",
            FilesError::NoDigest { .. } => "`transferctl push --write-digests FILE` writes them down.",
            FilesError::NotVerified { .. } => {
                "Do not use it. Push the file again, and look at the memory and the disks of both hosts."
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}
