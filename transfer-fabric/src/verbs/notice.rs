//! The fabric's own messages. They carry an immediate, which the user's messages never do.

use transfer_core::fabric::DownReason;

/// The longest reason that the peer is told, in bytes.
pub(super) const MAX_REASON_BYTES: usize = 512;

/// The kind of a message of the fabric itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The initiator can receive.
    Hello,
    /// The sender ends the link in good order. The message contains the reason.
    Bye,
    /// The sender ends the link because of a mistake of the receiver. The message names the mistake.
    Refuse,
}

impl Notice {
    pub(super) fn number(self) -> u32 {
        match self {
            Notice::Hello => 1,
            Notice::Bye => 2,
            Notice::Refuse => 3,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Notice> {
        [Notice::Hello, Notice::Bye, Notice::Refuse].into_iter().find(|notice| notice.number() == number)
    }
}

/// Returns the notice that tells the peer that the link ends for this reason. Returns `None` if the peer need not or
/// cannot be told.
pub(super) fn goodbye(reason: &DownReason) -> Option<(Notice, &str)> {
    let (notice, text) = match reason {
        DownReason::Closed(text) => (Notice::Bye, text),
        DownReason::Violation(text) => (Notice::Refuse, text),
        _ => return None,
    };
    Some((notice, cut(text)))
}

/// Returns the beginning of a text, up to the length that a notice carries.
fn cut(text: &str) -> &str {
    let end = (0..=MAX_REASON_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_round_trip_and_reasons_are_cut_between_letters() {
        for notice in [Notice::Hello, Notice::Bye, Notice::Refuse] {
            assert_eq!(Notice::from_number(notice.number()), Some(notice));
        }
        assert_eq!(Notice::from_number(0), None);
        let long = DownReason::Closed(format!("a{}", "ä".repeat(1000)));
        let (notice, text) = goodbye(&long).unwrap();
        assert_eq!((notice, text.len()), (Notice::Bye, MAX_REASON_BYTES - 1));
        assert_eq!(goodbye(&DownReason::Violation("x".into())), Some((Notice::Refuse, "x")));
        assert_eq!(goodbye(&DownReason::Lost("x".into())), None);
    }
}
