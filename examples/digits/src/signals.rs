//! How a process is told to end: Ctrl-C, SIGTERM, or its terminal closing.

use crate::error::Error;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a process to end. From the moment this exists they do not kill it any more; it has to end by itself.
#[derive(Debug)]
pub struct Signals([Signal; 3]);

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn listen() -> Result<Signals, Error> {
        let listen = |kind| signal(kind).map_err(Error::io("listen for signals"));
        Ok(Signals([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for any of them.
    pub async fn told_to_end(&mut self) {
        std::future::poll_fn(|context| {
            let told = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if told { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
