//! Who may publish a key: claims in the directory, their answers, and how a key ends.

use super::node::Node;
use super::ops::Op;
use super::slab::Id;
use super::store::{Claimant, Owner, Record, Waiter};
use super::{Action, Control};
use crate::op::{Failure, FailureCode};
use crate::tensor::{Key, Name};
use crate::time::Time;

impl Node {
    pub(super) fn claim(&mut self, record: Id<Record>, key: Key, owner: Name, who: Claimant, pushes: Vec<Id<Op>>) {
        if let Some(r) = self.store.records.get_mut(record) {
            let claiming = super::store::Claiming { owner: owner.clone(), who, pushes };
            r.owner = Owner::Claiming(Box::new(claiming));
            if std::mem::take(&mut r.resolving) {
                self.actions.push_back(Action::Control(Control::StopResolve { key: key.clone() }));
            }
            self.actions.push_back(Action::Control(Control::Claim { key, owner }));
        }
    }

    /// The directory answered a claim.
    pub fn claimed(&mut self, now: Time, key: &Key, result: Result<(), super::ClaimRefused>) {
        if key.reserved_for().is_some() {
            return self.counter_claimed(now, key, result);
        }
        let Some(id) = self.store.find(key.as_str()) else { return };
        let Some(record) = self.store.records.get_mut(id) else { return };
        let Owner::Claiming(claiming) = &mut record.owner else { return };
        let who = claiming.who;
        let owner = claiming.owner.clone();
        let pushes = std::mem::take(&mut claiming.pushes);
        match (result, who) {
            (Ok(()), Claimant::Gone) => self.end_key(now, id),
            (Ok(()), Claimant::Session(session)) => {
                record.owner = Owner::Session(session);
                record.next_version = 0;
                self.locations.remove(key);
                for op in pushes {
                    if let Some(op) = self.finish_op(op) {
                        self.publish_op(now, id, op);
                    }
                }
            }
            (Ok(()), Claimant::Flow(link, flow)) => {
                self.locations.remove(key);
                self.flow_claimed(now, link, flow, id, owner);
            }
            (Err(refused), who) => {
                let failure = match refused {
                    super::ClaimRefused::Owned { owner, node } => key_owned(key, Some(&owner), &node),
                    super::ClaimRefused::Unreachable(why) => Failure::new(
                        FailureCode::DirectoryUnreachable,
                        format!("the directory cannot be asked who owns key {key:?}: {why}"),
                    ),
                };
                record.owner = Owner::Nobody;
                for op in pushes {
                    self.fail_op(op, failure.clone());
                }
                if let Claimant::Flow(link, flow) = who {
                    self.refuse_flow(link, flow, failure);
                }
                self.owner_gone(now, id);
            }
        }
    }

    /// Everything that is owned here has to be entered again: the directory is a new one.
    pub fn claim_all(&mut self) {
        self.claim_all_counters();
        for id in self.store.records.ids(Record::is_owned) {
            let Some(record) = self.store.records.get(id) else { continue };
            let owner = match &record.owner {
                Owner::Nobody => continue,
                Owner::Claiming(c) => Some(c.owner.clone()),
                Owner::Session(s) => self.sessions.get(s).map(|s| s.name.clone()),
                Owner::Landed(l) => Some(l.owner.clone()),
            };
            if let Some(owner) = owner {
                let key = record.key.clone();
                self.actions.push_back(Action::Control(Control::Claim { key, owner }));
            }
        }
        for id in self.store.records.ids(|r| r.resolving) {
            if let Some(record) = self.store.records.get(id) {
                let key = record.key.clone();
                self.actions.push_back(Action::Control(Control::Resolve { key, newer_than: 0 }));
            }
        }
    }

    pub(super) fn tidy_record(&mut self, id: Id<Record>) {
        if let Some(key) = self.store.tidy(id) {
            self.actions.push_back(Action::Control(Control::StopResolve { key }));
        }
    }

    /// Nobody publishes this key here any more. Its readers go on reading.
    pub(super) fn end_key(&mut self, now: Time, id: Id<Record>) {
        let Some(record) = self.store.records.get_mut(id) else { return };
        let owner = std::mem::replace(&mut record.owner, Owner::Nobody);
        record.next_version = 0;
        let (key, published) = (record.key.clone(), record.published.take());
        match owner {
            Owner::Claiming(mut claiming) if claiming.who != Claimant::Gone => {
                // The answer has to be awaited, or the entry would stay in the directory for ever.
                claiming.who = Claimant::Gone;
                claiming.pushes.clear();
                record.owner = Owner::Claiming(claiming);
                return;
            }
            Owner::Nobody => {}
            Owner::Landed(landed) => self.landed_key_ended(&landed),
            Owner::Claiming(_) | Owner::Session(_) => {}
        }
        self.actions.push_back(Action::Control(Control::Unclaim { key }));
        if let Some(blob) = published {
            self.store.published -= 1;
            self.unhold(blob);
        }
        self.owner_gone(now, id);
    }

    /// A key has no owner here any more: those who wait for it have to look elsewhere.
    pub(super) fn owner_gone(&mut self, now: Time, id: Id<Record>) {
        let Some(record) = self.store.records.get_mut(id) else { return };
        let key = record.key.clone();
        for waiter in record.take_waiters() {
            match waiter {
                Waiter::Local(op) => self.look_again(now, op),
                Waiter::Remote(link, index) => self.not_owner(link, index, &key),
            }
        }
        self.tidy_record(id);
    }
}

pub(super) fn key_owned(key: &Key, owner: Option<&Name>, node: &Name) -> Failure {
    let owner = owner.map_or("another worker", Name::as_str);
    Failure::new(FailureCode::KeyOwned, format!("key {key:?} is owned by {owner:?} at node {node:?}"))
}
