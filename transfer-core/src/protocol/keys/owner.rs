//! Who may publish a key, and claims in the directory.

use super::{Keys, Record};
use crate::protocol::action::Actions;
use crate::protocol::directory::{Claim, DirectoryRequest};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{FlowAt, OperationId, RecordId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};

/// Who may publish a key here.
pub(crate) enum Owner {
    /// Nobody; somebody waits for the key.
    Nobody,
    /// The directory was asked.
    Claiming(Box<Claiming>),
    /// A worker of this sidecar.
    Session(SessionId),
    /// A worker elsewhere that pushes to one of ours.
    Landed(Box<Landed>),
    /// Nobody, but what its last owner published outlives it.
    Outlived(Box<Outlived>),
}

pub(crate) struct Outlived {
    /// The worker that may go on with it.
    pub(crate) owner: Name,
    pub(crate) domain: Tenant,
}

pub(crate) struct Claiming {
    pub(crate) owner: Name,
    pub(crate) tenant: Tenant,
    pub(crate) who: Claimant,
    /// Whether it takes the key over.
    pub(crate) takeover: bool,
    /// Whose it is until then, and again if the directory refuses.
    pub(crate) before: Option<Owner>,
    /// Takeovers by others, which go on after the answer.
    pub(crate) behind: Vec<OperationId>,
    /// Pushes that wait for the answer, in order.
    pub(crate) pushes: Vec<OperationId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimant {
    Session(SessionId),
    Flow(FlowAt),
    /// It went away before the answer came.
    Gone,
}

pub(crate) struct Landed {
    /// The worker that pushes, which is of the target's tenant.
    pub(crate) owner: Name,
    pub(crate) tenant: Tenant,
    pub(crate) target: SessionId,
    /// `None` once the link is lost: what has landed stays.
    pub(crate) flow: Option<FlowAt>,
}

impl Owner {
    /// The sessions whose end concerns the key: the one that it is, or will be, and the one that it was before.
    fn sessions(&self) -> [Option<SessionId>; 2] {
        match self {
            Owner::Session(session) => [Some(*session), None],
            Owner::Landed(landed) => [Some(landed.target), None],
            Owner::Claiming(claiming) => {
                let claimant = match claiming.who {
                    Claimant::Session(session) => Some(session),
                    Claimant::Flow(..) | Claimant::Gone => None,
                };
                [claimant, claiming.before.as_ref().and_then(|before| before.sessions()[0])]
            }
            Owner::Nobody | Owner::Outlived(_) => [None, None],
        }
    }

    /// Whether it is this worker of this sidecar.
    pub(crate) fn is(&self, session: SessionId) -> bool {
        matches!(self, Owner::Session(owner) if *owner == session)
    }

    /// Whether this flow brings the key's versions.
    pub(crate) fn lands_by(&self, flow: FlowAt) -> bool {
        matches!(self, Owner::Landed(landed) if landed.flow == Some(flow))
    }
}

impl Claiming {
    /// A claim by that worker.
    pub(crate) fn new((owner, tenant): (Name, Tenant), who: Claimant, takeover: bool) -> Claiming {
        Claiming { owner, tenant, who, takeover, before: None, behind: Vec::new(), pushes: Vec::new() }
    }
}

impl Keys {
    /// Changes who may publish a key.
    fn change_owner<R>(&mut self, id: RecordId, change: impl FnOnce(&mut Owner) -> R) -> Option<R> {
        let record = self.records.get_mut(id)?;
        let before = record.owner.sessions();
        let result = change(&mut record.owner);
        let after = record.owner.sessions();
        if before != after {
            for session in before.into_iter().flatten() {
                if let Some(keys) = self.keys_of.get_mut(&session) {
                    keys.remove(&id);
                    if keys.is_empty() {
                        self.keys_of.remove(&session);
                    }
                }
            }
            for session in after.into_iter().flatten() {
                self.keys_of.entry(session).or_default().insert(id);
            }
        }
        Some(result)
    }

    /// The same, of a key that is being claimed.
    fn change_claim<R>(&mut self, id: RecordId, change: impl FnOnce(&mut Claiming) -> R) -> Option<R> {
        let change = |owner: &mut Owner| if let Owner::Claiming(c) = owner { Some(change(c)) } else { None };
        self.change_owner(id, change).flatten()
    }

    /// Sets who may publish a key, and counts it for that one. Returns who did before.
    pub(super) fn set_owner(&mut self, id: RecordId, owner: Owner) -> Option<Owner> {
        let before = self.change_owner(id, |current| std::mem::replace(current, owner));
        self.count_key(id);
        before
    }

    /// Asks the directory for a key. What is published stays whose it is until the answer. `tenant` is what the claimant's is called.
    pub(crate) fn claim(&mut self, id: RecordId, mut claiming: Claiming, tenant: Name, actions: &mut Actions) {
        let (owner, takeover) = (claiming.owner.clone(), claiming.takeover);
        let resident = matches!(claiming.who, Claimant::Session(_));
        self.change_owner(id, |current| {
            let before = std::mem::replace(current, Owner::Nobody);
            claiming.before = (!matches!(before, Owner::Nobody)).then_some(before);
            *current = Owner::Claiming(Box::new(claiming));
        });
        if let Some(r) = self.records.get_mut(id) {
            let key = r.key.clone();
            if std::mem::take(&mut r.resolving) {
                actions.ask_directory(DirectoryRequest::StopResolve { key: key.clone() });
            }
            actions.claim(Claim { key, owner, tenant, resident, takeover });
        }
        self.count_key(id);
    }

    /// The directory has answered a claim. Returns what waited for that; the key stays claimed until it is [given](Keys::give).
    pub(crate) fn answer_claim(&mut self, id: RecordId) -> Option<Claiming> {
        self.change_claim(id, |c| Claiming {
            before: c.before.take(),
            behind: std::mem::take(&mut c.behind),
            pushes: std::mem::take(&mut c.pushes),
            ..Claiming::new((c.owner.clone(), c.tenant), c.who, c.takeover)
        })
    }

    /// A worker's push waits for the answer to its claim.
    pub(crate) fn join_claim(&mut self, id: RecordId, session: SessionId, push: OperationId) {
        self.change_claim(id, |claiming| {
            claiming.who = Claimant::Session(session);
            claiming.pushes.push(push);
        });
    }

    /// Another worker's takeover goes on after the answer. `false` where nobody claims the key.
    pub(crate) fn wait_behind_claim(&mut self, id: RecordId, takeover: OperationId) -> bool {
        self.change_claim(id, |claiming| claiming.behind.push(takeover)).is_some()
    }

    /// Another one claims a key under the same name. Returns who did.
    pub(crate) fn set_claimant(&mut self, id: RecordId, who: Claimant) -> Option<Claimant> {
        self.change_claim(id, |claiming| std::mem::replace(&mut claiming.who, who))
    }

    /// A key that is being claimed does not go back to whoever had it. Returns who that was.
    pub(crate) fn no_former_owner(&mut self, id: RecordId) -> Option<Owner> {
        self.change_claim(id, |claiming| claiming.before.take()).flatten()
    }

    /// The owner of a key that another is taking over is gone before the directory has answered; this is left of it.
    pub(crate) fn former_owner_left(&mut self, id: RecordId, left: Option<Outlived>, actions: &mut Actions) {
        self.hide(id, actions);
        self.change_claim(id, |claiming| claiming.before = left.map(|left| Owner::Outlived(Box::new(left))));
    }

    /// A key is somebody's, with whom a new epoch begins. Returns whose it was.
    pub(crate) fn give(&mut self, id: RecordId, owner: Owner) -> Option<Owner> {
        self.begin_epoch(id);
        self.set_owner(id, owner)
    }

    /// The directory has refused a claim: the key is whose it was before.
    pub(crate) fn claim_refused(&mut self, id: RecordId, before: Option<Owner>) {
        self.set_owner(id, before.unwrap_or(Owner::Nobody));
    }

    /// The owner of a key is gone, and what it published outlives it. Returns who that was.
    pub(crate) fn outlive(&mut self, id: RecordId, owner: Name, actions: &mut Actions) -> Option<Owner> {
        let domain = self.blobs.get(self.records.get(id)?.newest()?)?.domain;
        let before = self.give(id, Owner::Outlived(Box::new(Outlived { owner, domain })));
        self.hide(id, actions);
        before
    }

    /// A key is nobody's any more. Returns whose it was. `None` where it is claimed: the answer has to be awaited, or the entry would stay
    /// in the directory for ever.
    pub(crate) fn let_go(&mut self, id: RecordId) -> Option<Owner> {
        self.records.get_mut(id)?.next_version = 0;
        let abandoned = self.change_claim(id, |claiming| {
            let was = std::mem::replace(&mut claiming.who, Claimant::Gone);
            claiming.pushes.clear();
            was != Claimant::Gone
        });
        if abandoned == Some(true) { None } else { self.set_owner(id, Owner::Nobody) }
    }

    /// A worker pushes a key to another target here, or over another link. Returns the flow by which it came before.
    pub(crate) fn land_for(&mut self, id: RecordId, target: SessionId, flow: FlowAt) -> Option<FlowAt> {
        let change = |owner: &mut Owner| {
            let Owner::Landed(landed) = owner else { return None };
            landed.target = target;
            landed.flow.replace(flow)
        };
        self.change_owner(id, change).flatten()
    }

    /// A flow brings no more of a key. Returns which that was.
    pub(crate) fn detach_flow(&mut self, id: RecordId) -> Option<FlowAt> {
        match &mut self.records.get_mut(id)?.owner {
            Owner::Landed(landed) => landed.flow.take(),
            _ => None,
        }
    }

    /// The keys that the end of a session concerns: it publishes or claims them, others push them to it, or another worker is taking
    /// them over.
    pub(crate) fn keys_of(&self, session: SessionId) -> Vec<RecordId> {
        self.keys_of.get(&session).map_or_else(Vec::new, |keys| keys.iter().copied().collect())
    }

    /// Who may publish a key, where somebody may or waits for it.
    pub(crate) fn owner(&self, key: &Key) -> Option<&Owner> {
        self.find(key).and_then(|id| self.records.get(id)).map(Record::owner)
    }

    /// What has to hold of owners; for tests.
    #[cfg(test)]
    pub(super) fn check_owners(&self) -> Result<(), String> {
        use std::collections::BTreeSet;
        let mut keys_of = hashbrown::HashMap::<SessionId, BTreeSet<RecordId>>::new();
        for (id, record) in self.records.iter() {
            for session in record.owner.sessions().into_iter().flatten() {
                keys_of.entry(session).or_default().insert(id);
            }
        }
        match keys_of == self.keys_of {
            true => Ok(()),
            false => Err(format!("sessions have the keys {keys_of:?}, and the table says {:?}", self.keys_of)),
        }
    }
}
