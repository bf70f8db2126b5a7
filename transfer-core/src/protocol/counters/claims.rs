//! The homes of names: claims of names in the directory, and the handling of its answers.

use super::barrier::Barrier;
use super::op::Stage;
use super::roster::Roster;
use super::{COUNTERS_PER_NODE, Counters, Effect, spoken};
use crate::fabric::LinkId;
use crate::op::{CounterAsk, Failure, FailureCode, RosterAsk};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::directory::{Claim, ClaimRefused, DirectoryRequest};
use crate::protocol::ids::OperationId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, ReservedFor};
use crate::time::Time;
use hashbrown::HashMap;

/// The most counters and barriers that the workers of one tenant may have made at this node. The rest is reserved for
/// other tenants.
const COUNTERS_PER_TENANT: u32 = COUNTERS_PER_NODE / 4 * 3;

/// The most names for which claims may be open at a time.
const MAX_CLAIMS: usize = 4096;

/// The most homes elsewhere that are remembered. At this number the table is cleared, and the directory is asked again.
const MAX_HOMES: usize = 1 << 16;

/// The known homes, and the counts of the counters and barriers that were made here.
pub(super) struct Claims {
    /// A number that differs at each start of this node.
    incarnation: u64,
    /// The homes of names that live at other nodes, as the directory gave them.
    homes: HashMap<Key, Name>,
    /// The number of counters, barriers and rosters that were ever made here. A place is never reused.
    made: u32,
    /// The number of identities that were given here.
    identities: u32,
    /// The number of counters and barriers that were ever made for each tenant.
    made_for: HashMap<Tenant, u32>,
    /// The number of open claims.
    open: usize,
}

pub(super) enum Entry {
    Claiming(Claiming),
    Home(Home),
}

/// The operations and requests that wait for the directory's answer to a claim.
#[derive(Default)]
pub(super) struct Claiming {
    /// The tenant for which the name is claimed.
    pub(super) tenant: Option<Tenant>,
    pub(super) ops: Vec<OperationId>,
    /// Requests of peers. The directory told these peers that this node is the home before its answer arrived here.
    pub(super) peers: Vec<(LinkId, u32)>,
    /// Whether this node has to recite something.
    pub(super) recites: bool,
    /// What peers have recited, with their tenants.
    pub(super) recited: Vec<(LinkId, Tenant, RosterAsk)>,
}

impl Claiming {
    /// The most recitals of peers that wait for one claim. The others are repeated by their nodes.
    pub(super) const MAX_RECITED: usize = 64;
}

/// A counter, barrier or roster that lives here.
pub(super) struct Home {
    pub(super) identity: u64,
    /// The tenant that it belongs to. Workers of other tenants may not use it.
    pub(super) tenant: Tenant,
    /// The number of its entry in the directory.
    entered: u64,
    /// Whether it belongs to the tenant, and counts. A roster does from its first commit on; before that it is kept only while
    /// somebody waits there.
    pub(super) is_made: bool,
    pub(super) what: What,
}

pub(super) enum What {
    /// The counter's place among the words.
    Counter(u32),
    Barrier(Barrier),
    Roster(Roster),
}

impl Claims {
    pub(super) fn new(incarnation: u64) -> Claims {
        Claims { incarnation, homes: HashMap::new(), made: 0, made_for: HashMap::new(), open: 0, identities: 0 }
    }

    /// The remembered home of a key.
    pub(super) fn home_of(&self, key: &Key) -> Option<&Name> {
        self.homes.get(key)
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Forgets all homes at a node, because the link to the node is lost.
    pub(super) fn forget_node(&mut self, node: &Name) {
        self.homes.retain(|_, home| home != node);
    }

    /// Forgets the remembered home of a key, because this node has answered that it is not the home.
    pub(super) fn forget_wrong(&mut self, key: &Key, node: &Name) {
        if self.homes.get(key) == Some(node) {
            self.homes.remove(key);
        }
    }

    fn remember(&mut self, key: &Key, node: &Name) {
        if self.homes.len() >= MAX_HOMES {
            self.homes.clear();
        }
        self.homes.insert(key.clone(), node.clone());
    }

    fn make(&mut self, key: &Key, tenant: Tenant, node: &Name, roster: Roster, entered: u64) -> Home {
        let (place, number) = (self.made, self.identities);
        self.identities = self.identities.wrapping_add(1);
        let is_made = !matches!(key.reserved_for(), Some((ReservedFor::Roster, _)));
        if is_made {
            self.count(tenant);
        }
        let what = match key.reserved_for() {
            Some((ReservedFor::Barrier, _)) => What::Barrier(Barrier::default()),
            Some((ReservedFor::Roster, _)) => What::Roster(roster),
            _ => What::Counter(place),
        };
        Home { identity: identity(node, self.incarnation, number), tenant, entered, is_made, what }
    }

    fn count(&mut self, tenant: Tenant) {
        self.made += 1;
        *self.made_for.entry(tenant).or_default() += 1;
    }
}

impl Counters {
    /// Routes an operation: to this node, to the remembered home, or to the directory with a claim.
    pub(super) fn find(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.ops.get(&id) else { return };
        let (key, tenant) = (op.key.clone(), op.tenant);
        // A worker opens a counter before it operates on it, so an operation must not create a lost counter anew.
        if let CounterAsk::Operate { home, identity, op } = op.ask.clone() {
            return match home == self.name {
                true => self.operate_here(now, id, identity, op),
                false => self.at(id, home),
            };
        }
        match self.by_key.get_mut(&key) {
            Some(Entry::Home(_)) => return self.here(now, id),
            Some(Entry::Claiming(claiming)) => {
                claiming.ops.push(id);
                return self.set_stage(id, Stage::Claiming);
            }
            None => {}
        }
        if let Some(home) = self.claims.homes.get(&key).cloned() {
            return self.at(id, home);
        }
        let claiming = Claiming { ops: vec![id], ..Claiming::default() };
        self.set_stage(id, Stage::Claiming);
        if !self.begin_claim(key, tenant, claiming) {
            let text =
                format!("the directory is being asked for {MAX_CLAIMS} counters and barriers already, the limit");
            self.fail(id, Failure::new(FailureCode::Busy, text));
        }
    }

    /// Claims a name for those that wait for it. Returns `false` if too many claims are open.
    pub(super) fn begin_claim(&mut self, key: Key, tenant: Tenant, claiming: Claiming) -> bool {
        let has_room = self.claims.open < MAX_CLAIMS;
        if has_room {
            self.claims.open += 1;
            self.by_key.insert(key.clone(), Entry::Claiming(Claiming { tenant: Some(tenant), ..claiming }));
            self.claim(key, tenant, 0);
        }
        has_room
    }

    fn claim(&mut self, key: Key, tenant: Tenant, entered: u64) {
        let (owner, tenant) = (self.name.clone(), self.tenants.name(tenant));
        let claim = Claim { key, owner, tenant, resident: false, takeover: false, entered };
        self.act(HostAction::Control(Control::Claim(claim)));
    }

    fn unclaim(&mut self, key: &Key) {
        let unclaim = DirectoryRequest::Unclaim { key: key.clone() };
        self.act(HostAction::Control(Control::Directory(unclaim)));
    }

    /// Claims everything that lives here again, because the directory is a new one.
    pub(crate) fn claim_all(&mut self) {
        let homes = self.by_key.iter().filter_map(|(key, entry)| match entry {
            Entry::Home(home) => Some((key.clone(), home.tenant, home.entered)),
            Entry::Claiming(_) => None,
        });
        let mut keys: Vec<(Key, Tenant, u64)> = homes.collect();
        keys.sort_unstable();
        for (key, tenant, entered) in keys {
            self.claim(key, tenant, entered);
        }
    }

    /// Sends an operation to its home at another node.
    pub(super) fn at(&mut self, id: OperationId, home: Name) {
        self.set_stage(id, Stage::Connecting(home.clone()));
        self.effects.push(Effect::Connect(id, home));
    }

    /// Handles the directory's answer to a claim.
    pub(crate) fn claimed(&mut self, now: Time, key: &Key, result: Result<u64, ClaimRefused>) {
        match self.by_key.get_mut(key) {
            Some(Entry::Claiming(claiming)) => {
                let claiming = std::mem::take(claiming);
                self.claims.open -= 1;
                self.by_key.remove(key);
                self.claim_answered(now, key, claiming, result);
            }
            // This node claimed the name again from a new directory. Another node had claimed it before, or the claim
            // is denied.
            Some(Entry::Home(_)) if matches!(result, Err(ClaimRefused::Owned { .. } | ClaimRefused::Denied(_))) => {
                self.ended(now, key);
            }
            Some(Entry::Home(home)) => home.entered = result.unwrap_or(home.entered),
            None if result.is_ok() => self.unclaim(key),
            None => {}
        }
    }

    /// Handles the loss of a name: another node had it from an earlier directory, and later than this one.
    pub(crate) fn lost_name(&mut self, now: Time, key: &Key) {
        if matches!(self.by_key.get(key), Some(Entry::Home(_))) {
            self.ended(now, key);
        }
    }

    /// Returns the failure if a limit keeps this tenant from making one more.
    fn too_many(&self, key: &Key, tenant: Tenant) -> Option<Failure> {
        let node = &self.name;
        let own = self.claims.made_for.get(&tenant).copied().unwrap_or(0);
        let limit = if self.claims.made >= COUNTERS_PER_NODE {
            format!("{COUNTERS_PER_NODE} counters and barriers live at node {node:?} already, the limit")
        } else if own >= COUNTERS_PER_TENANT {
            let who = self.tenants.in_words(tenant);
            format!("{own} counters and barriers of {who} live at node {node:?} already, the limit for one tenant")
        } else {
            return None;
        };
        Some(Failure::new(FailureCode::Busy, format!("{} was not made: {limit}", spoken(key))))
    }

    /// Gives a roster that lives here to the tenant whose worker is the first to commit.
    pub(super) fn make_roster(&mut self, key: &Key, tenant: Tenant) -> Result<(), Failure> {
        if self.home(key).is_none_or(|home| home.is_made) {
            return Ok(());
        }
        if let Some(failure) = self.too_many(key, tenant) {
            return Err(failure);
        }
        self.claims.count(tenant);
        if let Some(Entry::Home(home)) = self.by_key.get_mut(key) {
            (home.tenant, home.is_made) = (tenant, true);
        }
        Ok(())
    }

    /// Forgets a roster of which nothing was committed, and where nobody waits.
    pub(super) fn forget_unused(&mut self, key: &Key) {
        let is_unused =
            |home: &Home| !home.is_made && matches!(&home.what, What::Roster(roster) if !roster.is_awaited());
        if self.home(key).is_some_and(is_unused) {
            self.by_key.remove(key);
            self.unclaim(key);
        }
    }

    fn claim_answered(&mut self, now: Time, key: &Key, claiming: Claiming, result: Result<u64, ClaimRefused>) {
        let refused = match (result, claiming.tenant) {
            (Ok(entered), Some(tenant)) if !claiming.ops.is_empty() || claiming.recites => {
                match self.too_many(key, tenant) {
                    // A roster is made by its first commit.
                    Some(failure) if !matches!(key.reserved_for(), Some((ReservedFor::Roster, _))) => {
                        self.unclaim(key);
                        failure
                    }
                    _ => {
                        let roster = Roster::new(self.limits.unfinished_versions, self.rules, now);
                        let home = self.claims.make(key, tenant, &self.name, roster, entered);
                        self.by_key.insert(key.clone(), Entry::Home(home));
                        self.recite_here(now, key);
                        for (link, tenant, ask) in claiming.recited {
                            self.recited(now, link, (key.clone(), tenant), ask);
                        }
                        for id in claiming.ops {
                            self.here(now, id);
                        }
                        for (link, index) in claiming.peers {
                            self.serve_claimed(now, link, index);
                        }
                        self.forget_unused(key);
                        return;
                    }
                }
            }
            (Ok(_), _) => {
                // Every operation that wanted the name has ended.
                self.unclaim(key);
                return self.not_home(key, claiming.peers);
            }
            (Err(ClaimRefused::Owned { node, .. }), _) => {
                self.claims.remember(key, &node);
                if claiming.recites {
                    self.effects.push(Effect::Reach(node.clone()));
                }
                for id in claiming.ops {
                    self.at(id, node.clone());
                }
                return self.not_home(key, claiming.peers);
            }
            (Err(ClaimRefused::Denied(why)), _) => Failure::new(FailureCode::PermissionDenied, why),
            (Err(ClaimRefused::Full(why)), _) => {
                Failure::new(FailureCode::Busy, format!("{} is not entered: {why}", spoken(key)))
            }
            (Err(ClaimRefused::Unreachable(why)), _) => {
                let text = format!("the directory cannot be asked where {} lives: {why}", spoken(key));
                Failure::new(FailureCode::DirectoryUnreachable, text)
            }
        };
        for id in claiming.ops {
            self.fail(id, refused.clone());
        }
        self.not_home(key, claiming.peers);
    }

    fn not_home(&mut self, key: &Key, peers: Vec<(LinkId, u32)>) {
        for (link, index) in peers {
            self.refuse(link, index, self.no_home(key));
        }
    }

    pub(super) fn no_home(&self, key: &Key) -> Failure {
        Failure::new(FailureCode::NotOwner, format!("{} does not live at node {:?}", spoken(key), self.name))
    }

    pub(super) fn lost(key: &Key, home: &Name) -> Failure {
        let text = format!(
            "{} does not live at node {home:?} any more: that sidecar was restarted, or has lost the name to another node; open it \
             again, which may make a new one at 0",
            spoken(key)
        );
        Failure::new(FailureCode::CounterLost, text)
    }

    /// Forgets the home of a key. The directory may know another home by now.
    pub(crate) fn forget_home_of(&mut self, key: &Key) {
        self.claims.homes.remove(key);
    }
}

/// Returns the identity of a counter or barrier: FNV-1a of its node, the node's incarnation and its place. Identities
/// are unique in the job except for hash collisions.
fn identity(node: &Name, incarnation: u64, place: u32) -> u64 {
    let numbers = incarnation.to_le_bytes().into_iter().chain(place.to_le_bytes());
    let bytes = node.as_str().bytes().chain(numbers);
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
