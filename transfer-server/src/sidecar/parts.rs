//! The parts of a sidecar that are made before its control thread runs. Everything that can fail because of the user's
//! settings is here.

use super::data_plane::DataPlane;
use super::fabrics::{Fabrics, Start};
use super::member::Member;
use super::memory::Memory;
use super::sockets::Sockets;
use super::{Addresses, StartError};
use crate::config::{Config, CopyConfig};
use crate::copying::Folder;
use crate::events::unix_nanos;
use crate::peering::Identity;
use crate::security::{Prepared, Security};
use std::path::PathBuf;
use std::time::SystemTime;

/// The parts of a sidecar before its control thread runs.
pub(super) struct Parts {
    pub(super) addresses: Addresses,
    pub(super) member: Member,
    pub(super) security: Security,
    pub(super) memory: Memory,
    pub(super) sockets: Sockets,
    pub(super) data_plane: DataPlane,
    /// The folder for files that are copied here, and its limits.
    pub(super) copies: (Option<Folder>, CopyConfig),
}

impl Parts {
    /// Checks, binds and allocates, and starts the data plane.
    pub(super) fn make(config: Config) -> Result<Parts, StartError> {
        config.check()?;
        // The certificates are read before anything is bound, because that often fails.
        let security = Security::new(config.node.clone(), Prepared::of(&config)?);
        let folder = folder_for_copies(&config)?;
        let sockets = Sockets::bind(&config, &security)?;
        // The nanoseconds since 1970, which are higher at each start: the sidecar before, at this socket, has ended.
        let incarnation = unix_nanos(SystemTime::now());
        let memory = Memory::of(&config, incarnation)?;
        let fabrics = Fabrics::make(&Start { config: &config, security: &security, incarnation })?;
        let addresses = Addresses {
            node: config.node.clone(),
            incarnation,
            socket: config.socket.clone(),
            grpc: sockets.grpc_address(),
            admin_socket: config.admin_socket.clone(),
            http: sockets.http_address(),
            data: fabrics.data,
        };
        let kinds = fabrics.kinds();
        let Fabrics { fabrics, lacking, .. } = fabrics;
        let (node, require) = (config.node.clone(), config.require);
        let identity = Identity { node, incarnation, fabrics: kinds, lacking, require };
        let data_plane = DataPlane::start(&config, &identity, fabrics, &security, &memory)?;
        let member = Member::new(&config, identity, &sockets);
        Ok(Parts { addresses, member, security, memory, sockets, data_plane, copies: (folder, config.copies) })
    }
}

/// Opens the folder for files that are copied here, if there is one.
pub(crate) fn folder_for_copies(config: &Config) -> Result<Option<Folder>, StartError> {
    let open =
        |path: &PathBuf| Folder::open(path).map_err(|source| StartError::CopyFolder { path: path.clone(), source });
    config.copies.folder.as_ref().map(open).transpose()
}
