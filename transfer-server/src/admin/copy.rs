//! Files that other nodes copy here: who may, and over what.

use super::AdminState;
use crate::config::CopyRole;
use crate::copying::{CopyError, MESSAGE_BYTES, Order};
use crate::peering::Kind;
use crate::security::{Caller, Need};
use tokio::sync::mpsc;
use tonic::Status;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::Tenant;
use transfer_core::tensor::{Key, Name};
use transfer_proto::v1;

impl AdminState {
    /// Begins a copy, if this caller may make it.
    pub(super) async fn copy(
        &self,
        caller: Option<&Caller>,
        request: v1::CopyRequest,
    ) -> Result<mpsc::Receiver<Result<v1::CopyProgress, Status>>, Status> {
        let (role, tenant) = self.copies.allowed()?;
        let caller = caller.ok_or_else(|| Status::unauthenticated("who calls is not known"))?;
        self.may_copy(caller, role, tenant)?;
        let v1::CopyRequest { path, bytes, message_bytes, key, from, overwrite, unencrypted } = request;
        let invalid = |text: String| Status::from(CopyError::Invalid(text));
        let key = Key::new(&key).map_err(|e| invalid(format!("key: {e}")))?;
        let from = Name::new(&from).map_err(|e| invalid(format!("from: {e}")))?;
        if !MESSAGE_BYTES.contains(&message_bytes) {
            let (least, most) = (MESSAGE_BYTES.start(), MESSAGE_BYTES.end());
            return Err(invalid(format!("message_bytes is {message_bytes}, and has to be {least} to {most}")));
        }
        let require = match from == self.me.node {
            true => None,
            false => Some(self.fabric_for_copy(&from, unencrypted).await?),
        };
        Ok(self.copies.begin(caller, Order { path, bytes, message_bytes, key, overwrite, require })?)
    }

    /// Checks the caller's role and tenant.
    fn may_copy(&self, caller: &Caller, role: CopyRole, tenant: Tenant) -> Result<(), Status> {
        let need = match role {
            CopyRole::Admin => Need::AdministerOfTenant,
            CopyRole::Reader => Need::ReadOfTenant,
        };
        match self.security.policy().scope(caller, need, self.security.tenancy())? {
            Some(own) if own != tenant => {
                let tenant = self.security.tenancy().tenants().name(tenant).to_string();
                Err(CopyError::OtherTenant { tenant }.into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the fabric of the link to the sender's node. The pieces must come over this one, so that a later link over
    /// another fabric does not carry them in the clear.
    async fn fabric_for_copy(&self, from: &Name, unencrypted: bool) -> Result<FabricKind, Status> {
        let link = self.links.reach(from).await;
        let link = link.map_err(|why| CopyError::NoLink { node: from.to_string(), why })?;
        let link = self.link(from, link).await?;
        let Some(Kind(fabric)) = Kind::of(link.fabric()) else {
            return Err(CopyError::NoLink { node: from.to_string(), why: "it is gone".to_owned() }.into());
        };
        if fabric == FabricKind::Verbs && self.security.has_tls() && !unencrypted {
            return Err(CopyError::InTheClear { node: from.to_string() }.into());
        }
        Ok(fabric)
    }
}
