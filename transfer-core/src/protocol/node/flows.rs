//! The flows of a node, and the machines that each of them borrows.
//!
//! A machine of `protocol` (`keys`, `landing`, `links`) keeps one kind of state and knows nothing of the others. A flow
//! is what needs several of them: it is lent those that it needs for one step, and calls the flows below it with what it
//! has. `memory!(self)` lends the flow [`Memory`] its machines, from the node or from a flow above it. A flow never calls
//! the node. `scripts/check-flows.py` counts how many files call each other in a circle. Two flows with the same machines are apart by
//! their subjects alone.

use super::Common;
use super::answering::Copying;
use super::ownership::Endings;
use crate::protocol::action::Actions;
use crate::protocol::bases::Bases;
use crate::protocol::config::NodeConfig;
use crate::protocol::counters::Counters;
use crate::protocol::events::FailureRateLimit;
use crate::protocol::exchanges::Exchanges;
use crate::protocol::ids::{CopyId, of};
use crate::protocol::keys::Keys;
use crate::protocol::landing::Landing;
use crate::protocol::links::Links;
use crate::protocol::meters::Meters;
use crate::protocol::parents::Parents;
use crate::protocol::pings::Pings;
use crate::protocol::references::References;
use crate::protocol::relays::{Proof, Relays};
use crate::protocol::sessions::Sessions;
use crate::protocol::slab::Slab;
use crate::protocol::snapshot::EndedTransfer;
use crate::protocol::spill::Spills;
use crate::protocol::transfers::Transfers;
use crate::time::Time;
use std::collections::VecDeque;

/// The type of a machine, or of what else the node has, by the name of its field.
macro_rules! Machine {
    (actions) => { Actions };
    (bases) => { Bases };
    (common) => { Common };
    (config) => { NodeConfig };
    (copies) => { Slab<Copying, of::Copy> };
    (counters) => { Counters };
    (ended) => { Option<Vec<EndedTransfer>> };
    (endings) => { Endings };
    (exchanges) => { Exchanges };
    (failure_rate) => { FailureRateLimit };
    (keys) => { Keys };
    (landing) => { Landing };
    (links) => { Links };
    (meters) => { Meters };
    (packs_waiting) => { VecDeque<(Time, CopyId)> };
    (parents) => { Parents };
    (pings) => { Pings };
    (proofs) => { Slab<Proof, of::Proof> };
    (references) => { References };
    (relays) => { Relays };
    (sessions) => { Sessions };
    (spills) => { Spills };
    (transfers) => { Transfers };
}

/// Declares flows: the type, the macro that lends it its machines, those that it changes, and those that it reads. The first
/// token is a dollar sign, which a macro cannot write into another one by itself.
macro_rules! flows {
    (($d:tt) $(
        $(#[$doc:meta])*
        $visible:vis $Flow:ident, $lend:ident: changes { $($machine:ident),* } reads { $($read:ident),* }
    )+) => { $(
        $(#[$doc])*
        $visible struct $Flow<'a> {
            $(pub(super) $machine: &'a mut Machine!($machine),)*
            $(pub(super) $read: &'a Machine!($read),)*
        }

        macro_rules! $lend {
            ($d node:expr) => {
                $crate::protocol::node::flows::$Flow {
                    $($machine: &mut $d node.$machine,)*
                    $($read: &$d node.$read,)*
                }
            };
        }
    )+ };
}

flows! { ($)
    /// What workers, peers and tenants may do.
    pub(super) Access, access:
        changes {}
        reads { config, keys, links, sessions }
    /// What a request finds, before anything happens.
    pub(super) Lookup, lookup:
        changes {}
        reads { keys, landing, sessions, transfers }
    /// The state that a node shows.
    pub NodeState, state:
        changes {}
        reads {
            bases, common, config, counters, ended, exchanges, keys, landing, links, meters, sessions, spills, transfers
        }
    /// How much room those need who wait for it.
    pub(super) Needs, needs:
        changes {}
        reads { copies, landing, transfers }
    /// Messages and writes to peers.
    pub(super) Sending, sending:
        changes { actions, links }
        reads {}
    /// What workers are told about their operations.
    pub(super) Replies, replies:
        changes { actions, ended, failure_rate, keys, links, meters, sessions }
        reads { common, config }
    /// Calls for landing slots, on both sides.
    pub(super) Calls, calls:
        changes { actions, links, transfers }
        reads {}
    /// References to versions: leases, and the memory that ends with the last of them.
    pub(super) Memory, memory:
        changes { actions, exchanges, keys, landing, links, meters, references, sessions, spills }
        reads { config }
    /// Room in the landing pools, and slots that are called back.
    pub(super) Room, room:
        changes { actions, copies, keys, landing, links, transfers }
        reads { common, config }
    /// The landing slots of requests to peers.
    pub(super) PullSlots, pull_slots:
        changes { actions, copies, keys, landing, links, sessions, transfers }
        reads { common, config }
    /// Versions and who waits for them: workers, peers and copies. What one of them gets may free another, so they are one flow.
    pub(super) Answering, answering:
        changes {
            actions, bases, copies, counters, ended, exchanges, failure_rate, keys, landing, links, meters, packs_waiting, proofs,
            references, relays, sessions, spills, transfers
        }
        reads { common, config }
    /// Versions whose memory a worker wants to write again.
    pub(super) TakingBack, taking_back:
        changes {
            actions, ended, exchanges, failure_rate, keys, landing, links, meters, references, sessions, spills
        }
        reads { common, config }
    /// Counters and barriers: their events, and the effects.
    pub(super) Counting, counting:
        changes {
            actions, counters, ended, exchanges, failure_rate, keys, landing, links, meters, references, sessions,
            spills
        }
        reads { common, config }
    /// Limits on the keys and versions of a worker, a tenant and the node.
    pub(super) Limits, limits:
        changes { keys, sessions }
        reads { config }
    /// Fetches of workers: finding the owner, and pulling from it.
    pub(super) Fetching, fetching:
        changes {
            actions, bases, copies, counters, ended, exchanges, failure_rate, keys, landing, links, meters, packs_waiting,
            parents, proofs, references, relays, sessions, spills, transfers
        }
        reads { common, config }
    /// Pushes of workers: those that stay at this node, with the claims of their keys, and those that go to another one.
    pub(super) Pushing, pushing:
        changes {
            actions, bases, copies, counters, ended, endings, exchanges, failure_rate, keys, landing, links, meters,
            packs_waiting, proofs, references, relays, sessions, spills, transfers
        }
        reads { common, config }
    /// Pushes of other nodes to workers here.
    pub(super) Receiving, receiving:
        changes {
            actions, bases, copies, counters, ended, endings, exchanges, failure_rate, keys, landing, links, meters,
            packs_waiting, parents, pings, proofs, references, relays, sessions, spills, transfers
        }
        reads { common, config }
    /// Who owns a key, and everything that ends: keys, workers, names, links.
    pub(super) Ownership, ownership:
        changes {
            actions, bases, copies, counters, ended, endings, exchanges, failure_rate, keys, landing, links, meters,
            packs_waiting, parents, pings, proofs, references, relays, sessions, spills, transfers
        }
        reads { common, config }
}
