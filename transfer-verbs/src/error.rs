//! Errors before a work request is posted. A failure after that is a [`Status`](crate::Status).

use std::fmt;
use std::io;

use crate::sys::Unavailable;

/// The reason why an object could not be made, queried or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is missing.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The library, the kernel or the device refused a call.
    #[error("{device}: {call} failed: {why}")]
    Call {
        /// The device, or a name in its place.
        device: String,
        /// The library's function.
        call: &'static str,
        /// The system's error.
        why: io::Error,
    },
    /// The request exceeds a limit of the device.
    #[error("{device}: {asked} asked for, the limit ({limit_name}) is {limit}")]
    Limit {
        /// The device.
        device: String,
        /// The request.
        asked: u64,
        /// The limit's name in `ibv_devinfo -v`.
        limit_name: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Objects of different devices, or domains, cannot work together.
    #[error("{device}: the {what} is of another device or domain")]
    Foreign {
        /// The device of the object that was to be made.
        device: String,
        /// The object that does not belong to it.
        what: &'static str,
    },
    /// The device has no such operation.
    #[error("{device} has no {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// The operation.
        what: &'static str,
    },
}

impl VerbsError {
    /// Makes the error of a call that leaves its error in `errno`.
    pub(crate) fn last(device: &str, call: &'static str) -> Self {
        Self::because(device, call, io::Error::last_os_error())
    }

    /// Makes the error of a call that returns its error.
    pub(crate) fn code(device: &str, call: &'static str, code: libc::c_int) -> Self {
        Self::because(device, call, io::Error::from_raw_os_error(code.abs()))
    }

    pub(crate) fn because(device: &str, call: &'static str, why: io::Error) -> Self {
        Self::Call { device: device.to_owned(), call, why }
    }
}

/// The reason why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The memory may not be written, but the device should write to it.
    #[error("{len_bytes} bytes cannot be registered for writing: they are mapped read-only")]
    ReadOnly {
        /// The requested length.
        len_bytes: usize,
    },
    /// The limit of locked memory.
    #[error(
        "{device}: {len_bytes} bytes cannot be registered: {why}. Registered memory is locked, and this process may lock \
         {limit}. Raise it: `ulimit -l unlimited` in the shell, `LimitMEMLOCK=infinity` in the systemd unit, `--ulimit \
         memlock=-1` for the container"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// The requested length.
        len_bytes: usize,
        /// `RLIMIT_MEMLOCK`.
        limit: LockedLimit,
        /// The system's error.
        why: io::Error,
    },
    /// The device or the kernel refused for another reason.
    #[error("{device}: {len_bytes} bytes cannot be registered: {why}")]
    Refused {
        /// The device.
        device: String,
        /// The requested length.
        len_bytes: usize,
        /// The system's error.
        why: io::Error,
    },
}

impl RegisterError {
    pub(crate) fn new(device: &str, len_bytes: usize, why: io::Error) -> Self {
        let limit = LockedLimit(rustix::process::getrlimit(rustix::process::Resource::Memlock).current);
        Self::judged(device, len_bytes, limit, why)
    }

    fn judged(device: &str, len_bytes: usize, limit: LockedLimit, why: io::Error) -> Self {
        let device = device.to_owned();
        // ib_umem_get of the kernel returns EPERM if nothing may be locked, and ENOMEM if it is too much.
        match why.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) if limit.0.is_some() => {
                Self::LockedMemory { device, len_bytes, limit, why }
            }
            _ => Self::Refused { device, len_bytes, why },
        }
    }
}

/// The limit of locked memory of this process: its `RLIMIT_MEMLOCK`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedLimit(pub Option<u64>);

impl fmt::Display for LockedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes (RLIMIT_MEMLOCK)"),
            None => f.write_str("any amount (RLIMIT_MEMLOCK is unlimited)"),
        }
    }
}

/// A step between two states of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Transition {
    ResetToInit,
    InitToReadyToReceive,
    ReadyToReceiveToReadyToSend,
    AnyToError,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ResetToInit => "RESET to INIT",
            Self::InitToReadyToReceive => "INIT to RTR",
            Self::ReadyToReceiveToReadyToSend => "RTR to RTS",
            Self::AnyToError => "any state to ERR",
        })
    }
}

/// The reason why a queue pair did not change its state: the step, the attribute, and its value.
#[derive(Debug, thiserror::Error)]
#[error("{device}: queue pair {number}, {transition}: {attribute} = {value}: {why}")]
pub struct ModifyError {
    /// The device.
    pub device: String,
    /// The queue pair.
    pub number: u32,
    /// The step.
    pub transition: Transition,
    /// The wrong attribute; the whole step if the attribute is unknown.
    pub attribute: &'static str,
    /// Its value, and the right one if that is known.
    pub value: String,
    /// The system's error.
    pub why: io::Error,
}

/// The reason why the rest of a list was not posted. The part before was posted, and completes.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {queue} took {taken} of {of} work requests: {why}")]
pub struct PostError {
    /// The device.
    pub device: String,
    /// The queue: a queue pair with its number, or a shared receive queue.
    pub queue: String,
    /// The number of posted requests.
    pub taken: usize,
    /// The number of requests.
    pub of: usize,
    /// The system's error: `ENOMEM` for a full queue.
    pub why: io::Error,
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{LockedLimit, RegisterError};

    #[test]
    fn the_locked_memory_limit_is_named_with_what_was_asked_and_what_to_do() {
        let error = RegisterError::judged(
            "rxe0",
            1 << 20,
            LockedLimit(Some(65_536)),
            io::Error::from_raw_os_error(libc::ENOMEM),
        );
        let words = error.to_string();
        for part in [
            "rxe0",
            "1048576 bytes",
            "65536 bytes (RLIMIT_MEMLOCK)",
            "ulimit -l",
            "LimitMEMLOCK=infinity",
            "memlock=-1",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }

    #[test]
    fn another_reason_does_not_blame_the_limit() {
        let of = |limit, code| RegisterError::judged("rxe0", 1, LockedLimit(limit), io::Error::from_raw_os_error(code));
        assert!(matches!(of(Some(0), libc::EFAULT), RegisterError::Refused { .. }));
        assert!(matches!(of(None, libc::ENOMEM), RegisterError::Refused { .. }));
        assert!(matches!(of(Some(0), libc::EPERM), RegisterError::LockedMemory { .. }));
    }
}
