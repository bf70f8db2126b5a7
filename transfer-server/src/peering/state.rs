//! The state of connecting to each peer. No I/O and no clock: every wait is an [`Action`] whose end is reported back.
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
//! If both sides dial at once, the dial of the node with the smaller name wins. That node refuses the other node's
//! call, and the other node accepts the winner's call although it is dialling too.
//!
//! A request for a link starts with the best fabric that this side may use. A fabric over which no link can be made is
//! skipped for the rest of the request, as long as another fabric is left. The next request starts with the best fabric
//! again, because the fabric may work again.

use super::Kind;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;
use transfer_core::fabric::{FabricKind, LinkId};
use transfer_core::protocol::PassedOver;
use transfer_core::tensor::Name;
use transfer_proto::v1;

/// The most dials of one request for a link.
const MAX_TRIES: u32 = 4;

/// The pause before the second dial; each later one is three times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The time for which a refused node waits for the winner's call.
const YIELD_DEADLINE: Duration = Duration::from_secs(3);

/// The time-out for an agreed link to come up.
pub(crate) const FORM_DEADLINE: Duration = Duration::from_secs(5);

/// The number of a state of a peer. The end of a wait that belongs to an earlier state changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attempt(u64);

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Pause, then call the peer. Ends in [`Peers::answered`], [`Peers::yielded`] or [`Peers::dial_failed`]. The link
    /// `instead_of` has to be abandoned.
    Dial { peer: Name, attempt: Attempt, pause: Duration, instead_of: Option<LinkId> },
    /// Wait for `long`, then call [`Peers::waited`].
    Wait { peer: Name, attempt: Attempt, long: Duration },
    /// Tell the engine that no link could be made.
    Fail { peer: Name, link: Option<LinkId>, why: String },
}

/// The answer to a peer's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Accept the call, and report with [`Peers::accepted`] or [`Peers::accept_failed`]. The action is a
    /// [`Action::Wait`].
    Accept(Attempt, Action),
    /// Refuse the call, because this side's own call wins.
    TurnAway,
}

#[derive(Debug)]
enum Stage {
    Dialing,
    Yielded,
    /// `dialed` means that this side called.
    Forming {
        link: Option<LinkId>,
        dialed: bool,
        fabric: FabricKind,
    },
    Up {
        link: LinkId,
        /// The fabric of the link. `None`: the link came up without having formed here.
        fabric: Option<FabricKind>,
    },
}

#[derive(Debug)]
struct Peer {
    stage: Stage,
    attempt: Attempt,
    /// Whether the engine waits for this link.
    wanted: bool,
    tries: u32,
    /// The fabrics that this request has tried without success.
    passed_over: Vec<PassedOver>,
}

impl Peer {
    fn to_message(&self, name: &Name) -> v1::Peer {
        let (state, link, fabric) = match &self.stage {
            Stage::Dialing => (v1::PeerState::Calling, None, None),
            Stage::Yielded => (v1::PeerState::Yielded, None, None),
            Stage::Forming { link, fabric, .. } => (v1::PeerState::Forming, *link, Some(*fabric)),
            Stage::Up { link, fabric } => (v1::PeerState::Up, Some(*link), *fabric),
        };
        v1::Peer {
            node: name.to_string(),
            state: state.into(),
            link: link.map_or(0, |link| link.0),
            incarnation: 0,
            wanted: self.wanted,
            tries: self.tries,
            fabric: fabric.map_or(v1::Fabric::Unspecified, |kind| Kind(kind).into()).into(),
            failures: self.passed_over.iter().map(|passed| passed.why.clone()).collect(),
        }
    }
}

/// The states of all peers.
#[derive(Debug)]
pub(crate) struct Peers {
    me: Name,
    /// The fabrics for links, best first.
    usable: Vec<FabricKind>,
    peers: BTreeMap<Name, Peer>,
    last_attempt: u64,
}

impl Peers {
    /// Makes an empty set of peers.
    pub(crate) fn new(me: Name, usable: Vec<FabricKind>) -> Peers {
        Peers { me, usable, peers: BTreeMap::new(), last_attempt: 0 }
    }

    /// Returns the peers whose names start with `prefix` and sort after `after`. The second value is the last of these
    /// names if more peers follow, else empty.
    pub(crate) fn page(&self, prefix: &str, after: &str, limit: usize) -> (Vec<v1::Peer>, String) {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let from = if prefix.is_empty() && after.is_empty() { Bound::Unbounded } else { from };
        let rest = self.peers.range::<str, _>((from, Bound::Unbounded));
        let mut rest = rest.take_while(|(name, _)| name.as_str().starts_with(prefix));
        let page: Vec<_> = rest.by_ref().take(limit).map(|(name, peer)| peer.to_message(name)).collect();
        let more = rest.next().is_some();
        let next = page.last().filter(|_| more).map(|peer| peer.node.clone()).unwrap_or_default();
        (page, next)
    }

    /// Returns the link to a peer, if it is up.
    pub(crate) fn link_to(&self, peer: &Name) -> Option<LinkId> {
        match self.peers.get(peer)?.stage {
            Stage::Up { link, .. } => Some(link),
            _ => None,
        }
    }

    fn next_attempt(&mut self) -> Attempt {
        self.last_attempt += 1;
        Attempt(self.last_attempt)
    }

    fn current(&mut self, peer: &Name, attempt: Attempt) -> Option<&mut Peer> {
        self.peers.get_mut(peer).filter(|p| p.attempt == attempt)
    }

    /// Handles a request of the engine for a link.
    pub(crate) fn wanted(&mut self, peer: &Name) -> Option<Action> {
        match self.peers.get_mut(peer) {
            // The engine knows whether its link is up.
            None | Some(Peer { stage: Stage::Up { .. }, .. }) => Some(self.dial(peer, 1, Vec::new())),
            // The engine asks once until it has an answer. So it has seen that the link that it finished is dead.
            Some(Peer { stage: Stage::Forming { dialed: true, .. }, wanted: true, passed_over, .. }) => {
                let passed_over = std::mem::take(passed_over);
                Some(self.dial(peer, 1, passed_over))
            }
            Some(p) => {
                p.wanted = true;
                None
            }
        }
    }

    fn dial(&mut self, peer: &Name, tries: u32, passed_over: Vec<PassedOver>) -> Action {
        let attempt = self.next_attempt();
        self.peers.insert(peer.clone(), Peer { stage: Stage::Dialing, attempt, wanted: true, tries, passed_over });
        let pause = match tries {
            0 | 1 => Duration::ZERO,
            n => FIRST_PAUSE * 3u32.saturating_pow(n - 2),
        };
        Action::Dial { peer: peer.clone(), attempt, pause, instead_of: None }
    }

    /// Dials again if the engine waits and attempts are left. `link` is the link that was planned and is not dead yet.
    fn again(&mut self, peer: &Name, link: Option<LinkId>, why: String) -> Option<Action> {
        let Peer { wanted, tries, passed_over, .. } = self.peers.remove(peer)?;
        if wanted && tries < MAX_TRIES {
            let mut action = self.dial(peer, tries + 1, passed_over);
            if let Action::Dial { instead_of, .. } = &mut action {
                *instead_of = link;
            }
            return Some(action);
        }
        (wanted || link.is_some()).then(|| Action::Fail { peer: peer.clone(), link, why: with_all(why, &passed_over) })
    }

    /// Returns the fabric for a call, and the fabrics that were tried without success. `None`: this call is obsolete,
    /// or no fabric is left.
    pub(crate) fn fabric_for(&self, peer: &Name, attempt: Attempt) -> Option<(FabricKind, Vec<PassedOver>)> {
        let p = self.peers.get(peer).filter(|p| p.attempt == attempt)?;
        self.left(p).map(|fabric| (fabric, p.passed_over.clone()))
    }

    /// Returns the best fabric that this request has not tried without success.
    fn left(&self, p: &Peer) -> Option<FabricKind> {
        self.usable.iter().copied().find(|kind| p.passed_over.iter().all(|passed| passed.fabric != *kind))
    }

    /// Skips a fabric for this request. Returns `false` if no other fabric is left, and then does not skip it.
    pub(crate) fn pass_over(&mut self, peer: &Name, attempt: Attempt, fabric: FabricKind, why: &str) -> bool {
        let Some(p) = self.peers.get(peer).filter(|p| p.attempt == attempt) else { return false };
        let is_last = self.left(p) != Some(fabric) || self.usable.last() == Some(&fabric);
        if !is_last && let Some(p) = self.peers.get_mut(peer) {
            p.passed_over.push(PassedOver { fabric, why: why.to_owned() });
        }
        !is_last
    }

    /// Handles a peer's call.
    pub(crate) fn incoming(&mut self, peer: &Name, fabric: FabricKind) -> Verdict {
        let (calling, wanted, tries, passed_over) = match self.peers.get(peer) {
            None => (false, false, 0, Vec::new()),
            Some(p) => {
                // This side's call counts even if it was answered: the peer may have sent its own call before it
                // answered.
                let calling = matches!(p.stage, Stage::Dialing | Stage::Forming { dialed: true, .. });
                (calling, p.wanted, p.tries, p.passed_over.clone())
            }
        };
        if calling && self.me < *peer {
            return Verdict::TurnAway;
        }
        let attempt = self.next_attempt();
        let stage = Stage::Forming { link: None, dialed: false, fabric };
        self.peers.insert(peer.clone(), Peer { stage, attempt, wanted, tries, passed_over });
        Verdict::Accept(attempt, Action::Wait { peer: peer.clone(), attempt, long: FORM_DEADLINE })
    }

    /// Records that the engine accepted a peer's call as the link `made`.
    pub(crate) fn accepted(&mut self, peer: &Name, attempt: Attempt, made: LinkId) {
        if let Some(Peer { stage: Stage::Forming { link, .. }, .. }) = self.current(peer, attempt) {
            *link = Some(made);
        }
    }

    /// Handles that the engine did not accept a peer's call.
    pub(crate) fn accept_failed(&mut self, peer: &Name, attempt: Attempt, why: String) -> Option<Action> {
        self.current(peer, attempt)?;
        self.again(peer, None, why)
    }

    /// Handles the peer's answer to this side's call. Returns the [`Action::Wait`] for the link; `None`: abandon the
    /// link.
    pub(crate) fn answered(
        &mut self,
        peer: &Name,
        attempt: Attempt,
        link: LinkId,
        fabric: FabricKind,
    ) -> Option<Action> {
        let next = self.next_attempt();
        let p = self.current(peer, attempt).filter(|p| matches!(p.stage, Stage::Dialing))?;
        p.stage = Stage::Forming { link: Some(link), dialed: true, fabric };
        p.attempt = next;
        Some(Action::Wait { peer: peer.clone(), attempt: next, long: FORM_DEADLINE })
    }

    /// Handles that the engine refused the peer's answer. Another call may succeed.
    pub(crate) fn finish_failed(&mut self, peer: &Name, attempt: Attempt, why: String) -> Option<Action> {
        self.current(peer, attempt).filter(|p| matches!(p.stage, Stage::Forming { .. }))?;
        self.again(peer, None, why)
    }

    /// Handles that the peer refused this side's call, because the peer's own call wins.
    pub(crate) fn yielded(&mut self, peer: &Name, attempt: Attempt) -> Option<Action> {
        let next = self.next_attempt();
        let p = self.current(peer, attempt)?;
        p.stage = Stage::Yielded;
        p.attempt = next;
        Some(Action::Wait { peer: peer.clone(), attempt: next, long: YIELD_DEADLINE })
    }

    /// Handles that this side's call failed. `retry` tells whether another call may succeed.
    pub(crate) fn dial_failed(&mut self, peer: &Name, attempt: Attempt, retry: bool, why: String) -> Option<Action> {
        let p = self.current(peer, attempt)?;
        if !retry {
            p.tries = MAX_TRIES;
        }
        self.again(peer, None, why)
    }

    /// Handles the end of a wait.
    pub(crate) fn waited(&mut self, peer: &Name, attempt: Attempt) -> Option<Action> {
        let (link, why) = match self.current(peer, attempt)?.stage {
            Stage::Yielded => (None, "it was about to connect to this node and did not".to_owned()),
            Stage::Forming { link, dialed, fabric } => {
                let why = format!("the {fabric} link was agreed on and did not come up within {FORM_DEADLINE:?}");
                let other = self.pass_over(peer, attempt, fabric, &why);
                if dialed && !other {
                    // No further attempt is made.
                    self.current(peer, attempt)?.tries = MAX_TRIES;
                }
                (link, why)
            }
            Stage::Dialing | Stage::Up { .. } => return None,
        };
        self.again(peer, link, why)
    }

    /// Records that the engine can use a link.
    pub(crate) fn link_up(&mut self, peer: &Name, link: LinkId) {
        let attempt = self.next_attempt();
        let fabric = match self.peers.get(peer).map(|p| &p.stage) {
            Some(Stage::Forming { fabric, .. }) => Some(*fabric),
            _ => None,
        };
        let stage = Stage::Up { link, fabric };
        self.peers.insert(peer.clone(), Peer { stage, attempt, wanted: false, tries: 0, passed_over: Vec::new() });
    }

    /// Handles that a link is dead, or failed to come up.
    pub(crate) fn link_down(&mut self, peer: &Name, dead: LinkId, why: &str) -> Option<Action> {
        let Peer { stage, attempt, .. } = self.peers.get(peer)?;
        let attempt = *attempt;
        match *stage {
            Stage::Up { link, .. } if link == dead => {
                self.peers.remove(peer);
                None
            }
            Stage::Forming { link: Some(link), fabric, .. } if link == dead => {
                let why = format!("the {fabric} link did not come up: {why}");
                self.pass_over(peer, attempt, fabric, &why);
                self.again(peer, None, why)
            }
            _ => None,
        }
    }
}

/// Returns the failure of the last fabric, followed by the failures of the earlier ones.
fn with_all(mut why: String, passed_over: &[PassedOver]) -> String {
    for passed in passed_over {
        why.push_str("; before that, ");
        why.push_str(&passed.why);
    }
    why
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
