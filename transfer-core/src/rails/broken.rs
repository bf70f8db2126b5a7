//! Rules that tests can break on purpose, to check that the simulated schedules notice.

/// A rule of the rails that one side breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// This side posts the work of a dead rail again before the peer has confirmed that its end is dead and drained.
    RedoesUnconfirmed,
    /// This side confirms that its end is dead as soon as the peer reports the other end dead, although its own is not
    /// drained.
    ConfirmsUndrained,
    /// Posts behind a striped write do not wait for the shares of the other rails.
    ForgetsFences,
}
