//! Records of transfers that have ended, for tracing. Tracing is usually off, and then nothing is recorded.

use crate::protocol::node::Node;
use crate::protocol::snapshot::EndedTransfer;

impl Node {
    /// Turns the recording of ended transfers on or off.
    pub fn trace(&mut self, on: bool) {
        if on != self.ended.is_some() {
            self.ended = on.then(Vec::new);
        }
    }

    /// Takes the transfers that have ended since the last call.
    pub fn take_ended(&mut self) -> impl Iterator<Item = EndedTransfer> {
        self.ended.iter_mut().flat_map(|ended| ended.drain(..))
    }
}
