//! Files that `transferctl copy` brings to this node.
//!
//! The sender is a worker of its own node's sidecar. It publishes the file in pieces, as the versions 1, 2, 3 and so on
//! of one key, and after them the digest of all. A call of the admin service names the key and the path. A thread of
//! this sidecar then fetches the versions, as a [reader](transfer_fabric::engine::ReaderReply) of the configured tenant, and
//! writes them. So the bytes take the path of any other fetch, and the data plane's thread touches no file.
//!
//! # Layout
//! - `place`: the folder, and the path below it. `room`: the limits of bytes. `slots`: how many at a time.
//! - `receiver`: the thread. `pace`: how slow it may be. `error`: the reasons why there is no copy.

mod destination;
mod error;
mod pace;
mod receiver;
mod room;
mod slots;

pub(crate) use destination::Folder;
pub(crate) use error::CopyError;

use crate::config::{CopyConfig, CopyRole, Tenancy};
use crate::engine::EngineClient;
use crate::security::Caller;
use crate::sessions::Sessions;
use receiver::Receiver;
use room::Room;
use slots::Slots;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tonic::Status;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::Tenant;
use transfer_core::tensor::{Key, Name};
use transfer_proto::v1;

/// The smallest and the largest piece, in bytes.
pub(crate) const MESSAGE_BYTES: std::ops::RangeInclusive<u64> = 4096..=64 << 20;

/// The progress reports that may wait for a slow client, besides the last one.
const MAX_WAITING_REPORTS: usize = 4;

/// A copy that the caller may make, and whose values are valid.
#[derive(Debug)]
pub(crate) struct Order {
    /// The path below the folder.
    pub(crate) path: String,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// The length of each piece but the last.
    pub(crate) message_bytes: u64,
    /// The key of the pieces.
    pub(crate) key: Key,
    /// Whether a file of that path may be replaced.
    pub(crate) overwrite: bool,
    /// The fabric that must carry the pieces. `None`: they are published at this node.
    pub(crate) require: Option<FabricKind>,
}

/// The copies of this sidecar. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Copies(Option<Arc<CopiesShared>>);

#[derive(Debug)]
struct CopiesShared {
    folder: Folder,
    role: CopyRole,
    tenant: Tenant,
    room: Room,
    slots: Slots,
    engine: EngineClient,
    sessions: Sessions,
    next: AtomicU64,
}

impl Copies {
    /// Makes the service, for the folder that was opened at the start. Without a folder it refuses every copy.
    pub(crate) fn new(
        folder: Option<Folder>,
        config: &CopyConfig,
        tenancy: &Tenancy,
        engine: EngineClient,
        sessions: Sessions,
    ) -> Copies {
        // `Config::check` has checked the tenant.
        let (Some(folder), Ok(tenant)) = (folder, config.tenant(tenancy)) else { return Copies(None) };
        Copies(Some(Arc::new(CopiesShared {
            folder,
            role: config.role,
            tenant,
            room: Room::new(config.max_bytes, config.total_bytes),
            slots: Slots::new(config.at_once),
            engine,
            sessions,
            next: AtomicU64::new(1),
        })))
    }

    /// Returns the role that a caller needs, and the tenant of copies.
    ///
    /// # Errors
    /// [`CopyError::Off`].
    pub(crate) fn allowed(&self) -> Result<(CopyRole, Tenant), CopyError> {
        self.0.as_ref().map(|shared| (shared.role, shared.tenant)).ok_or(CopyError::Off)
    }

    /// Begins a copy on a thread of its own. It ends when the caller drops the receiver of its reports, and never waits for
    /// a caller that reads none.
    ///
    /// # Errors
    /// [`CopyError::Off`], [`CopyError::TooMany`], [`CopyError::TooManyOfOne`], [`CopyError::Disk`]. Later errors are the
    /// last report.
    pub(crate) fn begin(
        &self,
        caller: &Caller,
        order: Order,
    ) -> Result<mpsc::Receiver<Result<v1::CopyProgress, Status>>, CopyError> {
        let shared = self.0.as_ref().ok_or(CopyError::Off)?;
        let slot = shared.slots.take(caller.to_string())?;
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let name = Name::new(&format!("copy-{number}")).map_err(|e| CopyError::Internal(e.to_string()))?;
        let (reports, told) = mpsc::channel(MAX_WAITING_REPORTS + 1);
        let last = reports.clone().try_reserve_owned().map_err(|e| CopyError::Internal(e.to_string()))?;
        let (hear, heard) = crossbeam_channel::unbounded();
        // The caller hangs up: the thread ends, and what it has written so far is gone.
        let (gone, hang_up) = (reports.clone(), hear.clone());
        let hung_up = tokio::spawn(async move {
            gone.closed().await;
            // A thread that has ended needs no news.
            let _ = hang_up.send(receiver::Heard::Gone);
        });
        let receiver = Receiver { name, order, reports, last, hear, heard, shared: shared.clone() };
        let spawned = std::thread::Builder::new().name("transfer-recv".into()).spawn(move || {
            receiver.run();
            drop(slot);
            // It holds the stream of reports open.
            hung_up.abort();
        });
        spawned.map(|_| told).map_err(|source| CopyError::Disk {
            what: "start a thread for",
            path: String::new(),
            source,
        })
    }
}
