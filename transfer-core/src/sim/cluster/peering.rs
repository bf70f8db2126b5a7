//! How links are made: a model of the control plane, with delays, refusals and crossing calls.

use super::{Cluster, Happening};
use crate::fabric::{FabricKind, LinkId, Offer};
use crate::protocol::{PeerInfo, Vouches};
use crate::tensor::Name;
use rand::Rng;

/// A call in flight. `attempt` distinguishes it from the caller's later calls.
#[derive(Debug)]
pub(super) enum Dial {
    Begin {
        from: usize,
        to: usize,
        attempt: u64,
    },
    Arrives {
        from: usize,
        to: usize,
        attempt: u64,
        link: LinkId,
        offer: Offer,
    },
    Answered {
        from: usize,
        to: usize,
        attempt: u64,
        link: LinkId,
        offer: Offer,
    },
    /// The peer refused the call. `yields` says whether the peer did so because it has a call of its own.
    TurnedAway {
        from: usize,
        to: usize,
        attempt: u64,
        link: LinkId,
        yields: bool,
    },
    /// A check whether the call has led to a link.
    Check {
        from: usize,
        to: usize,
        attempt: u64,
    },
}

impl Cluster {
    fn info(&self, node: usize) -> PeerInfo {
        PeerInfo {
            name: self.nodes[node].name.clone(),
            incarnation: self.nodes[node].config.incarnation,
            receive_slots: self.nodes[node].receive_slots,
            vouches: Vouches::ForAll,
            passed_over: Vec::new(),
        }
    }

    fn peering(&mut self, dial: Dial) {
        let at = self.soon();
        self.later(at, Happening::Peering(dial));
    }

    pub(super) fn dial(&mut self, from: usize, peer: &Name) {
        let to = self.node_named(peer);
        self.next_number += 1;
        let attempt = self.next_number;
        self.nodes[from].dialing.insert(peer.clone(), attempt);
        self.peering(Dial::Begin { from, to, attempt });
    }

    /// Returns whether this attempt is the caller's latest.
    fn is_current(&self, from: usize, to: usize, attempt: u64) -> bool {
        self.nodes[from].dialing.get(&self.nodes[to].name) == Some(&attempt)
    }

    fn fails(&mut self, from: usize, to: usize, attempt: u64, why: &str) {
        if self.is_current(from, to, attempt) {
            let (now, peer) = (self.clock(from), self.nodes[to].name.clone());
            self.nodes[from].dialing.remove(&peer);
            self.nodes[from].driver.node.connect_failed(now, &peer, why);
        }
    }

    pub(super) fn dialing(&mut self, dial: Dial) {
        self.world.note(|| format!("{dial:?}"));
        match dial {
            Dial::Begin { from, to, attempt } => {
                // A second link, made by a call that crosses another, would abort the transfers on the first one. A
                // calm schedule avoids that.
                if self.play.calm && self.nodes[from].accepted.contains(&self.nodes[to].name) {
                    return self.check_later(from, to, attempt);
                }
                if !self.play.calm && self.rng.random_range(0..10) == 0 {
                    return self.fails(from, to, attempt, "refused");
                }
                let peer = self.nodes[to].name.clone();
                let (link, offer, _) = self.nodes[from].driver.begin_link(&peer, FabricKind::Sim).unwrap();
                self.peering(Dial::Arrives { from, to, attempt, link, offer });
            }
            Dial::Arrives { from, to, attempt, link, offer } => {
                let caller = self.nodes[from].name.clone();
                let calling = self.nodes[to].dialing.contains_key(&caller);
                // In a calm schedule a call also yields to an earlier one of the peer that was accepted.
                let taken = self.play.calm && self.nodes[from].accepted.contains(&self.nodes[to].name);
                if taken || calling && self.nodes[to].name < caller {
                    return self.peering(Dial::TurnedAway { from, to, attempt, link, yields: true });
                }
                let info = self.info(from);
                match self.nodes[to].driver.accept_link(info, FabricKind::Sim, &offer) {
                    Ok((theirs, offer, _)) => {
                        self.pairs.insert((from, link), (to, theirs));
                        self.pairs.insert((to, theirs), (from, link));
                        self.nodes[to].accepted.insert(caller);
                        self.peering(Dial::Answered { from, to, attempt, link, offer });
                    }
                    Err(_) => self.peering(Dial::TurnedAway { from, to, attempt, link, yields: false }),
                }
            }
            Dial::Answered { from, to, attempt, link, offer } => {
                if !self.is_current(from, to, attempt) {
                    return self.nodes[from].driver.abandon_link(link, "another call was faster");
                }
                let info = self.info(to);
                if self.nodes[from].driver.finish_link(link, info, &offer).is_err() {
                    return self.fails(from, to, attempt, "the answer is bad");
                }
                self.check_later(from, to, attempt);
            }
            Dial::TurnedAway { from, to, attempt, link, yields } => {
                self.nodes[from].driver.abandon_link(link, "turned away");
                if yields {
                    self.check_later(from, to, attempt);
                } else {
                    self.fails(from, to, attempt, "turned away");
                }
            }
            Dial::Check { from, to, attempt } => {
                let peer = self.nodes[to].name.clone();
                if self.nodes[from].links.values().any(|p| *p == peer) {
                    if self.is_current(from, to, attempt) {
                        self.nodes[from].dialing.remove(&peer);
                    }
                } else {
                    self.fails(from, to, attempt, "it did not come up");
                }
            }
        }
    }

    fn check_later(&mut self, from: usize, to: usize, attempt: u64) {
        let at = self.now + self.delay * 100;
        self.later(at, Happening::Peering(Dial::Check { from, to, attempt }));
    }
}
