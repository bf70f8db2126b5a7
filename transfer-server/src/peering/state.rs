//! Who is being connected to, and how far that is. No I/O and no clock: every wait is an [`Action`] whose end is reported back.
//!
//! ```text
//!               wanted                   answered                    link up
//!   (nothing) ----------> Dialing ----------------------> Forming -------------> Up
//!       |                 |     ^                          ^    |                 |
//!       |        aborted  |     | waited: dial again       |    | link down,      | link down
//!       |                 v     |                          |    | or waited       v
//!       |                Yielded -------- incoming --------+    +--> dial again, or (nothing)
//!       +------------------------------- incoming ---------+
//! ```
//!
//! Where both sides dial at once, the dial of the node with the smaller name wins: that node turns the other's call away, and the other one
//! answers the call though it dials itself.

use hashbrown::HashMap;
use std::time::Duration;
use transfer_core::fabric::LinkId;
use transfer_core::tensor::Name;

/// How often one wish for a link dials.
const MAX_TRIES: u32 = 4;

/// The pause before the second dial; each later one is three times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// How long a node that was turned away waits for the winner's call.
const YIELD_DEADLINE: Duration = Duration::from_secs(3);

/// How long a link that both sides agreed on may take to come up.
pub(crate) const FORM_DEADLINE: Duration = Duration::from_secs(5);

/// Numbers the states of a peer, so that the end of a wait for an earlier one changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attempt(u64);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Pause, then call the peer. Ends in [`Peers::answered`], [`Peers::yielded`] or [`Peers::dial_failed`].
    Dial { peer: Name, attempt: Attempt, pause: Duration },
    /// Wait so long, then call [`Peers::waited`].
    Wait { peer: Name, attempt: Attempt, long: Duration },
    /// Tell the engine that there will be no link.
    Fail { peer: Name, link: Option<LinkId>, why: String },
}

/// What to answer to a peer's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Accept it; report with [`Peers::accepted`] or [`Peers::accept_failed`]. The action is a [`Action::Wait`].
    Accept(Attempt, Action),
    /// Turn it away: this side's own call wins.
    TurnAway,
}

#[derive(Debug)]
enum Stage {
    Dialing,
    Yielded,
    /// `dialed`: this side called.
    Forming {
        link: Option<LinkId>,
        dialed: bool,
    },
    Up {
        link: LinkId,
    },
}

#[derive(Debug)]
struct Peer {
    stage: Stage,
    attempt: Attempt,
    /// Whether the engine waits for this link.
    wanted: bool,
    tries: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Peers {
    me: Name,
    peers: HashMap<Name, Peer>,
    last_attempt: u64,
}

impl Peers {
    /// No peers yet.
    pub(crate) fn new(me: Name) -> Peers {
        Peers { me, peers: HashMap::new(), last_attempt: 0 }
    }

    fn next_attempt(&mut self) -> Attempt {
        self.last_attempt += 1;
        Attempt(self.last_attempt)
    }

    fn current(&mut self, peer: &Name, attempt: Attempt) -> Option<&mut Peer> {
        self.peers.get_mut(peer).filter(|p| p.attempt == attempt)
    }

    /// The engine wants a link.
    pub(crate) fn wanted(&mut self, peer: &Name) -> Option<Action> {
        match self.peers.get_mut(peer) {
            // The engine knows best whether its link is up.
            None | Some(Peer { stage: Stage::Up { .. }, .. }) => Some(self.dial(peer, 1)),
            // It asks once until it has an answer: it has heard that the link it finished is dead.
            Some(Peer { stage: Stage::Forming { dialed: true, .. }, wanted: true, .. }) => Some(self.dial(peer, 1)),
            Some(p) => {
                p.wanted = true;
                None
            }
        }
    }

    fn dial(&mut self, peer: &Name, tries: u32) -> Action {
        let attempt = self.next_attempt();
        self.peers.insert(peer.clone(), Peer { stage: Stage::Dialing, attempt, wanted: true, tries });
        let pause = match tries {
            0 | 1 => Duration::ZERO,
            n => FIRST_PAUSE * 3u32.saturating_pow(n - 2),
        };
        Action::Dial { peer: peer.clone(), attempt, pause }
    }

    /// Dials again where the engine waits and tries are left.
    fn again(&mut self, peer: &Name, link: Option<LinkId>, why: String) -> Option<Action> {
        let Peer { wanted, tries, .. } = *self.peers.get(peer)?;
        if wanted && tries < MAX_TRIES {
            return Some(self.dial(peer, tries + 1));
        }
        self.peers.remove(peer);
        (wanted || link.is_some()).then(|| Action::Fail { peer: peer.clone(), link, why })
    }

    /// A peer calls.
    pub(crate) fn incoming(&mut self, peer: &Name) -> Verdict {
        let (calling, wanted, tries) = match self.peers.get(peer) {
            None => (false, false, 0),
            Some(p) => {
                // A call that was answered counts: the peer may have sent its own before it answered.
                let calling = matches!(p.stage, Stage::Dialing | Stage::Forming { dialed: true, .. });
                (calling, p.wanted, p.tries)
            }
        };
        if calling && self.me < *peer {
            return Verdict::TurnAway;
        }
        let attempt = self.next_attempt();
        self.peers
            .insert(peer.clone(), Peer { stage: Stage::Forming { link: None, dialed: false }, attempt, wanted, tries });
        Verdict::Accept(attempt, Action::Wait { peer: peer.clone(), attempt, long: FORM_DEADLINE })
    }

    /// The engine accepted a peer's call as this link.
    pub(crate) fn accepted(&mut self, peer: &Name, attempt: Attempt, made: LinkId) {
        if let Some(Peer { stage: Stage::Forming { link, .. }, .. }) = self.current(peer, attempt) {
            *link = Some(made);
        }
    }

    /// The engine did not accept a peer's call.
    pub(crate) fn accept_failed(&mut self, peer: &Name, attempt: Attempt, why: String) -> Option<Action> {
        self.current(peer, attempt)?;
        self.again(peer, None, why)
    }

    /// The peer answered this side's call. Go on with that link and this [`Action::Wait`]; `None`: abandon it.
    pub(crate) fn answered(&mut self, peer: &Name, attempt: Attempt, link: LinkId) -> Option<Action> {
        let next = self.next_attempt();
        let p = self.current(peer, attempt).filter(|p| matches!(p.stage, Stage::Dialing))?;
        p.stage = Stage::Forming { link: Some(link), dialed: true };
        p.attempt = next;
        Some(Action::Wait { peer: peer.clone(), attempt: next, long: FORM_DEADLINE })
    }

    /// The engine did not take the peer's answer. Another call may do better.
    pub(crate) fn finish_failed(&mut self, peer: &Name, attempt: Attempt, why: String) -> Option<Action> {
        self.current(peer, attempt).filter(|p| matches!(p.stage, Stage::Forming { .. }))?;
        self.again(peer, None, why)
    }

    /// The peer turned this side's call away, because it calls itself.
    pub(crate) fn yielded(&mut self, peer: &Name, attempt: Attempt) -> Option<Action> {
        let next = self.next_attempt();
        let p = self.current(peer, attempt)?;
        p.stage = Stage::Yielded;
        p.attempt = next;
        Some(Action::Wait { peer: peer.clone(), attempt: next, long: YIELD_DEADLINE })
    }

    /// This side's call failed. `retry`: whether another call may do better.
    pub(crate) fn dial_failed(&mut self, peer: &Name, attempt: Attempt, retry: bool, why: String) -> Option<Action> {
        let p = self.current(peer, attempt)?;
        if !retry {
            p.tries = MAX_TRIES;
        }
        self.again(peer, None, why)
    }

    /// A wait is over.
    pub(crate) fn waited(&mut self, peer: &Name, attempt: Attempt) -> Option<Action> {
        let p = self.current(peer, attempt)?;
        let (link, why) = match p.stage {
            Stage::Yielded => (None, "it was about to connect to this node and did not".to_owned()),
            Stage::Forming { link, dialed } => {
                if dialed {
                    // That was long enough.
                    p.tries = MAX_TRIES;
                }
                (link, format!("the link was agreed on and did not come up within {FORM_DEADLINE:?}"))
            }
            Stage::Dialing | Stage::Up { .. } => return None,
        };
        self.again(peer, link, why)
    }

    /// The engine can use a link.
    pub(crate) fn link_up(&mut self, peer: &Name, link: LinkId) {
        let attempt = self.next_attempt();
        self.peers.insert(peer.clone(), Peer { stage: Stage::Up { link }, attempt, wanted: false, tries: 0 });
    }

    /// A link is dead.
    pub(crate) fn link_down(&mut self, peer: &Name, dead: LinkId, why: &str) -> Option<Action> {
        match self.peers.get(peer)?.stage {
            Stage::Up { link } if link == dead => {
                self.peers.remove(peer);
                None
            }
            Stage::Forming { link: Some(link), .. } if link == dead => {
                self.again(peer, None, format!("the link did not come up: {why}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
