//! The owner of a key, and claims in the directory.

use super::{Keys, Record};
use crate::protocol::action::Actions;
use crate::protocol::directory::{Claim, DirectoryRequest};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{FlowAt, OperationId, RecordId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};

/// The owner of a key: the only one that may publish it here.
pub(crate) enum Owner {
    /// The key has no owner. The record exists because the key has waiters.
    Nobody,
    /// The directory was asked for the key, and has not answered.
    Claiming(Box<Claiming>),
    /// A worker of this sidecar.
    Session(SessionId),
    /// A worker elsewhere, which pushes the key to a worker of this sidecar.
    Landed(Box<Landed>),
    /// The key has no owner, but the versions of its last owner outlive that worker.
    Outlived(Box<Outlived>),
}

pub(crate) struct Outlived {
    /// The worker that may become the owner again.
    pub(crate) owner: Name,
    pub(crate) domain: Tenant,
}

pub(crate) struct Claiming {
    pub(crate) owner: Name,
    pub(crate) tenant: Tenant,
    pub(crate) who: Claimant,
    /// Whether the claim takes the key over from its owner.
    pub(crate) takeover: bool,
    /// The owner until the directory answers, and again if the directory refuses the claim.
    pub(crate) before: Option<Owner>,
    /// Takeovers by other workers, which continue after the answer.
    pub(crate) behind: Vec<OperationId>,
    /// Pushes that wait for the answer, in order.
    pub(crate) pushes: Vec<OperationId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimant {
    Session(SessionId),
    Flow(FlowAt),
    /// The claimant has gone away before the answer.
    Gone,
}

pub(crate) struct Landed {
    /// The worker that pushes. It belongs to the target's tenant.
    pub(crate) owner: Name,
    pub(crate) tenant: Tenant,
    pub(crate) target: SessionId,
    /// The flow that brings the key's versions. `None` once the link is lost; the versions that have landed stay.
    pub(crate) flow: Option<FlowAt>,
}

impl Owner {
    /// Returns the sessions whose end affects the key: the owner, target or claimant, and the owner before the claim.
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

    /// Whether this worker of this sidecar is the owner.
    pub(crate) fn is(&self, session: SessionId) -> bool {
        matches!(self, Owner::Session(owner) if *owner == session)
    }

    /// Whether this flow brings the key's versions.
    pub(crate) fn lands_by(&self, flow: FlowAt) -> bool {
        matches!(self, Owner::Landed(landed) if landed.flow == Some(flow))
    }
}

impl Claiming {
    /// Creates a claim by this worker.
    pub(crate) fn new((owner, tenant): (Name, Tenant), who: Claimant, takeover: bool) -> Claiming {
        Claiming { owner, tenant, who, takeover, before: None, behind: Vec::new(), pushes: Vec::new() }
    }
}

impl Keys {
    /// Changes the owner of a key, and updates the table of each session's keys.
    fn change_owner<R>(&mut self, id: RecordId, change: impl FnOnce(&mut Owner) -> R) -> Option<R> {
        let record = self.records.get_mut(id)?;
        let before = record.owner.sessions();
        let result = change(&mut record.owner);
        let after = record.owner.sessions();
        if before != after {
            for session in before.into_iter().flatten() {
                if let Some(keys) = self.keys_of.get_mut(&session) {
                    keys.remove(id.index());
                    if keys.is_empty() {
                        self.keys_of.remove(&session);
                    }
                }
            }
            for session in after.into_iter().flatten() {
                self.keys_of.entry(session).or_default().insert(id.index());
            }
        }
        Some(result)
    }

    /// Changes the claim of a key that is being claimed. Returns `None` if there is no claim.
    fn change_claim<R>(&mut self, id: RecordId, change: impl FnOnce(&mut Claiming) -> R) -> Option<R> {
        let change = |owner: &mut Owner| if let Owner::Claiming(c) = owner { Some(change(c)) } else { None };
        self.change_owner(id, change).flatten()
    }

    /// Sets the owner of a key, and counts the key for the owner. Returns the owner before.
    pub(super) fn set_owner(&mut self, id: RecordId, owner: Owner) -> Option<Owner> {
        let before = self.change_owner(id, |current| std::mem::replace(current, owner));
        self.count_key(id);
        before
    }

    /// Asks the directory for a key. Until the answer, published versions stay with their owner. `tenant` is the name
    /// of the claimant's tenant.
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
            actions.claim(Claim { key, owner, tenant, resident, takeover, entered: 0 });
        }
        self.count_key(id);
    }

    /// Handles the directory's answer to a claim. Returns the claim with everything that waited for it. The key stays
    /// claimed until it is [given](Keys::give) to an owner.
    pub(crate) fn answer_claim(&mut self, id: RecordId) -> Option<Claiming> {
        self.change_claim(id, |c| Claiming {
            before: c.before.take(),
            behind: std::mem::take(&mut c.behind),
            pushes: std::mem::take(&mut c.pushes),
            ..Claiming::new((c.owner.clone(), c.tenant), c.who, c.takeover)
        })
    }

    /// Makes a worker the claimant, and lets its push wait for the answer to the claim.
    pub(crate) fn join_claim(&mut self, id: RecordId, session: SessionId, push: OperationId) {
        self.change_claim(id, |claiming| {
            claiming.who = Claimant::Session(session);
            claiming.pushes.push(push);
        });
    }

    /// Lets another worker's takeover wait for the answer to the claim. Returns `false` if the key is not being
    /// claimed.
    pub(crate) fn wait_behind_claim(&mut self, id: RecordId, takeover: OperationId) -> bool {
        self.change_claim(id, |claiming| claiming.behind.push(takeover)).is_some()
    }

    /// Sets another claimant for the same owner name. Returns the claimant before.
    pub(crate) fn set_claimant(&mut self, id: RecordId, who: Claimant) -> Option<Claimant> {
        self.change_claim(id, |claiming| std::mem::replace(&mut claiming.who, who))
    }

    /// Removes the former owner from a claim, so that a refused claim does not give the key back. Returns the former
    /// owner.
    pub(crate) fn no_former_owner(&mut self, id: RecordId) -> Option<Owner> {
        self.change_claim(id, |claiming| claiming.before.take()).flatten()
    }

    /// Handles the end of the former owner while a takeover waits for the directory. `left` is set if some of its
    /// versions outlive it.
    pub(crate) fn former_owner_left(&mut self, id: RecordId, left: Option<Outlived>, actions: &mut Actions) {
        self.hide(id, actions);
        self.change_claim(id, |claiming| claiming.before = left.map(|left| Owner::Outlived(Box::new(left))));
    }

    /// Gives a key to an owner, and begins a new epoch. Returns the owner before.
    pub(crate) fn give(&mut self, id: RecordId, owner: Owner) -> Option<Owner> {
        self.begin_epoch(id);
        if !matches!(owner, Owner::Outlived(_)) {
            self.stream_begins(id);
        }
        self.set_owner(id, owner)
    }

    /// Records the number of the owner's entry in the directory.
    pub(crate) fn enter(&mut self, id: RecordId, entered: u64) {
        if let Some(record) = self.records.get_mut(id) {
            record.entered = entered;
        }
    }

    /// Handles a claim that the directory has refused: the key goes back to its former owner, if it had one.
    pub(crate) fn claim_refused(&mut self, id: RecordId, before: Option<Owner>) {
        self.set_owner(id, before.unwrap_or(Owner::Nobody));
    }

    /// Handles the end of an owner whose versions outlive it. Returns that owner.
    pub(crate) fn outlive(&mut self, id: RecordId, owner: Name, actions: &mut Actions) -> Option<Owner> {
        let domain = self.blobs.get(self.records.get(id)?.newest()?)?.domain;
        let before = self.give(id, Owner::Outlived(Box::new(Outlived { owner, domain })));
        self.hide(id, actions);
        before
    }

    /// Removes the owner of a key and returns it. An open claim is only marked as abandoned, and `None` is returned:
    /// the answer has to be awaited, or the entry would stay in the directory. The next call ends the abandoned claim.
    pub(crate) fn let_go(&mut self, id: RecordId) -> Option<Owner> {
        let record = self.records.get_mut(id)?;
        record.next_version = 0;
        record.set_counting(None);
        let abandoned = self.change_claim(id, |claiming| {
            let was = std::mem::replace(&mut claiming.who, Claimant::Gone);
            claiming.pushes.clear();
            was != Claimant::Gone
        });
        if abandoned == Some(true) { None } else { self.set_owner(id, Owner::Nobody) }
    }

    /// Sets the target and the flow of a key that lands here. Returns the flow that brought it before.
    pub(crate) fn land_for(&mut self, id: RecordId, target: SessionId, flow: FlowAt) -> Option<FlowAt> {
        let change = |owner: &mut Owner| {
            let Owner::Landed(landed) = owner else { return None };
            landed.target = target;
            landed.flow.replace(flow)
        };
        self.change_owner(id, change).flatten()
    }

    /// Detaches the flow from a key that lands here. Returns that flow.
    pub(crate) fn detach_flow(&mut self, id: RecordId) -> Option<FlowAt> {
        match &mut self.records.get_mut(id)?.owner {
            Owner::Landed(landed) => landed.flow.take(),
            _ => None,
        }
    }

    /// Returns the first key, from this place on, that the end of a session affects: the session publishes or claims it, other
    /// workers push it to the session, or another worker is taking it over.
    pub(crate) fn next_key_of(&self, session: SessionId, from: u32) -> Option<RecordId> {
        self.keys_of.get(&session)?.first_from(from).map(|place| self.records.id_at(place))
    }

    /// Returns the owner of a key, if there is a record of the key.
    pub(crate) fn owner(&self, key: &Key) -> Option<&Owner> {
        self.find(key).and_then(|id| self.records.get(id)).map(Record::owner)
    }

    /// Checks that the table of each session's keys matches the owners; for tests.
    #[cfg(test)]
    pub(super) fn check_owners(&self) -> Result<(), String> {
        let mut keys_of = hashbrown::HashMap::<SessionId, super::places::Places>::new();
        for (id, record) in self.records.iter() {
            for session in record.owner.sessions().into_iter().flatten() {
                keys_of.entry(session).or_default().insert(id.index());
            }
        }
        match keys_of == self.keys_of {
            true => Ok(()),
            false => Err(format!("sessions have the keys {keys_of:?}, and the table says {:?}", self.keys_of)),
        }
    }
}
