//! Calls for landing slots. The control plane carries them with a delay, and sometimes loses them.

use super::{Cluster, Happening};
use crate::fabric::LinkId;
use crate::protocol::{BufferAnswer, BufferAsk};
use rand::Rng;

/// A call in flight.
#[derive(Debug)]
pub(super) enum Call {
    Arrives { from: usize, link: LinkId, to: usize, asks: Vec<BufferAsk> },
    Answered { from: usize, link: LinkId, answers: Vec<BufferAnswer> },
    Failed { from: usize, link: LinkId, asks: Vec<BufferAsk> },
}

impl Cluster {
    fn calling(&mut self, call: Call) {
        let at = self.soon();
        self.later(at, Happening::Calling(call));
    }

    pub(super) fn call_for_slots(&mut self, from: usize, link: LinkId, to: usize, asks: Vec<BufferAsk>) {
        if !self.play.calm && self.rng.random_range(0..10) == 0 {
            return self.calling(Call::Failed { from, link, asks });
        }
        self.calling(Call::Arrives { from, link, to, asks });
    }

    pub(super) fn called(&mut self, call: Call) {
        self.world.note(|| format!("{call:?}"));
        match call {
            Call::Arrives { from, link, to, asks } => match self.pairs.get(&(from, link)) {
                Some((_, theirs)) => {
                    self.next_number += 1;
                    self.calls.insert(self.next_number, (from, link, asks.clone()));
                    self.nodes[to].driver.node.prepare_buffers(*theirs, self.next_number, asks);
                }
                None => self.calling(Call::Failed { from, link, asks }),
            },
            Call::Answered { from, link, answers } => {
                let now = self.clock(from);
                self.nodes[from].driver.node.buffers_prepared(now, link, answers);
            }
            Call::Failed { from, link, asks } => {
                self.nodes[from].driver.node.prepare_failed(link, &asks, "the call was lost");
            }
        }
    }

    pub(super) fn answered(&mut self, token: u64, answers: Vec<BufferAnswer>) -> Result<(), String> {
        let found = self.calls.remove(&token);
        let (from, link, asks) = found.ok_or_else(|| format!("call {token} is answered twice"))?;
        let lost = !self.play.calm && self.rng.random_range(0..10) == 0;
        self.calling(if lost { Call::Failed { from, link, asks } } else { Call::Answered { from, link, answers } });
        Ok(())
    }
}
