//! What can go wrong with files.

use super::safetensors::BadHeader;
use std::io;
use std::path::{Path, PathBuf};
use transfer_client::{DType, TensorMeta};
use transfer_core::tensor::InvalidName;
use transfer_terminal::exit::Exit;
use transfer_terminal::units::bytes;

/// Why a file was not published, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that is no file.
    #[error("{} is {what}, and not a regular file", path.display())]
    NotRegular {
        /// Where it is.
        path: PathBuf,
        /// What it is, in words.
        what: &'static str,
    },
    /// A file that would be overwritten.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Somebody wrote to a file while it was read.
    #[error("{} has changed while it was read: it had {before} bytes, now it has {now}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length at first, in bytes.
        before: u64,
        /// Its length now, in bytes.
        now: u64,
    },
    /// A file that does not hold what the command line says.
    #[error("{} has {found_bytes} bytes, and {meta} takes {}", path.display(), meta.len_bytes())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        meta: Box<TensorMeta>,
        /// What it holds, in bytes.
        found_bytes: u64,
    },
    /// A file whose length is no number of elements.
    #[error("{} has {found_bytes} bytes, which is no whole number of {dtype} elements", path.display())]
    FileElements {
        /// The file.
        path: PathBuf,
        /// The element type.
        dtype: DType,
        /// What it holds, in bytes.
        found_bytes: u64,
    },
    /// A file that should be one of safetensors.
    #[error("{} is no safetensors file that can be published", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<BadHeader>,
    },
    /// Texts beside tensors that are none.
    #[error("{key:?} should hold the texts of a safetensors file, and does not")]
    Metadata {
        /// The key.
        key: String,
        /// Why not.
        source: serde_json::Error,
    },
    /// A key that none can be.
    #[error("{} cannot be published: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with the key, which is told by how it begins.
        source: InvalidName,
    },
    /// A name that no key can have.
    #[error("{} cannot be published under a key of its own name: {why}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Two things that would have one key.
    #[error("there are two for the key {name:?}")]
    Twice {
        /// The key.
        name: String,
    },
    /// Two keys that would have one file, or one a file where the other has a directory.
    #[error("two of the keys would be written to {name:?}")]
    TwoKeys {
        /// The file's name.
        name: String,
    },
    /// Something that is no regular file where one shall be written.
    #[error("{} is {what}, and nothing is written there", path.display())]
    InTheWay {
        /// Where it is.
        path: PathBuf,
        /// What it is, in words.
        what: &'static str,
    },
    /// A key that no file can have the name of.
    #[error("the key {key:?} cannot be the name of a file below a directory: {why}")]
    UnsafeKey {
        /// The key.
        key: String,
        /// Why not.
        why: &'static str,
    },
    /// Words on the command line that do not go together.
    #[error("{0}")]
    Use(String),
    /// Nothing to do.
    #[error("{0}")]
    Nothing(String),
    /// More than the arena can hold, with nobody who would make room.
    #[error("{} do not fit into an arena of {}, and nothing would ever make room in it", bytes(*wanted_bytes), bytes(*arena_bytes))]
    TooMuch {
        /// All tensors together, in bytes.
        wanted_bytes: u64,
        /// The arena, in bytes.
        arena_bytes: u64,
    },
    /// A tensor is another one than the list says.
    #[error("{key:?} was {listed} when it was listed, and is {found} now")]
    Replaced {
        /// The key.
        key: String,
        /// What the list says.
        listed: Box<TensorMeta>,
        /// What was fetched.
        found: Box<TensorMeta>,
    },
    /// A list of pieces without some of them.
    #[error("not all pieces of {key:?} are published, so nobody can fetch it")]
    NotAllPieces {
        /// The key.
        key: String,
    },
    /// What begins as a list of pieces and is none.
    #[error("{key:?} should be a list of pieces, and is not: {why}")]
    NotPieces {
        /// The key.
        key: String,
        /// Why not.
        why: String,
    },
    /// A piece is another one than the list says: a newer version was pushed meanwhile.
    #[error("piece {piece:?} of version {version} of {key:?} is not there any more, or is another one")]
    PieceGone {
        /// The key.
        key: String,
        /// Its version.
        version: u64,
        /// The key of the piece.
        piece: String,
    },
    /// A file of digests that is none.
    #[error("line {line} of {} is no digest: 64 hexadecimal digits, two spaces and a key in quotes", path.display())]
    NotDigests {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// A key whose digest nobody has written down.
    #[error("there is no digest for {key:?} to check it with")]
    NoDigest {
        /// The key.
        key: String,
    },
    /// The bytes are others than they should be.
    #[error("{key:?} is NOT what it should be: its BLAKE3 digest is {found}, and should be {wanted}")]
    NotVerified {
        /// The key.
        key: String,
        /// What it should be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// A signal came first.
    #[error("interrupted; nothing of it stays")]
    Interrupted,
    /// Some failed, as was said for each.
    #[error("{failed} of {all} failed")]
    Some {
        /// How many.
        failed: usize,
        /// How many there are.
        all: usize,
        /// What became of the others: all failed where there is one.
        exit: Exit,
    },
}

impl FilesError {
    /// How the program ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            FilesError::FileLength { .. }
            | FilesError::FileElements { .. }
            | FilesError::Use(_)
            | FilesError::TooMuch { .. }
            | FilesError::Key { .. }
            | FilesError::NotDigests { .. } => Exit::WrongUse,
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

    /// What to do next, where there is something.
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
                "--skip-special leaves out what is no regular file."
            }
            FilesError::Exists { .. } => "--force replaces it.",
            FilesError::Changed { .. } => {
                "Push it again when nobody writes to it, or push a copy. What has its name now is not what was published."
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
            FilesError::PieceGone { .. } => "A newer version was pushed meanwhile: fetch it again when that is done.",
            FilesError::Replaced { .. } => "Fetch them again when nobody publishes new versions.",
            FilesError::NoDigest { .. } => "`transferctl push --write-digests FILE` writes them down.",
            FilesError::NotVerified { .. } => {
                "Do not use it. Push the file again, and look at the memory and the disks of both hosts."
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}
