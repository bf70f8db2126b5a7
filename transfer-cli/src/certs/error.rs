//! Errors of certificates.

use std::io;
use std::path::PathBuf;
use transfer_terminal::exit::Exit;

/// The reason why certificates were not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertsError {
    /// A node is named twice.
    #[error("--node {name} is given twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A file would be overwritten.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be made, read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// One of the two files of the authority exists without the other.
    #[error("{} is there, and {} is not", there.display(), missing.display())]
    HalfOfAuthority {
        /// The file that exists.
        there: PathBuf,
        /// The missing file.
        missing: PathBuf,
    },
    /// The existing authority cannot sign.
    #[error("the authority of {} cannot sign: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A certificate cannot be made.
    #[error("cannot make the certificate of {name}")]
    Make {
        /// Its node, or the authority.
        name: String,
        /// The cause.
        source: rcgen::Error,
    },
}

impl CertsError {
    /// The exit status of the program.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            CertsError::Twice { .. } => Exit::InvalidArguments,
            _ => Exit::Failed,
        }
    }

    /// The advice, if there is any.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let text = match self {
            CertsError::Twice { .. } => "Give all its names at once: --node NAME=HOST,HOST.",
            CertsError::Exists { .. } => {
                "Nothing was overwritten. Remove the .pem and .key of that node to make new ones, or give another --out."
            }
            CertsError::HalfOfAuthority { .. } => {
                "The authority signs with both files. Put the other one back, or give another --out for a new authority."
            }
            CertsError::Authority { .. } => "Give another --out, where a new authority is made.",
            _ => return None,
        };
        Some(text.to_owned())
    }
}
