//! Rules that can be broken on purpose, to see that the schedules notice.

/// A rule of the rails that one side breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What a dead rail carried is done again before the peer has confirmed that its end is dead and drained.
    RedoesUnconfirmed,
    /// This side confirms that its end is dead when it is told that the other is, though it is not drained.
    ConfirmsUndrained,
    /// What comes after a striped write does not wait for the shares of the other rails.
    ForgetsFences,
}
