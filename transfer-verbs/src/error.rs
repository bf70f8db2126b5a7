//! What can go wrong before a work request is posted. What goes wrong afterwards is a [`Status`](crate::Status).

use std::fmt;
use std::io;

use crate::sys::Unavailable;

/// Why an object could not be made, asked or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not there.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The library, the kernel or the device refused a call.
    #[error("{device}: {call} failed: {why}")]
    Call {
        /// The device, or what stands in for it where none is involved.
        device: String,
        /// The library's function.
        call: &'static str,
        /// The system's words.
        why: io::Error,
    },
    /// More was asked for than the device has.
    #[error("{device}: {asked} asked for, the limit ({limit_name}) is {limit}")]
    Limit {
        /// The device.
        device: String,
        /// What was asked for.
        asked: u64,
        /// The limit's name in `ibv_devinfo -v`.
        limit_name: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Objects of different devices, or domains, that should work together.
    #[error("{device}: the {what} is of another device or domain")]
    Foreign {
        /// The device of the object that was to be made.
        device: String,
        /// What does not belong to it.
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
    /// A call that leaves its error in `errno`.
    pub(crate) fn last(device: &str, call: &'static str) -> Self {
        Self::because(device, call, io::Error::last_os_error())
    }

    /// A call that returns its error.
    pub(crate) fn code(device: &str, call: &'static str, code: libc::c_int) -> Self {
        Self::because(device, call, io::Error::from_raw_os_error(code.abs()))
    }

    pub(crate) fn because(device: &str, call: &'static str, why: io::Error) -> Self {
        Self::Call { device: device.to_owned(), call, why }
    }
}

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The memory may not be written, but the device should write to it.
    #[error("{len_bytes} bytes cannot be registered for writing: they are mapped read-only")]
    ReadOnly {
        /// How much was asked for.
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
        /// How much was asked for.
        len_bytes: usize,
        /// `RLIMIT_MEMLOCK`.
        limit: LockedLimit,
        /// The system's words.
        why: io::Error,
    },
    /// The device or the kernel refused for another reason.
    #[error("{device}: {len_bytes} bytes cannot be registered: {why}")]
    Refused {
        /// The device.
        device: String,
        /// How much was asked for.
        len_bytes: usize,
        /// The system's words.
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
        // ib_umem_get of the kernel: EPERM where nothing may be locked, ENOMEM where it is too much.
        match why.raw_os_error() {
            Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) if limit.0.is_some() => {
                Self::LockedMemory { device, len_bytes, limit, why }
            }
            _ => Self::Refused { device, len_bytes, why },
        }
    }
}

/// How much memory this process may lock: its `RLIMIT_MEMLOCK`.
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

/// Why a queue pair did not change its state: which step, which attribute, with which value.
#[derive(Debug, thiserror::Error)]
#[error("{device}: queue pair {number}, {transition}: {attribute} = {value}: {why}")]
pub struct ModifyError {
    /// The device.
    pub device: String,
    /// The queue pair.
    pub number: u32,
    /// The step.
    pub transition: Transition,
    /// The attribute that is wrong; all of the step where it cannot be told.
    pub attribute: &'static str,
    /// Its value, and what would be right where that is known.
    pub value: String,
    /// The system's words.
    pub why: io::Error,
}

/// Why the rest of a list was not posted. What comes before it was, and completes.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {queue} took {taken} of {of} work requests: {why}")]
pub struct PostError {
    /// The device.
    pub device: String,
    /// What should have taken them: a queue pair with its number, or a shared receive queue.
    pub queue: String,
    /// How many were taken.
    pub taken: usize,
    /// How many there were.
    pub of: usize,
    /// The system's words: `ENOMEM` for a full queue.
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
