//! What the checks judge.

use crate::admin::Target;
use crate::devices::{self, NoRdma};
use crate::error::Error;
use transfer_proto::v1::{Fabric, FabricState, Link, StatusResponse};
use transfer_verbs::report::DeviceReport;

/// What was seen.
pub(super) struct Facts {
    /// What the sidecar shows of itself, or why it does not.
    pub(super) sidecar: Result<StatusResponse, Error>,
    /// Its links, the first of them.
    pub(super) links: Vec<Link>,
    /// Whether the library of queue pairs can be used here, or why not.
    pub(super) verbs: Result<(), String>,
    /// The same for the connection manager's.
    pub(super) connection_manager: Result<(), String>,
    /// This host's devices, or why there are none.
    pub(super) devices: Result<Vec<DeviceReport>, NoRdma>,
    /// The port that would be taken by rule, or why none.
    pub(super) choice: Result<String, String>,
}

impl Facts {
    pub(super) async fn gather(target: &Target) -> Facts {
        let verbs = transfer_verbs::available().map_err(|e| e.to_string());
        let connection_manager = transfer_verbs::cm::available().map_err(|e| e.to_string());
        let devices = devices::devices();
        let choice = devices::choice();
        let sidecar = target.status().await;
        let links = if sidecar.is_ok() { target.links().await.unwrap_or_default() } else { Vec::new() };
        Facts { sidecar, links, verbs, connection_manager, devices, choice }
    }

    /// The sidecar's word on a fabric.
    pub(super) fn fabric(&self, fabric: Fabric) -> Option<&FabricState> {
        self.sidecar.as_ref().ok()?.fabric_states.iter().find(|state| state.fabric() == fabric)
    }
}
