//! The directory's state: attached nodes, owners of keys, watches. No I/O and no clock.

use super::entries::{Entries, Holder, NodeNo};
use super::item::{Answer, Hello, KeyAt, NodeAt, NodeItem};
use super::names::{Names, Owner};
use hashbrown::HashMap;
use transfer_core::protocol::{Claim, DirectoryRequest, Tenant, Tenants, Vouches};
use transfer_core::tensor::{Key, Name};

/// The reason why a sidecar is not attached: another sidecar of the same name is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachRefused {
    /// The other sidecar has answered.
    #[error(
        "node {node:?} is attached already: a sidecar of that name, incarnation {attached} at {address:?}, is running and answers; give \
         this one another --node, or end that one; or start this one with --replace to take its place"
    )]
    Lives {
        /// The name.
        node: Name,
        /// The incarnation that is attached.
        attached: u64,
        /// The address of the attached sidecar.
        address: String,
    },
    /// The other sidecar has proved more, and so keeps the name.
    #[error(
        "node {node:?} is attached already, and this one may not take its place: {why}; give this one another --node"
    )]
    Unproved {
        /// The name.
        node: Name,
        /// The reason why the newcomer's proof does not suffice.
        why: String,
    },
    /// Another of the directory's hosts answers at present, or none.
    #[error("host {host:?} of the directory stands by: {}", match leader {
        Some(leader) => format!("host {leader:?} leads it"),
        None => "no host leads it, as far as this one knows".to_owned(),
    })]
    StandsBy {
        /// The host that was asked.
        host: Name,
        /// The host that leads.
        leader: Option<Name>,
    },
    /// As many nodes that have proved nothing are attached as may be.
    #[error(
        "{MAX_UNPROVED_NODES} nodes that may speak for no tenant are attached, which is the limit, and node {node:?} would be one more: {why}"
    )]
    TooMany {
        /// The name.
        node: Name,
        /// The reason why this node may speak for no tenant.
        why: String,
    },
}

/// The most attached nodes that may speak for no tenant.
const MAX_UNPROVED_NODES: usize = 64;

/// The most watches of a node that may speak for no tenant. It can claim no key and enter no worker.
const MAX_UNPROVED_WATCHES: u64 = 64;

/// The holder of a name that another sidecar claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The number of its attachment.
    pub(crate) by: NodeNo,
    /// The refusal, if the holder lives.
    pub(crate) refused: AttachRefused,
}

/// The numbers of the directory's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of entered keys.
    pub keys: u64,
    /// The number of entered workers.
    pub workers: u64,
    /// The number of attached nodes.
    pub nodes: u64,
    /// The number of watches for keys.
    pub watches: u64,
}

/// The reason why a key or a worker is not entered.
enum NotEntered {
    /// Another worker owns the key, or has the name.
    Owned { owner: Name, node: Name },
    /// The tenant may not have the key, or the node may not speak for the tenant, or has reached its limit.
    Denied(String),
}

/// An entered worker.
#[derive(Debug, Clone, Copy)]
struct WorkerAt {
    tenant: Tenant,
    node: NodeNo,
    /// The number by which an earlier directory had entered it for this node. 0: none had.
    earlier: u64,
}

/// The registry. It passes answers to a callback, which must not call back.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The number before that of the first entry.
    before_first: u64,
    sequence: u64,
    next_node: u32,
    nodes: HashMap<NodeNo, NodeAt>,
    /// The tenants for which each node may speak.
    words: HashMap<NodeNo, Vouches>,
    tenants: Tenants,
    nodes_by_name: HashMap<Name, NodeNo>,
    /// The workers of each name, at most one of each tenant.
    workers: HashMap<Name, Vec<WorkerAt>>,
    entries: Entries,
    /// The most keys of one node.
    keys_per_node: u64,
    owners: Names,
    /// The watches of keys that have no entry, or no entry that is new enough.
    watches: HashMap<Key, Vec<NodeNo>>,
    /// The numbers of watches and workers of each node.
    has: HashMap<NodeNo, Has>,
}

/// The numbers of a node's watches and workers. Each is limited to the limit of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Has {
    watches: u64,
    workers: u64,
}

impl Registry {
    /// Makes an empty directory whose entries are numbered from `first_sequence` on.
    pub(crate) fn new(first_sequence: u64, tenants: Tenants) -> Registry {
        Registry {
            before_first: first_sequence,
            sequence: first_sequence,
            next_node: 0,
            nodes: HashMap::new(),
            words: HashMap::new(),
            tenants,
            nodes_by_name: HashMap::new(),
            workers: HashMap::new(),
            entries: Entries::default(),
            keys_per_node: u64::MAX,
            owners: Names::default(),
            watches: HashMap::new(),
            has: HashMap::new(),
        }
    }

    /// Makes an empty directory with the same rules. Numbers of attachments go on, because earlier ones may end later.
    pub(crate) fn begin_again(&self, first_sequence: u64) -> Registry {
        let mut registry = Registry::new(first_sequence, self.tenants.clone());
        (registry.next_node, registry.keys_per_node) = (self.next_node, self.keys_per_node);
        registry
    }

    /// Returns the number of the newest entry.
    pub(crate) fn newest(&self) -> u64 {
        self.sequence
    }

    /// Returns the name of an attached node.
    pub(crate) fn name_of(&self, no: NodeNo) -> Option<&Name> {
        self.nodes.get(&no).map(|at| &at.node)
    }

    /// Limits the keys of one node.
    pub(crate) fn limit_keys(&mut self, keys_per_node: u64) {
        self.keys_per_node = keys_per_node;
    }

    /// Returns the reason why a node cannot enter a key: it has reached its limit of keys. `None`: it can.
    fn too_many_keys(&self, from: NodeNo, key: &Key) -> Option<String> {
        let has = self.entries.count_of(from);
        let is_new = || self.entries.get(key.as_str()).is_none_or(|holder| holder.node != from);
        let node = self.nodes.get(&from).map_or("", |at| at.node.as_str());
        (has >= self.keys_per_node && is_new()).then(|| {
            format!(
                "node {node} has {} in the directory, which is limits.directory_keys_per_node of its host; delete some, or raise it",
                crate::text::counted(has, "key")
            )
        })
    }

    /// Checks whether a sidecar with this proof may take a name. It may not if the attached holder has proved more.
    pub(crate) fn may_attach(&self, hello: &Hello, word: &Vouches) -> Result<(), AttachRefused> {
        let earlier = self.nodes_by_name.get(&hello.node).and_then(|no| self.words.get(no));
        let (node, why) = (|| hello.node.clone(), || word.why_not().to_owned());
        match earlier {
            Some(earlier) if !word.covers(earlier) => Err(AttachRefused::Unproved { node: node(), why: why() }),
            None if word.is_for_nobody()
                && self.words.values().filter(|word| word.is_for_nobody()).count() >= MAX_UNPROVED_NODES =>
            {
                Err(AttachRefused::TooMany { node: node(), why: why() })
            }
            _ => Ok(()),
        }
    }

    /// Attaches a node. Returns its number, and the number of its earlier attachment, whose entries are removed. A
    /// different sidecar of the same name, which the node does not replace and which has proved as much, must be
    /// [detached](Registry::detach) before.
    pub(crate) fn attach(&mut self, hello: &Hello, word: Vouches) -> Result<(NodeNo, Option<NodeNo>), Taken> {
        let earlier = self.nodes_by_name.get(&hello.node).copied();
        if let Some((by, at)) = earlier.and_then(|no| Some((no, self.nodes.get(&no)?)))
            && at.incarnation != hello.incarnation
            && !hello.replace
            // Who has proved more need not wait for the other one's end, which may never come.
            && self.words.get(&by).is_none_or(|holder| holder.covers(&word))
        {
            let (node, attached, address) = (hello.node.clone(), at.incarnation, at.address.to_string());
            return Err(Taken { by, refused: AttachRefused::Lives { node, attached, address } });
        }
        if let Some(no) = earlier {
            self.detach(no);
        }
        let no = NodeNo(self.next_node);
        self.next_node += 1;
        let Hello { node, address, incarnation, local, .. } = hello.clone();
        self.nodes_by_name.insert(node.clone(), no);
        self.words.insert(no, word);
        self.nodes.insert(no, NodeAt { node, address, local, incarnation });
        Ok((no, earlier))
    }

    /// Detaches a node, and removes all its entries. Returns the node.
    pub(crate) fn detach(&mut self, no: NodeNo) -> Option<NodeAt> {
        let at = self.nodes.remove(&no)?;
        self.nodes_by_name.remove(&at.node);
        self.words.remove(&no);
        self.has.remove(&no);
        self.workers.retain(|_, named| {
            named.retain(|worker| worker.node != no);
            !named.is_empty()
        });
        self.entries.remove_node(no, |owner| self.owners.give_back(owner));
        self.watches.retain(|_, waiting| {
            waiting.retain(|node| *node != no);
            !waiting.is_empty()
        });
        Some(at)
    }

    /// Returns all nodes, in no particular order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeAt> {
        self.nodes.values()
    }

    /// Handles an item of an attached node. Passes the answers with their receivers to `answer`, in order. Ignores a
    /// node that is not attached.
    pub(crate) fn apply(&mut self, from: NodeNo, item: NodeItem, answer: &mut dyn FnMut(NodeNo, Answer)) {
        if !self.nodes.contains_key(&from) {
            return;
        }
        match item {
            NodeItem::Claim { number, claim: Claim { key, owner, tenant, resident, takeover, entered } } => {
                if let Some(why) = self.too_many_keys(from, &key) {
                    return answer(from, Answer::ClaimFull { number, why: why.into() });
                }
                let whose = (owner.clone(), tenant);
                let claimed = self.may_claim(from, &key, &whose.1);
                let claimed = claimed.and_then(|tenant| self.may_own(from, (&owner, tenant), resident));
                match claimed.and_then(|()| self.claim(from, &key, &whose, takeover, entered)) {
                    // The same worker has pushed it to another node since.
                    Ok(None) => {
                        answer(from, Answer::Claimed { number, sequence: entered });
                        answer(from, Answer::Lost { key, owner });
                    }
                    Ok(Some((sequence, before))) => {
                        answer(from, Answer::Claimed { number, sequence });
                        if let Some(before) = before.filter(|node| *node != from) {
                            answer(before, Answer::Lost { key: key.clone(), owner });
                        }
                        for node in self.watches.remove(&key).into_iter().flatten() {
                            self.less(node, |has| &mut has.watches);
                            if let Some(at) = self.nodes.get(&from) {
                                answer(node, Answer::Located { key: key.clone(), at: at.clone(), sequence });
                            }
                        }
                    }
                    Err(NotEntered::Owned { owner, node }) => {
                        answer(from, Answer::ClaimRefused { number, owner, node })
                    }
                    Err(NotEntered::Denied(why)) => answer(from, Answer::ClaimDenied { number, why: why.into() }),
                }
            }
            NodeItem::Request(DirectoryRequest::Unclaim { key }) => {
                if self.entries.get(key.as_str()).is_some_and(|h| h.node == from)
                    && let Some(holder) = self.entries.remove(key.as_str())
                {
                    self.owners.give_back(holder.owner);
                }
            }
            NodeItem::WorkerUp { worker, tenant, entered } => {
                match self.enter_worker(from, &worker, &tenant, entered) {
                    Ok((entered, before)) => {
                        if let Some((before, at)) = before.zip(self.nodes.get(&from)) {
                            let (worker, node) = (worker.clone(), at.node.clone());
                            answer(before, Answer::WorkerRefused { worker, node });
                        }
                        answer(from, Answer::WorkerAdmitted { worker, entered });
                    }
                    Err(NotEntered::Owned { node, .. }) => answer(from, Answer::WorkerRefused { worker, node }),
                    Err(NotEntered::Denied(why)) => answer(from, Answer::WorkerDenied { worker, why: why.into() }),
                }
            }
            NodeItem::WorkerDown { worker } => {
                let Some(named) = self.workers.get_mut(&worker) else { return };
                let before = named.len();
                named.retain(|worker| worker.node != from);
                let left = before - named.len();
                if named.is_empty() {
                    self.workers.remove(&worker);
                }
                (0..left).for_each(|_| self.less(from, |has| &mut has.workers));
            }
            NodeItem::Request(DirectoryRequest::Resolve { key, newer_than }) => {
                match self.key(&key).filter(|k| k.sequence > newer_than) {
                    Some(KeyAt { at, sequence, .. }) => answer(from, Answer::Located { key, at, sequence }),
                    None => {
                        let is_new = self.watches.get(&key).is_none_or(|waiting| !waiting.contains(&from));
                        // Beyond the limit the node gets no answer, so its waiters end at their deadline.
                        if is_new && self.one_more(from, |has| &mut has.watches) {
                            self.watches.entry(key).or_default().push(from);
                        }
                    }
                }
            }
            NodeItem::Request(DirectoryRequest::StopResolve { key }) => {
                let Some(waiting) = self.watches.get_mut(&key) else { return };
                let before = waiting.len();
                waiting.retain(|node| *node != from);
                let stops = waiting.len() < before;
                if waiting.is_empty() {
                    self.watches.remove(&key);
                }
                if stops {
                    self.less(from, |has| &mut has.watches);
                }
            }
            NodeItem::Request(DirectoryRequest::ResolveWorker { worker, tenant }) => {
                let own = self.tenants.called(tenant.as_str()).and_then(|tenant| self.worker_of(&worker, tenant));
                let at = own.and_then(|worker| self.nodes.get(&worker.node)).or_else(|| self.worker(&worker));
                let node = at.map(|at| at.node.clone());
                answer(from, Answer::WorkerLocated { worker, tenant, node });
            }
            NodeItem::ResolveNode { node } => {
                let at = self.node(&node).cloned();
                answer(from, Answer::NodeLocated { node, at });
            }
            // The attachment has handled these items. They change no entry.
            NodeItem::Request(DirectoryRequest::Recited) | NodeItem::Pong { .. } | NodeItem::Leave => {}
        }
    }

    /// Adds one to a count of a node. Returns `false` if the node has reached its limit.
    fn one_more(&mut self, node: NodeNo, of: fn(&mut Has) -> &mut u64) -> bool {
        let limit = match self.words.get(&node).is_some_and(Vouches::is_for_nobody) {
            true => self.keys_per_node.min(MAX_UNPROVED_WATCHES),
            false => self.keys_per_node,
        };
        let count = of(self.has.entry(node).or_default());
        let fits = *count < limit;
        *count += u64::from(fits);
        fits
    }

    fn less(&mut self, node: NodeNo, of: fn(&mut Has) -> &mut u64) {
        if let Some(has) = self.has.get_mut(&node) {
            *of(has) = of(has).saturating_sub(1);
        }
    }

    /// Returns the entered worker of this name and tenant.
    fn worker_of(&self, worker: &Name, tenant: Tenant) -> Option<WorkerAt> {
        self.workers.get(worker)?.iter().find(|named| named.tenant == tenant).copied()
    }

    /// Enters a worker. Returns the entry's number, and the node that has lost the name to this one.
    ///
    /// A worker of the same name and tenant at another node keeps the name, unless `entered` shows that an earlier
    /// directory has entered this one, and later than that one.
    fn enter_worker(
        &mut self,
        from: NodeNo,
        worker: &Name,
        tenant: &Name,
        entered: u64,
    ) -> Result<(u64, Option<NodeNo>), NotEntered> {
        let tenant = self.may_speak(from, tenant)?;
        let earlier = self.earlier(entered);
        let holder = self.worker_of(worker, tenant);
        let other = holder.filter(|holder| holder.node != from);
        if let Some(at) = other.filter(|other| other.earlier >= earlier).and_then(|other| self.nodes.get(&other.node)) {
            return Err(NotEntered::Owned { owner: worker.clone(), node: at.node.clone() });
        }
        if holder.is_none_or(|holder| holder.node != from) && !self.one_more(from, |has| &mut has.workers) {
            let node = self.nodes.get(&from).map_or("", |at| at.node.as_str());
            let limit = crate::text::counted(self.keys_per_node, "worker");
            return Err(NotEntered::Denied(format!(
                "node {node:?} has entered {limit}, which is limits.directory_keys_per_node of the directory's host"
            )));
        }
        if let Some(other) = other {
            self.less(other.node, |has| &mut has.workers);
        }
        let named = self.workers.entry(worker.clone()).or_default();
        named.retain(|named| named.tenant != tenant);
        named.push(WorkerAt { tenant, node: from, earlier });
        self.sequence += 1;
        Ok((self.sequence, other.map(|other| other.node)))
    }

    /// Checks whether a worker may own keys. Two workers of one name may have connected while their nodes could not
    /// reach the directory. Then only the entered worker may own a key.
    fn may_own(&self, from: NodeNo, (owner, tenant): (&Name, Tenant), resident: bool) -> Result<(), NotEntered> {
        let entered = self.worker_of(owner, tenant).filter(|worker| resident && worker.node != from);
        match entered.and_then(|worker| self.nodes.get(&worker.node)) {
            Some(at) => Err(NotEntered::Owned { owner: owner.clone(), node: at.node.clone() }),
            None => Ok(()),
        }
    }

    /// Checks whether a node may speak for a tenant. Returns the tenant.
    fn may_speak(&self, from: NodeNo, tenant: &Name) -> Result<Tenant, NotEntered> {
        let Some(known) = self.tenants.called(tenant.as_str()) else {
            let why = format!(
                "tenant {tenant:?} is none that the directory's host knows: give it that name by --tenants there, too"
            );
            return Err(NotEntered::Denied(why));
        };
        let node = self.nodes.get(&from).map(|at| &at.node);
        if let Some((word, node)) = self.words.get(&from).zip(node).filter(|(word, _)| !word.includes(known)) {
            let why = word.why_not();
            return Err(NotEntered::Denied(format!(
                "node {node:?} may not speak for tenant {tenant} in the directory: {why}"
            )));
        }
        Ok(known)
    }

    /// Checks whether a node may speak for a tenant, and whether the tenant may own this key. Returns the tenant.
    fn may_claim(&self, from: NodeNo, key: &Key, tenant: &Name) -> Result<Tenant, NotEntered> {
        let known = self.may_speak(from, tenant)?;
        self.tenants.may_own(known, key).map_err(|failure| NotEntered::Denied(failure.text))?;
        Ok(known)
    }

    /// Returns the number by which an earlier directory has entered a key or a worker, or 0. This directory decided itself about
    /// a number of its own, and nobody can have a later one.
    fn earlier(&self, entered: u64) -> u64 {
        if entered <= self.before_first { entered } else { 0 }
    }

    /// Enters a key. Returns the entry's number, and the node that had the key before; `None` if the same owner has a later
    /// entry at another node.
    fn claim(
        &mut self,
        from: NodeNo,
        key: &Key,
        owner: &Owner,
        takeover: bool,
        entered: u64,
    ) -> Result<Option<(u64, Option<NodeNo>)>, NotEntered> {
        let holder = self.entries.get(key.as_str());
        let other = holder.and_then(|h| Some((h, self.owners.get(h.owner)?, self.nodes.get(&h.node)?)));
        match other {
            Some((holder, (other, tenant), at)) if (other, tenant) != (&owner.0, &owner.1) => {
                // Both had it from an earlier directory, which gave it to this owner later.
                let is_later = (1..self.earlier(entered)).contains(&holder.earlier) && *tenant == owner.1;
                if !takeover && !is_later {
                    return Err(NotEntered::Owned { owner: other.clone(), node: at.node.clone() });
                }
                if *tenant != owner.1 {
                    let why = format!(
                        "key {key:?} belongs to tenant {tenant}, and worker {:?} to tenant {}: nobody takes over another tenant's key",
                        owner.0, owner.1
                    );
                    return Err(NotEntered::Denied(why));
                }
            }
            Some((holder, ..)) if entered > 0 && holder.node != from && holder.first_entered() > entered => {
                return Ok(None);
            }
            _ => {}
        }
        self.sequence += 1;
        let holder = Holder { owner: self.owners.take(owner), node: from, sequence: self.sequence, earlier: entered };
        let before = self.entries.insert(key, holder);
        if let Some(before) = before {
            self.owners.give_back(before.owner);
        }
        Ok(Some((self.sequence, before.map(|b| b.node))))
    }

    /// Returns the entry for a key.
    pub(crate) fn key(&self, key: &Key) -> Option<KeyAt> {
        let holder = self.entries.get(key.as_str())?;
        Some(KeyAt {
            owner: self.owners.get(holder.owner)?.0.clone(),
            at: self.nodes.get(&holder.node)?.clone(),
            sequence: holder.sequence,
        })
    }

    /// Returns the node of a worker; where several tenants have one of that name, of the one that was entered first.
    pub(crate) fn worker(&self, worker: &Name) -> Option<&NodeAt> {
        self.nodes.get(&self.workers.get(worker)?.first()?.node)
    }

    /// Returns a node by its name.
    pub(crate) fn node(&self, node: &Name) -> Option<&NodeAt> {
        self.nodes.get(self.nodes_by_name.get(node)?)
    }

    /// Returns the numbers of entries.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            keys: self.entries.len() as u64,
            workers: self.workers.values().map(|named| named.len() as u64).sum(),
            nodes: self.nodes.len() as u64,
            watches: self.watches.values().map(|w| w.len() as u64).sum(),
        }
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
