//! Bases that workers lend: the bytes of a push, as they have them from elsewhere, or others that they take for these.

use super::Cluster;
use super::worker::What;
use crate::op::{Command, Content, Deltas, OpId, Push};
use crate::tensor::Key;
use rand::Rng;

/// What the bytes of a push are known by.
pub(super) fn content_of(number: usize) -> Content {
    Content::of_digest(number as u64)
}

impl Cluster {
    /// Lends the bytes of a push of the key. Four workers in ten are wrong about what they are.
    pub(super) fn lend_base(&mut self, worker: usize, key: &Key) {
        let of_key: Vec<_> = (0..self.pushed.len()).filter(|number| self.pushed[*number].key == *key).collect();
        if of_key.is_empty() {
            return;
        }
        // Mostly one of the last, of which deltas may still be there.
        let last = of_key.len().saturating_sub(4);
        let from = if self.chance(80) { last } else { 0 };
        let number = of_key[self.rng.random_range(from..of_key.len())];
        let named = if self.chance(60) { number } else { of_key[self.rng.random_range(0..of_key.len())] };
        let meta = self.pushed[number].meta.clone();
        let Some(offset) = self.fill(worker, number, &meta) else { return };
        let timeout = self.timeout();
        let op = self.ask(worker, What::Lend { offset }, timeout);
        let (deltas, content) = (Deltas::Base, Some(content_of(named)));
        let push = Push { timeout, deltas, content, ..Push::new(key.clone(), meta, offset) };
        self.command(worker, op, Command::Push(push));
    }

    /// Chooses the base that a fetch names: one that its worker lends, or one that it has lent, or another operation.
    pub(super) fn named_base(&mut self, worker: usize) -> Option<OpId> {
        let w = &self.workers[worker];
        let lends =
            |(op, asked): (&OpId, &super::worker::Asked)| matches!(asked.what, What::Lend { .. }).then_some(*op);
        let lent: Vec<_> = w.ops.iter().filter_map(lends).collect();
        let any = OpId(w.next_op);
        match lent.len() {
            0 => self.chance(10).then_some(any),
            count => Some(lent[self.rng.random_range(0..count)]),
        }
    }
}
