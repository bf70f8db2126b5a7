//! The statuses of work requests that failed.

use std::fmt;

use rdma_sys::ibv_wc_status::*;

macro_rules! statuses {
    ($($name:ident = $code:ident, $words:literal, $hint:literal;)*) => {
        /// The reason why a work request failed: `enum ibv_wc_status` without success.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Status {
            $(#[doc = concat!("`", stringify!($code), "`: ", $hint)] $name,)*
            /// A code that this crate does not know.
            Unknown(u32),
        }

        impl Status {
            /// Every status that has a name.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Converts the device's code; `None` for success.
            pub(crate) fn from_code(code: u32) -> Option<Self> {
                match code {
                    IBV_WC_SUCCESS => None,
                    $($code => Some(Self::$name),)*
                    other => Some(Self::Unknown(other)),
                }
            }

            /// Returns the code in `enum ibv_wc_status`.
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }

            /// Returns the words that libibverbs uses.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                    Self::Unknown(_) => "unknown",
                }
            }

            /// Returns the usual meaning.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $hint,)*
                    Self::Unknown(_) => "a status that this program does not know",
                }
            }
        }
    };
}

statuses! {
    LocalLength = IBV_WC_LOC_LEN_ERR, "local length error",
        "a message did not fit the receive, or was longer than the port's largest";
    LocalQueuePairOperation = IBV_WC_LOC_QP_OP_ERR, "local QP operation error",
        "the device could not carry out the work request as it was posted";
    LocalEeContextOperation = IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error",
        "only for reliable datagrams, which no device has";
    LocalProtection = IBV_WC_LOC_PROT_ERR, "local protection error",
        "an element of the gather list is not within a live region";
    Flushed = IBV_WC_WR_FLUSH_ERR, "Work Request Flushed Error",
        "the queue pair was already in error, so this was not carried out";
    WindowBind = IBV_WC_MW_BIND_ERR, "memory management operation error",
        "a window could not be bound or invalidated as asked";
    BadResponse = IBV_WC_BAD_RESP_ERR, "bad response error",
        "the peer's device answered with something unexpected";
    LocalAccess = IBV_WC_LOC_ACCESS_ERR, "local access error",
        "a write arrived that the local memory does not allow";
    RemoteInvalidRequest = IBV_WC_REM_INV_REQ_ERR, "remote invalid request error",
        "the peer's device does not accept this operation, or its receive was too short";
    RemoteAccess = IBV_WC_REM_ACCESS_ERR, "remote access error",
        "the remote key does not open that range: taken back, never granted, or out of bounds";
    RemoteOperation = IBV_WC_REM_OP_ERR, "remote operation error",
        "the peer's device could not carry it out";
    TransportRetriesExceeded = IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded",
        "the peer's device did not answer: it is gone, unreachable, or its queue pair is in error";
    ReceiverNotReadyRetriesExceeded = IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded",
        "the peer had no receive posted";
    LocalRddViolation = IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error",
        "only for reliable datagrams, which no device has";
    RemoteInvalidReadRequest = IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request",
        "only for reliable datagrams, which no device has";
    RemoteAborted = IBV_WC_REM_ABORT_ERR, "aborted error",
        "the peer aborted the operation";
    InvalidEeContextNumber = IBV_WC_INV_EECN_ERR, "invalid EE context number",
        "only for reliable datagrams, which no device has";
    InvalidEeContextState = IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state",
        "only for reliable datagrams, which no device has";
    Fatal = IBV_WC_FATAL_ERR, "fatal error",
        "the device has failed";
    ResponseTimeout = IBV_WC_RESP_TIMEOUT_ERR, "response timeout error",
        "the peer's device did not answer in time";
    General = IBV_WC_GENERAL_ERR, "general error",
        "the device does not say more";
    TagMatching = IBV_WC_TM_ERR, "TM error",
        "only for tag matching, which is not used here";
    TagMatchingIncomplete = IBV_WC_TM_RNDV_INCOMPLETE, "TM software rendezvous",
        "only for tag matching, which is not used here";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.words(), self.code(), self.meaning())
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn every_code_has_its_own_status_and_round_trips() {
        for code in 1..=23 {
            let status = Status::from_code(code).expect("not success");
            assert!(!matches!(status, Status::Unknown(_)), "{code}");
            assert_eq!(status.code(), code);
        }
        assert_eq!(Status::ALL.len(), 23);
        assert_eq!(Status::from_code(0), None);
        assert_eq!(Status::from_code(99), Some(Status::Unknown(99)));
    }

    #[test]
    fn the_words_name_the_code_and_the_meaning() {
        assert_eq!(
            Status::RemoteAccess.to_string(),
            "remote access error (10): the remote key does not open that range: taken back, never granted, or out of bounds"
        );
    }
}
