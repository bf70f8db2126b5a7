//! Failures of whole processes: restarts of sidecars and of the directory, clocks that jump, links that are made twice.

use super::directory::{Heard, Letter, Said};
use super::{Call, Cluster, Dial, Happening};
use crate::fabric::LinkId;
use crate::protocol::{Claim, DirectoryNews, DirectoryRequest};
use crate::time::Time;
use rand::Rng;
use std::time::Duration;

/// The largest amount by which a clock is ahead, in delays of the world.
pub(super) const LONGEST_JUMP: u32 = 1000;

impl Cluster {
    /// Returns the time of a node's own clock.
    pub(super) fn clock(&self, node: usize) -> Time {
        self.now + self.nodes[node].ahead
    }

    pub(super) fn inject_faults(&mut self, span: u64) {
        for _ in 0..self.rng.random_range(1..12) {
            let at = Time(self.rng.random_range(0..span));
            let node = self.rng.random_range(0..self.nodes.len());
            let what = match self.rng.random_range(0..11) {
                0..3 => Happening::Restart(node),
                3 => Happening::NewDirectory,
                4..6 => Happening::Jump(node),
                6 => Happening::CutOff(node),
                7..9 => Happening::DirectoryDown,
                _ => Happening::Redial(node),
            };
            self.later(at, what);
        }
    }

    /// Kills a sidecar with all that it holds, and starts it again as another incarnation. Its workers connect again.
    pub(super) fn restart(&mut self, node: usize) {
        if self.ending {
            return;
        }
        self.tally.restarts += 1;
        self.world.note(|| format!("{node} dies and is started again"));
        self.world.kill(self.nodes[node].endpoint);
        let lost: Vec<usize> = (0..self.workers.len()).filter(|w| self.workers[*w].node == node).collect();
        let mut coming = Vec::new();
        for worker in lost {
            let w = &mut self.workers[worker];
            (w.arena, w.ops) = (None, std::collections::BTreeMap::new());
            for lease in std::mem::take(&mut w.leases).into_values() {
                self.world.unguard(lease.guard());
            }
            for settled in std::mem::take(&mut w.settled).into_values() {
                self.world.unguard(settled.guard());
            }
            self.rank_is_gone(worker);
            if self.workers[worker].session.take().is_some() {
                coming.push(worker);
            }
        }
        self.workers.iter_mut().for_each(|w| w.closing = w.closing.filter(|(at, _)| *at != node));
        // Messages to and from the dead sidecar are lost with it.
        let agenda = std::mem::take(&mut self.agenda);
        for (at, what) in agenda {
            match &what {
                Happening::Directory(
                    Letter::To(n, Said::WorkerUp(_, worker)) | Letter::From(n, Heard::Admitted(worker, _)),
                ) if *n == node => {
                    coming.push(*worker);
                }
                Happening::Directory(Letter::To(n, _) | Letter::From(n, _)) if *n == node => {}
                Happening::Peering(dial) if dial.caller() == node => {}
                Happening::Calling(call) if call.caller() == node => {}
                Happening::Disk(n, _) | Happening::Apply(n, _) | Happening::Digest(n, _) if *n == node => {}
                _ => drop(self.agenda.insert(at, what)),
            }
        }
        for (from, link, _) in self.calls.values_mut() {
            if *from == node {
                *link = LinkId(0);
            }
        }
        self.pairs.retain(|(a, _), (b, _)| *a != node && *b != node);
        self.directory.forget_node(node);
        let (mut config, cells) = (self.nodes[node].config.clone(), self.nodes[node].cells);
        config.incarnation += 1;
        let pools = self.nodes[node].pools.clone();
        let (sidecar, words) = self.start_node(config, cells);
        self.counting.words[node] = words;
        self.nodes[node] = sidecar;
        for (domain, len) in pools {
            self.add_pool(node, domain, len);
        }
        for worker in coming {
            let at = self.soon() + self.delay * self.rng.random_range(0..10);
            self.later(at, Happening::Connect(worker));
        }
    }

    /// Replaces the directory with a new one. Its clients repeat what they wait for, and claim their keys again.
    pub(super) fn new_directory(&mut self) {
        self.world.note(|| "the directory is a new one".into());
        self.directory.forget_keys();
        // The host repeats claims of reserved keys.
        let mut answered = Vec::new();
        for what in self.agenda.values() {
            if let Happening::Directory(Letter::From(node, Heard::News(DirectoryNews::Claimed { key, .. }))) = what
                && key.reserved_for().is_some()
            {
                let owner = self.nodes[*node].name.clone();
                let (key, tenant) = (key.clone(), owner.clone());
                answered.push((*node, Claim { key, tenant, owner, resident: false, takeover: false, entered: 0 }));
            }
        }
        let is_repeated = |what: &Happening| match what {
            Happening::Directory(Letter::To(_, Said::Claim(Claim { key, .. }))) => key.reserved_for().is_some(),
            _ => false,
        };
        self.agenda.retain(|_, what| {
            is_repeated(what)
                || !matches!(
                    what,
                    Happening::Directory(
                        Letter::To(
                            _,
                            Said::Claim(_)
                                | Said::Request(
                                    DirectoryRequest::Unclaim { .. }
                                        | DirectoryRequest::Resolve { .. }
                                        | DirectoryRequest::StopResolve { .. }
                                )
                        ) | Letter::From(
                            _,
                            Heard::News(
                                DirectoryNews::Claimed { .. }
                                    | DirectoryNews::Located { .. }
                                    | DirectoryNews::KeyLost { .. }
                            )
                        )
                    )
                )
        });
        for (node, claim) in answered {
            self.tell_directory(node, Said::Claim(claim));
        }
        for node in 0..self.nodes.len() {
            let now = self.clock(node);
            self.nodes[node].driver.node.directory_news(now, DirectoryNews::Attached);
        }
    }

    /// Sets a node's clock ahead, or back to the common time.
    pub(super) fn jump(&mut self, node: usize) {
        let far = self.delay * self.rng.random_range(0..LONGEST_JUMP);
        let ahead = if self.rng.random() { far } else { Duration::ZERO };
        self.nodes[node].ahead = ahead;
        self.world.note(|| format!("the clock of {node} is {ahead:?} ahead"));
    }

    pub(super) fn redial(&mut self, node: usize) {
        let n = &self.nodes[node];
        let peer = n.links.values().find(|peer| !n.dialing.contains_key(*peer)).cloned();
        if let Some(peer) = peer.filter(|_| !self.ending) {
            self.dial(node, &peer);
        }
    }
}

impl Dial {
    fn caller(&self) -> usize {
        match self {
            Dial::Begin { from, .. }
            | Dial::Arrives { from, .. }
            | Dial::Answered { from, .. }
            | Dial::TurnedAway { from, .. }
            | Dial::Check { from, .. } => *from,
        }
    }
}

impl Call {
    fn caller(&self) -> usize {
        match self {
            Call::Arrives { from, .. } | Call::Answered { from, .. } | Call::Failed { from, .. } => *from,
        }
    }
}
