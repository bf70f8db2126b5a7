//! The signals that tell a process to end: Ctrl-C, SIGTERM, or its terminal closing.

use crate::error::Error;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a process to end. Once this exists they no longer kill the process; it has to end by itself.
#[derive(Debug)]
pub struct Signals([Signal; 3]);

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn listen() -> Result<Signals, Error> {
        let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
        Ok(Signals([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for any of the signals.
    pub async fn told_to_end(&mut self) {
        std::future::poll_fn(|context| {
            let told = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if told { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
