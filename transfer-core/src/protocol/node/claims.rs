//! Who may publish a key: claims in the directory, their answers, and how a key ends.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::counters::Counters;
use crate::protocol::directory::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest};
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::RecordId;
use crate::protocol::keys::{Claimant, Claiming, Owner, Record, Waiter};
use crate::protocol::sessions::Op;
use crate::tensor::{Key, Name};
use crate::time::Time;

impl Node {
    /// Asks the directory for a key.
    pub(super) fn claim(&mut self, record: RecordId, claiming: Claiming) {
        let tenant = self.config.tenants.name(claiming.tenant);
        self.keys.claim(record, claiming, tenant, &mut self.actions);
    }

    /// Takes a key over for a worker of this sidecar. What its owner published stays until the directory has answered.
    pub(super) fn take_over(&mut self, record: RecordId, op: Op) {
        let Some(owner) = self.sessions.get(op.session).map(|s| (s.name().clone(), s.tenant())) else { return };
        let who = Claimant::Session(op.session);
        let id = self.sessions.begin(op);
        if self.keys.wait_behind_claim(record, id) {
            return;
        }
        if let Some(flow) = self.keys.detach_flow(record) {
            self.recall(flow);
        }
        self.claim(record, Claiming { pushes: vec![id], ..Claiming::new(owner, who, true) });
    }

    /// Handles news of the directory.
    pub fn directory_news(&mut self, now: Time, news: DirectoryNews) {
        match news {
            DirectoryNews::Attached => self.claim_all(),
            DirectoryNews::Claimed { key, result } => self.claimed(now, &key, result),
            DirectoryNews::KeyLost { key, owner } => self.key_lost(now, &key, &owner),
            DirectoryNews::Located { key, node, sequence } => self.located(now, &key, &node, sequence),
            DirectoryNews::WorkerLocated { worker, node } => self.worker_located(now, &worker, node.as_ref()),
        }
    }

    /// The directory has given a key of this node to another owner.
    pub(in crate::protocol) fn key_lost(&mut self, now: Time, key: &Key, owner: &Name) {
        if key.reserved_for().is_some() {
            return;
        }
        let Some(id) = self.keys.find(key) else { return };
        match self.keys.record(id).map(Record::owner) {
            None | Some(Owner::Nobody) => return,
            // The answer to this claim decides who has it next.
            Some(Owner::Claiming(_)) => {
                let before = self.keys.no_former_owner(id);
                self.tell_taken_over(key, before.as_ref(), owner);
                self.end_versions(id, false);
                return;
            }
            // One worker that pushes the same key to several nodes: each has what it got.
            Some(Owner::Session(session)) if self.sessions.get(*session).is_some_and(|s| s.name() == owner) => return,
            Some(Owner::Landed(landed)) if landed.owner == *owner => return,
            Some(Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_)) => {}
        }
        self.taken_away(now, id, owner);
    }

    /// A key that was this node's is another owner's.
    fn taken_away(&mut self, now: Time, id: RecordId, owner: &Name) {
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::KeepsLostKeys) {
            return;
        }
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        let Some(before) = self.keys.let_go(id) else { return };
        self.tell_taken_over(&key, Some(&before), owner);
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
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
    pub(in crate::protocol) fn claimed(&mut self, now: Time, key: &Key, result: Result<(), ClaimRefused>) {
        if key.reserved_for().is_some() {
            return self.count(now, |counters| counters.claimed(now, key, result));
        }
        let found = self.keys.find(key);
        let Some((id, owner)) = found.and_then(|id| Some((id, self.keys.record(id)?.owner()))) else {
            return self.claimed_for_nobody(key, &result);
        };
        match owner {
            Owner::Claiming(_) => {}
            Owner::Nobody => return self.claimed_for_nobody(key, &result),
            // It was given without the directory, or is entered again after the directory's restart: another was faster.
            Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_) => {
                match result {
                    Err(ClaimRefused::Owned { owner, .. }) => self.taken_away(now, id, &owner),
                    // The directory does not believe this node any more: what nobody is told of ends here, too.
                    Err(ClaimRefused::Denied(_)) => {
                        let me = self.config.name.clone();
                        self.taken_away(now, id, &me);
                    }
                    Err(ClaimRefused::Full(_) | ClaimRefused::Unreachable(_)) | Ok(()) => {}
                }
                return;
            }
        }
        let Some(Claiming { owner, who, before, pushes, behind, .. }) = self.keys.answer_claim(id) else { return };
        if before.is_some() && result.is_ok() {
            self.tell_taken_over(key, before.as_ref(), &owner);
            // It is another worker's now.
            self.end_versions(id, false);
        }
        match (result, who) {
            (Ok(()), Claimant::Gone) => self.end_key(now, id),
            (Ok(()), Claimant::Session(session)) => {
                self.keys.give(id, Owner::Session(session));
                self.keys.forget_location(key);
                let pushes: Vec<_> = pushes.into_iter().filter_map(|op| self.sessions.finish(op)).collect();
                // Who pushed has given up meanwhile: it would have the key, and nothing of it.
                if pushes.is_empty() {
                    self.end_key(now, id);
                }
                for op in pushes {
                    self.publish_op(now, id, op);
                }
            }
            (Ok(()), Claimant::Flow((link, flow))) => {
                self.keys.forget_location(key);
                self.flow_claimed(now, link, flow, id, owner);
            }
            (Err(refused), who) => {
                let failure = match refused {
                    ClaimRefused::Owned { owner, node } => key_owned(key, Some(&owner), &node),
                    ClaimRefused::Denied(why) => Failure::new(FailureCode::PermissionDenied, why),
                    ClaimRefused::Full(why) => {
                        self.keys.limits_reached_mut().keys += 1;
                        Failure::new(FailureCode::Busy, format!("key {key:?} is not entered: {why}"))
                    }
                    ClaimRefused::Unreachable(why) => Failure::new(
                        FailureCode::DirectoryUnreachable,
                        format!("the directory cannot be asked who owns key {key:?}: {why}"),
                    ),
                };
                let is_free = before.is_none();
                self.keys.claim_refused(id, before);
                for op in pushes {
                    self.fail_op(op, failure.clone());
                }
                if let Claimant::Flow((link, flow)) = who {
                    self.refuse_flow(link, flow, failure);
                }
                if is_free {
                    self.owner_gone(now, id);
                }
            }
        }
        for op in behind {
            if let Some(op) = self.sessions.finish(op) {
                self.push_here(now, op);
            }
        }
    }

    /// The key was claimed twice, of two directories, and the answer to the other claim has ended it.
    fn claimed_for_nobody(&mut self, key: &Key, result: &Result<(), ClaimRefused>) {
        if result.is_ok() {
            self.actions.ask_directory(DirectoryRequest::Unclaim { key: key.clone() });
        }
    }

    /// Everything that is owned here has to be entered again: the directory is a new one. What an earlier one numbered says nothing to it,
    /// whose clock may have been set back.
    pub(in crate::protocol) fn claim_all(&mut self) {
        self.keys.forget_locations();
        self.count(self.latest, Counters::claim_all);
        for (_, record) in self.keys.records().iter() {
            let owner = record.owner();
            let names = self.owner_name(owner).cloned().zip(self.owner_tenant(owner));
            if let Some((name, tenant)) = names {
                let (takeover, resident) = match owner {
                    Owner::Claiming(c) => (c.takeover, matches!(c.who, Claimant::Session(_))),
                    owner => (false, matches!(owner, Owner::Session(_))),
                };
                let (key, tenant) = (record.key().clone(), self.config.tenants.name(tenant));
                self.actions.claim(Claim { key, owner: name, tenant, resident, takeover });
            }
        }
        self.keys.resolve_all(&mut self.actions);
    }

    /// Every key that a worker of this node publishes, and who. For who compares nodes.
    #[cfg(test)]
    pub(crate) fn owners(&self) -> Vec<(Key, Name)> {
        let records = self.keys.records().iter().map(|(_, record)| record);
        let resident = records.filter(|r| matches!(r.owner(), Owner::Session(_)));
        resident.filter_map(|r| Some((r.key().clone(), self.owner_name(r.owner())?.clone()))).collect()
    }

    /// The workers that are found by their names here.
    #[cfg(test)]
    pub(crate) fn worker_names(&self) -> Vec<Name> {
        self.sessions.names()
    }

    /// Nobody publishes this key here any more. Its readers go on reading.
    pub(super) fn end_key(&mut self, now: Time, id: RecordId) {
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        let Some(before) = self.keys.let_go(id) else { return };
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
        }
        self.actions.ask_directory(DirectoryRequest::Unclaim { key });
        self.end_versions(id, false);
        self.owner_gone(now, id);
    }

    /// A key has no owner here any more: those who wait for it have to look elsewhere. Where its owner is known, that is as true as before:
    /// somebody here has claimed the key in vain, and the directory has nothing newer to say.
    pub(super) fn owner_gone(&mut self, now: Time, id: RecordId) {
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        for waiter in self.keys.take_waiters(id) {
            match waiter {
                Waiter::Local(op) => self.start_fetch(now, op),
                Waiter::Remote(link, index) => self.not_owner(now, link, index, &key),
            }
        }
        self.keys.tidy(id, &mut self.actions);
    }
}

pub(super) fn key_owned(key: &Key, owner: Option<&Name>, node: &Name) -> Failure {
    let owner = owner.map_or("another worker", Name::as_str);
    Failure::new(FailureCode::KeyOwned, format!("key {key:?} is owned by {owner:?} at node {node:?}"))
}
