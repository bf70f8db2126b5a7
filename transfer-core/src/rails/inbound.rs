//! Restores the order in which the peer posted its messages and immediates.

use crate::fabric::{FabricEvent, LinkId};
use std::collections::{BTreeMap, VecDeque};

/// An arrival that is in the link's order.
#[derive(Debug)]
enum Held {
    Message(Box<[u8]>),
    Immediate { value: u32, len_bytes: u64, copied: u64 },
    Wait { first: u64, count: u8 },
}

#[derive(Debug)]
pub(super) struct Inbound {
    /// The rail on which the peer's messages and immediates arrive.
    pub(super) lead: usize,
    /// All fences below this number have passed.
    passed: u64,
    /// The next fence that a WAIT may name.
    next_fence: u64,
    /// Fences that have arrived before the WAIT for them was processed, each with the bytes that a processor copied for
    /// it.
    fences: BTreeMap<u64, u64>,
    held: VecDeque<Held>,
    /// The limit for held arrivals, and for the range of fences above `passed`. A peer that exceeds it has used receive
    /// slots that it does not have.
    bound: usize,
    /// The number of bytes copied for shares since the last immediate.
    copied: u64,
}

impl Inbound {
    pub(super) fn new(bound: usize) -> Inbound {
        let (fences, held) = (BTreeMap::new(), VecDeque::new());
        Inbound { lead: 0, passed: 0, next_fence: 0, fences, held, bound, copied: 0 }
    }

    fn hold(&mut self, what: Held) -> Result<(), String> {
        if self.held.len() >= self.bound {
            return Err(format!("it sends more than {} messages before what they wait for", self.bound));
        }
        self.held.push_back(what);
        Ok(())
    }

    /// Returns whether an arrival can be delivered at once.
    pub(super) fn is_clear(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn message(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.hold(Held::Message(bytes.into()))
    }

    pub(super) fn immediate(&mut self, value: u32, len_bytes: u64, copied: u64) -> Result<(), String> {
        self.hold(Held::Immediate { value, len_bytes, copied })
    }

    pub(super) fn wait(&mut self, first: u64, count: u8) -> Result<(), String> {
        if first != self.next_fence || count == 0 {
            return Err(format!("it waits for {count} fences from {first}, and {} is the next", self.next_fence));
        }
        self.next_fence = first.saturating_add(count.into());
        self.hold(Held::Wait { first, count })
    }

    pub(super) fn fence(&mut self, number: u64, copied: u64) -> Result<(), String> {
        let known = self.passed..self.passed.saturating_add(self.bound as u64);
        if !known.contains(&number) {
            return Err(format!("fence {number} cannot be: {known:?} can"));
        }
        match self.fences.insert(number, copied) {
            None => Ok(()),
            Some(_) => Err(format!("fence {number} comes twice")),
        }
    }

    /// Returns and resets the number of bytes that a processor copied for shares whose fences have passed.
    pub(super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Delivers the held arrivals up to the first WAIT whose fences are missing.
    pub(super) fn deliver(&mut self, link: LinkId, sink: &mut dyn FnMut(FabricEvent<'_>)) {
        while let Some(front) = self.held.front() {
            match front {
                Held::Message(bytes) => sink(FabricEvent::Message { link, bytes }),
                Held::Immediate { value, len_bytes, copied } => {
                    let copied = copied.saturating_add(std::mem::take(&mut self.copied));
                    sink(FabricEvent::Immediate { link, value: *value, len_bytes: *len_bytes, copied });
                }
                Held::Wait { first, count } => {
                    let fences = *first..first.saturating_add((*count).into());
                    if !fences.clone().all(|number| self.fences.contains_key(&number)) {
                        return;
                    }
                    self.passed = fences.end;
                    for number in fences {
                        self.copied = self.copied.saturating_add(self.fences.remove(&number).unwrap_or(0));
                    }
                }
            }
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(inbound: &mut Inbound) -> Vec<String> {
        let mut out = Vec::new();
        inbound.deliver(LinkId(1), &mut |event| match event {
            FabricEvent::Message { bytes, .. } => out.push(String::from_utf8_lossy(bytes).into_owned()),
            FabricEvent::Immediate { value, copied, .. } => out.push(format!("{value}, {copied} copied")),
            other => panic!("{other:?}"),
        });
        out
    }

    #[test]
    fn arrivals_behind_a_fence_are_held_back() {
        let mut inbound = Inbound::new(16);
        inbound.message(b"a").unwrap();
        inbound.wait(0, 2).unwrap();
        inbound.immediate(7, 64, 1).unwrap();
        inbound.message(b"b").unwrap();
        inbound.wait(2, 1).unwrap();
        inbound.message(b"c").unwrap();
        assert_eq!(delivered(&mut inbound), ["a"]);
        // Fences may arrive in any order, also before the WAIT for them.
        inbound.fence(1, 100).unwrap();
        inbound.fence(2, 50).unwrap();
        assert!(delivered(&mut inbound).is_empty());
        inbound.fence(0, 10).unwrap();
        assert_eq!(delivered(&mut inbound), ["7, 111 copied", "b", "c"]);
        assert!(inbound.is_clear() && inbound.fences.is_empty());
    }

    #[test]
    fn invalid_waits_and_fences_are_refused() {
        let mut inbound = Inbound::new(4);
        assert!(inbound.wait(1, 1).is_err());
        assert!(inbound.wait(0, 0).is_err());
        assert!(inbound.fence(4, 0).is_err());
        inbound.fence(3, 0).unwrap();
        assert!(inbound.fence(3, 0).is_err());
        for i in 0..4 {
            inbound.wait(i, 1).unwrap();
        }
        assert!(inbound.message(b"one too many").is_err());
        for i in 0..3 {
            inbound.fence(i, 0).unwrap();
        }
        delivered(&mut inbound);
        assert!(inbound.fence(2, 0).is_err(), "it has passed");
    }
}
