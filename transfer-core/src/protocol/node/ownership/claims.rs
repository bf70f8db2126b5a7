//! Ownership of keys: claims in the directory, their answers, and how a key ends.

use crate::op::{Failure, FailureCode};
use crate::protocol::counters::Counters;
use crate::protocol::directory::{Claim, ClaimRefused, DirectoryRequest};
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::RecordId;
use crate::protocol::keys::{Claimant, Claiming, Owner, Record};
use crate::protocol::node::flows::Ownership;
use crate::protocol::node::rules::key_owned;
use crate::protocol::rules::Broken;
use crate::tensor::{Key, Name};
use crate::time::Time;

impl Ownership<'_> {
    /// Handles the loss of a key: the directory has given it to another owner.
    pub(in crate::protocol::node) fn key_lost(&mut self, now: Time, key: &Key, owner: &Name) {
        if key.reserved_for().is_some() {
            return counting!(self).count(now, |counters| counters.lost_name(now, key));
        }
        let Some(id) = self.keys.find(key) else { return };
        match self.keys.record(id).map(Record::owner) {
            None | Some(Owner::Nobody) => return,
            // The answer to this claim decides the next owner.
            Some(Owner::Claiming(_)) => {
                let before = self.former_owner_lost(now, id);
                self.tell_taken_over(key, before.as_ref(), owner);
                return;
            }
            // The same worker pushes the key to several nodes. Each of them keeps what it has received.
            Some(Owner::Session(session)) if self.sessions.get(*session).is_some_and(|s| s.name() == owner) => return,
            Some(Owner::Landed(landed)) if landed.owner == *owner => return,
            Some(Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_)) => {}
        }
        self.taken_away(now, id, owner);
    }

    /// Ends a key that has gone from this node to another owner.
    fn taken_away(&mut self, now: Time, id: RecordId, owner: &Name) {
        if self.config.rules.breaks(Broken::KeepsLostKeys) {
            return;
        }
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        let stream = lookup!(self).stream_of(id, None);
        let Some(before) = self.keys.let_go(id) else { return };
        answering!(self).stream_ended(now, id, stream);
        self.tell_taken_over(&key, Some(&before), owner);
        if let Owner::Landed(landed) = before {
            room!(self).landed_key_ended(&landed);
        }
        self.end_versions(id);
        self.owner_gone(now, id);
    }

    fn tell_taken_over(&mut self, key: &Key, before: Option<&Owner>, to: &Name) {
        if let Some(from) =
            before.and_then(|before| self.sessions.owner_name(before)).filter(|from| *from != to).cloned()
        {
            self.actions.report(NodeEvent::KeyTakenOver { key: key.clone(), from, to: to.clone() });
        }
    }

    /// Handles the directory's answer to a claim.
    pub(in crate::protocol::node) fn claimed(&mut self, now: Time, key: &Key, result: Result<u64, ClaimRefused>) {
        if key.reserved_for().is_some() {
            return counting!(self).count(now, |counters| counters.claimed(now, key, result));
        }
        let found = self.keys.find(key);
        let Some((id, owner)) = found.and_then(|id| Some((id, self.keys.record(id)?.owner()))) else {
            return self.claimed_for_nobody(key, &result);
        };
        if let Ok(entered) = result {
            match owner {
                Owner::Nobody => {}
                // A recital that got no answer: what an earlier directory has entered is still so.
                Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_) if entered == 0 => {}
                _ => self.keys.enter(id, entered),
            }
        }
        let Some(owner) = self.keys.record(id).map(Record::owner) else { return };
        match owner {
            Owner::Claiming(_) => {}
            Owner::Nobody => return self.claimed_for_nobody(key, &result),
            // The key was granted without the directory, or was claimed again after the directory restarted, and
            // another owner was faster.
            Owner::Session(_) | Owner::Landed(_) | Owner::Outlived(_) => {
                match result {
                    Err(ClaimRefused::Owned { owner, .. }) => self.taken_away(now, id, &owner),
                    // The directory no longer accepts this node's word for the key and tells no other node of it. So
                    // the key ends here, too.
                    Err(ClaimRefused::Denied(_)) => {
                        let me = self.config.name.clone();
                        self.taken_away(now, id, &me);
                    }
                    Err(ClaimRefused::Full(_) | ClaimRefused::Unreachable(_)) | Ok(_) => {}
                }
                return;
            }
        }
        let Some(Claiming { owner, who, before, pushes, behind, .. }) = self.keys.answer_claim(id) else { return };
        if before.is_some() && result.is_ok() {
            self.tell_taken_over(key, before.as_ref(), &owner);
            let former = before
                .as_ref()
                .and_then(|before| self.sessions.owner_name(before).zip(self.sessions.owner_tenant(before)));
            let stream = former.and_then(|former| lookup!(self).stream_of(id, Some(former)));
            // The key belongs to the new owner now.
            self.end_versions(id);
            answering!(self).stream_ended(now, id, stream);
        }
        match (result, who) {
            (Ok(_), Claimant::Gone) => self.end_key(now, id),
            (Ok(_), Claimant::Session(session)) => {
                self.keys.give(id, Owner::Session(session));
                self.keys.forget_location(key);
                answering!(self).end_other_streams(id);
                let pushes: Vec<_> = pushes.into_iter().filter_map(|op| self.sessions.finish(op)).collect();
                // All pushes were given up meanwhile: the worker would own a key without a version.
                if pushes.is_empty() {
                    self.end_key(now, id);
                }
                for op in pushes {
                    pushing!(self).publish_op(now, id, op);
                }
            }
            (Ok(_), Claimant::Flow((link, flow))) => {
                self.keys.forget_location(key);
                receiving!(self).flow_claimed(now, link, flow, id, owner);
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
                    answering!(self).fail_op(op, failure.clone());
                }
                if let Claimant::Flow((link, flow)) = who {
                    room!(self).refuse_flow(link, flow, failure);
                }
                if is_free {
                    self.owner_gone(now, id);
                }
            }
        }
        for op in behind {
            if let Some(op) = self.sessions.finish(op) {
                pushing!(self).push_here(now, op);
            }
        }
    }

    /// Handles the answer to a claim that no longer has a claimant. The key was claimed at two directories, and the
    /// answer from the other one has already ended it.
    fn claimed_for_nobody(&mut self, key: &Key, result: &Result<u64, ClaimRefused>) {
        if result.is_ok() {
            self.actions.ask_directory(DirectoryRequest::Unclaim { key: key.clone() });
        }
    }

    /// Claims all keys of this node again, because the directory is a new one. Locations from an earlier directory are
    /// forgotten: its sequence numbers mean nothing to the new one, whose clock may have been set back.
    pub(in crate::protocol::node) fn claim_all(&mut self) {
        self.keys.forget_locations();
        counting!(self).count(self.common.latest, Counters::claim_all);
        for (_, record) in self.keys.records().iter() {
            let owner = record.owner();
            let names = self.sessions.owner_name(owner).cloned().zip(self.sessions.owner_tenant(owner));
            if let Some((name, tenant)) = names {
                let (takeover, resident, entered) = match owner {
                    Owner::Claiming(c) => (c.takeover, matches!(c.who, Claimant::Session(_)), 0),
                    owner => (false, matches!(owner, Owner::Session(_)), record.entered()),
                };
                let (key, tenant) = (record.key().clone(), self.config.tenants.name(tenant));
                self.actions.claim(Claim { key, owner: name, tenant, resident, takeover, entered });
            }
        }
        self.actions.ask_directory(DirectoryRequest::Recited);
        self.keys.resolve_all(self.actions);
    }
}
