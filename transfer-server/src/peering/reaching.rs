//! Callers of the control plane that wait for a link.

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use transfer_core::fabric::LinkId;
use transfer_core::tensor::Name;

/// A link, or the reason why there is none.
type Reached = Result<LinkId, String>;

/// The waiting callers, by peer.
#[derive(Debug, Default)]
pub(super) struct Reaching(Mutex<HashMap<Name, Vec<oneshot::Sender<Reached>>>>);

impl Reaching {
    /// Adds a caller. It leaves by dropping the receiver.
    pub(super) fn begin(&self, peer: &Name) -> oneshot::Receiver<Reached> {
        let (tell, told) = oneshot::channel();
        let mut waiting = self.0.lock();
        // Callers that gave up are removed here, so that only those of live calls are kept.
        waiting.retain(|_, callers| {
            callers.retain(|caller| !caller.is_closed());
            !callers.is_empty()
        });
        waiting.entry(peer.clone()).or_default().push(tell);
        told
    }

    /// Answers all callers that wait for this peer.
    pub(super) fn end(&self, peer: &Name, reached: &Reached) {
        for caller in self.0.lock().remove(peer).into_iter().flatten() {
            // The caller may have gone.
            let _ = caller.send(reached.clone());
        }
    }
}
