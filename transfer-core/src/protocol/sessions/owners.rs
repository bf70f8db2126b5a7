//! Owners of keys, as far as workers are: the name and the tenant of a key's owner.

use super::{Session, Sessions};
use crate::protocol::keys::Owner;
use crate::protocol::tenant::Tenant;
use crate::tensor::Name;

impl Sessions {
    /// Returns the name of a key's owner.
    pub(in crate::protocol) fn owner_name<'a>(&'a self, owner: &'a Owner) -> Option<&'a Name> {
        match owner {
            Owner::Session(session) => self.get(*session).map(Session::name),
            Owner::Landed(landed) => Some(&landed.owner),
            Owner::Outlived(outlived) => Some(&outlived.owner),
            Owner::Claiming(claiming) => Some(&claiming.owner),
            Owner::Nobody => None,
        }
    }

    /// Returns the tenant of a key's owner.
    pub(in crate::protocol) fn owner_tenant(&self, owner: &Owner) -> Option<Tenant> {
        match owner {
            Owner::Session(session) => self.tenant_of(*session),
            Owner::Landed(landed) => Some(landed.tenant),
            Owner::Outlived(outlived) => Some(outlived.domain),
            Owner::Claiming(claiming) => Some(claiming.tenant),
            Owner::Nobody => None,
        }
    }
}
