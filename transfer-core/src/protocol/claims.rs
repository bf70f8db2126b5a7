//! Who may publish a key: claims in the directory, their answers, and how a key ends.

use super::ids::{OperationId, RecordId};
use super::node::Node;
use super::ops::Op;
use super::store::{Claimant, Claiming, Owner, Record};
use super::waiters::Waiter;
use super::{Control, HostAction, NodeEvent, Tenant};
use crate::op::{Failure, FailureCode};
use crate::tensor::{Key, Name};
use crate::time::Time;

impl Node {
    pub(super) fn claim(
        &mut self,
        record: RecordId,
        key: Key,
        (owner, tenant): (Name, Tenant),
        who: Claimant,
        takeover: bool,
        pushes: Vec<OperationId>,
    ) {
        let (behind, before) = (Vec::new(), None);
        let claiming = Claiming { owner: owner.clone(), tenant, who, takeover, before, behind, pushes };
        self.store.set_owner(record, Owner::Claiming(Box::new(claiming)));
        if let Some(r) = self.store.records.get_mut(record) {
            if std::mem::take(&mut r.resolving) {
                self.actions.push(HostAction::Control(Control::StopResolve { key: key.clone() }));
            }
            let resident = matches!(who, Claimant::Session(_));
            let tenant = self.config.tenants.name(tenant);
            self.actions.push(HostAction::Control(Control::Claim { key, owner, tenant, resident, takeover }));
        }
        self.count_key(record);
    }

    /// Takes a key over for a worker of this sidecar. What its owner published stays until the directory has answered.
    pub(super) fn take_over(&mut self, record: RecordId, op: Op) {
        let Some((owner, tenant)) = self.sessions.get(&op.session).map(|s| (s.name.clone(), s.domain)) else { return };
        let (key, who) = (op.key.clone(), Claimant::Session(op.session));
        let id = self.keep_op(op);
        let Some(r) = self.store.records.get_mut(record) else { return };
        if let Owner::Claiming(claiming) = &mut r.owner {
            return claiming.behind.push(id);
        }
        let Some(mut before) = self.store.set_owner(record, Owner::Nobody) else { return };
        let flow = if let Owner::Landed(landed) = &mut before { landed.flow.take() } else { None };
        let (behind, before) = (Vec::new(), Some(before));
        let claiming = Claiming { owner: owner.clone(), tenant, who, takeover: true, before, behind, pushes: vec![id] };
        self.store.set_owner(record, Owner::Claiming(Box::new(claiming)));
        if let Some((link, flow)) = flow {
            self.recall(link, flow);
        }
        let tenant = self.config.tenants.name(tenant);
        self.actions.push(HostAction::Control(Control::Claim { key, owner, tenant, resident: true, takeover: true }));
    }

    /// The directory has given a key of this node to another owner.
    pub fn key_lost(&mut self, now: Time, key: &Key, owner: &Name) {
        if key.reserved_for().is_some() {
            return;
        }
        let Some(id) = self.store.find(key.as_str()) else { return };
        let Some(record) = self.store.records.get_mut(id) else { return };
        match &mut record.owner {
            Owner::Nobody => return,
            // The answer to this claim decides who has it next.
            Owner::Claiming(_) => {
                let before = self.store.no_former_owner(id);
                self.tell_taken_over(key, before.as_ref(), owner);
                self.end_versions(id, false);
                return;
            }
            // One worker that pushes the same key to several nodes: each has what it got.
            Owner::Session(session) if self.sessions.get(session).is_some_and(|s| s.name == *owner) => return,
            Owner::Landed(landed) if landed.owner == *owner => return,
            Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_) => {}
        }
        self.taken_away(now, id, owner);
    }

    /// A key that was this node's is another owner's.
    fn taken_away(&mut self, now: Time, id: RecordId, owner: &Name) {
        #[cfg(test)]
        if self.config.broken == Some(super::Broken::KeepsLostKeys) {
            return;
        }
        let Some(record) = self.store.records.get_mut(id) else { return };
        let key = &record.key.clone();
        let Some(before) = self.store.set_owner(id, Owner::Nobody) else { return };
        self.count_key(id);
        self.tell_taken_over(key, Some(&before), owner);
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
        }
        if let Some(record) = self.store.records.get_mut(id) {
            record.next_version = 0;
        }
        self.end_versions(id, false);
        self.owner_gone(now, id);
    }

    fn tell_taken_over(&mut self, key: &Key, before: Option<&Owner>, to: &Name) {
        if let Some(from) = before.and_then(|before| self.owner_name(before)).filter(|from| *from != to).cloned() {
            self.tell(NodeEvent::KeyTakenOver { key: key.clone(), from, to: to.clone() });
        }
    }

    /// The directory answered a claim.
    pub fn claimed(&mut self, now: Time, key: &Key, result: Result<(), super::ClaimRefused>) {
        if key.reserved_for().is_some() {
            return self.counter_claimed(now, key, result);
        }
        let found = self.store.find(key.as_str());
        let Some((id, record)) = found.and_then(|id| Some((id, self.store.records.get_mut(id)?))) else {
            return self.claimed_for_nobody(key, &result);
        };
        let claiming = match &mut record.owner {
            Owner::Claiming(claiming) => claiming,
            Owner::Nobody => return self.claimed_for_nobody(key, &result),
            // It was given without the directory, or is entered again after the directory's restart: another was faster.
            Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_) => {
                match result {
                    Err(super::ClaimRefused::Owned { owner, .. }) => self.taken_away(now, id, &owner),
                    // The directory does not believe this node any more: what nobody is told of ends here, too.
                    Err(super::ClaimRefused::Denied(_)) => {
                        let me = self.config.name.clone();
                        self.taken_away(now, id, &me);
                    }
                    Err(super::ClaimRefused::Full(_) | super::ClaimRefused::Unreachable(_)) | Ok(()) => {}
                }
                return;
            }
        };
        let who = claiming.who;
        let owner = claiming.owner.clone();
        let pushes = std::mem::take(&mut claiming.pushes);
        let behind = std::mem::take(&mut claiming.behind);
        let before = self.store.no_former_owner(id);
        if before.is_some() && result.is_ok() {
            self.tell_taken_over(key, before.as_ref(), &owner);
            // It is another worker's now.
            self.end_versions(id, false);
        }
        let Some(record) = self.store.records.get_mut(id) else { return };
        match (result, who) {
            (Ok(()), Claimant::Gone) => self.end_key(now, id),
            (Ok(()), Claimant::Session(session)) => {
                record.begin_epoch();
                self.store.set_owner(id, Owner::Session(session));
                self.count_key(id);
                self.locations.remove(key);
                let pushes: Vec<_> = pushes.into_iter().filter_map(|op| self.finish_op(op)).collect();
                // Who pushed has given up meanwhile: it would have the key, and nothing of it.
                if pushes.is_empty() {
                    self.end_key(now, id);
                }
                for op in pushes {
                    self.publish_op(now, id, op);
                }
            }
            (Ok(()), Claimant::Flow(link, flow)) => {
                self.locations.remove(key);
                self.flow_claimed(now, link, flow, id, owner);
            }
            (Err(refused), who) => {
                let failure = match refused {
                    super::ClaimRefused::Owned { owner, node } => key_owned(key, Some(&owner), &node),
                    super::ClaimRefused::Denied(why) => Failure::new(FailureCode::PermissionDenied, why),
                    super::ClaimRefused::Full(why) => {
                        self.store.counted.reached.keys += 1;
                        Failure::new(FailureCode::Busy, format!("key {key:?} is not entered: {why}"))
                    }
                    super::ClaimRefused::Unreachable(why) => Failure::new(
                        FailureCode::DirectoryUnreachable,
                        format!("the directory cannot be asked who owns key {key:?}: {why}"),
                    ),
                };
                let is_free = before.is_none();
                self.store.set_owner(id, before.unwrap_or(Owner::Nobody));
                self.count_key(id);
                for op in pushes {
                    self.fail_op(op, failure.clone());
                }
                if let Claimant::Flow(link, flow) = who {
                    self.refuse_flow(link, flow, failure);
                }
                if is_free {
                    self.owner_gone(now, id);
                }
            }
        }
        for op in behind {
            if let Some(op) = self.finish_op(op) {
                self.push_here(now, op);
            }
        }
    }

    /// The key was claimed twice, of two directories, and the answer to the other claim has ended it.
    fn claimed_for_nobody(&mut self, key: &Key, result: &Result<(), super::ClaimRefused>) {
        if result.is_ok() {
            self.actions.push(HostAction::Control(Control::Unclaim { key: key.clone() }));
        }
    }

    /// Everything that is owned here has to be entered again: the directory is a new one. What an earlier one numbered says nothing to it,
    /// whose clock may have been set back.
    pub fn claim_all(&mut self) {
        self.locations.clear();
        self.claim_all_counters();
        for id in self.store.records.ids(Record::is_owned) {
            let Some(record) = self.store.records.get(id) else { continue };
            let takeover = matches!(&record.owner, Owner::Claiming(c) if c.takeover);
            let owner = match &record.owner {
                Owner::Nobody => continue,
                Owner::Claiming(c) => Some(c.owner.clone()),
                Owner::Session(s) => self.sessions.get(s).map(|s| s.name.clone()),
                Owner::Landed(l) => Some(l.owner.clone()),
                Owner::Outlived(o) => Some(o.owner.clone()),
            };
            let tenant = Node::tenant_of(&self.sessions, &record.owner);
            if let (Some(owner), Some(tenant)) = (owner, tenant) {
                let tenant = self.config.tenants.name(tenant);
                let key = record.key.clone();
                let resident = match &record.owner {
                    Owner::Session(_) => true,
                    Owner::Claiming(c) => matches!(c.who, Claimant::Session(_)),
                    Owner::Nobody | Owner::Landed(_) | Owner::Outlived(_) => false,
                };
                self.actions.push(HostAction::Control(Control::Claim { key, owner, tenant, resident, takeover }));
            }
        }
        for id in self.store.records.ids(|r| r.resolving) {
            if let Some(record) = self.store.records.get(id) {
                let key = record.key.clone();
                self.actions.push(HostAction::Control(Control::Resolve { key, newer_than: 0 }));
            }
        }
    }

    /// Every key that a worker of this node publishes, and who. For who compares nodes.
    #[cfg(test)]
    pub(crate) fn owners(&self) -> Vec<(Key, Name)> {
        let records = self.store.records.iter().map(|(_, record)| record);
        let resident = records.filter(|r| matches!(r.owner, Owner::Session(_)));
        resident.filter_map(|r| Some((r.key.clone(), self.owner_name(&r.owner)?.clone()))).collect()
    }

    /// The workers that are found by their names here.
    #[cfg(test)]
    pub(crate) fn worker_names(&self) -> Vec<Name> {
        self.workers.keys().cloned().collect()
    }

    pub(super) fn tidy_record(&mut self, id: RecordId) {
        if let Some(key) = self.store.tidy(id) {
            self.actions.push(HostAction::Control(Control::StopResolve { key }));
        }
    }

    /// Nobody publishes this key here any more. Its readers go on reading.
    pub(super) fn end_key(&mut self, now: Time, id: RecordId) {
        let Some(record) = self.store.records.get_mut(id) else { return };
        record.next_version = 0;
        let key = record.key.clone();
        match self.store.set_owner(id, Owner::Nobody).unwrap_or(Owner::Nobody) {
            Owner::Claiming(mut claiming) if claiming.who != Claimant::Gone => {
                // The answer has to be awaited, or the entry would stay in the directory for ever.
                claiming.who = Claimant::Gone;
                claiming.pushes.clear();
                self.store.set_owner(id, Owner::Claiming(claiming));
                return;
            }
            Owner::Nobody => {}
            Owner::Landed(landed) => self.landed_key_ended(&landed),
            Owner::Claiming(_) | Owner::Session(_) | Owner::Outlived(_) => {}
        }
        self.count_key(id);
        self.actions.push(HostAction::Control(Control::Unclaim { key }));
        self.end_versions(id, false);
        self.owner_gone(now, id);
    }

    /// A key has no owner here any more: those who wait for it have to look elsewhere.
    pub(super) fn owner_gone(&mut self, now: Time, id: RecordId) {
        let Some(record) = self.store.records.get_mut(id) else { return };
        let key = record.key.clone();
        for waiter in record.take_waiters() {
            match waiter {
                Waiter::Local(op) => self.look_again(now, op),
                Waiter::Remote(link, index) => self.not_owner(now, link, index, &key),
            }
        }
        self.tidy_record(id);
    }
}

pub(super) fn key_owned(key: &Key, owner: Option<&Name>, node: &Name) -> Failure {
    let owner = owner.map_or("another worker", Name::as_str);
    Failure::new(FailureCode::KeyOwned, format!("key {key:?} is owned by {owner:?} at node {node:?}"))
}
