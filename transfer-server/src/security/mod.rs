//! Authentication and authorization: certificates, names, roles.
//!
//! With certificates every TCP connection between nodes uses TLS 1.3, and both sides show a certificate that the
//! authority has signed. Without them nothing is authenticated, and [`crate::config`] allows no listener beyond
//! loopback. docs/security.md describes the model.
//!
//! # Layout
//! - `material`: the three files, read and checked.
//! - `names`: the names of a certificate; `verify`: whether it is the expected node's.
//! - `caller`: the caller at the other end of a connection; `accept`: incoming connections; `places`: the limit of
//!   connections of one address or user; `authority`: adapts what some clients send at the admin socket.
//! - `connect`: outgoing connections.
//! - `roles`: the rights of a caller; `guard`: checks them before each call.
//! - `word`: the tenants for which a node may speak.
//! - `watch`: reads the files again when they have changed.

mod accept;
mod authority;
mod caller;
mod connect;
mod guard;
mod material;
mod names;
mod places;
mod roles;
mod verify;
mod watch;
mod word;

pub(crate) use accept::{of_this_host, over_plain, over_tls, over_unix};
pub(crate) use caller::Caller;
pub(crate) use connect::Expected;
pub(crate) use guard::{GuardLayer, Scope};
pub(crate) use material::ServerFiles;
pub use material::TlsError;
pub(crate) use roles::{Need, Policy};
pub(crate) use watch::watch;

use crate::config::{Config, SecurityConfig, Tenancy};
use arc_swap::ArcSwap;
use material::Material;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tonic::{Request, Status};
use transfer_core::tensor::Name;
use transfer_fabric::tcp::TlsSource;

/// Returns the caller of a request.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    // Every listener of this crate sets the caller.
    request.extensions().get().cloned().ok_or_else(|| Status::unauthenticated("who calls is not known"))
}

/// Checks whether the caller can be the node that it claims to be.
pub(crate) fn claimed<T>(request: &Request<T>, node: &str) -> Result<(), Status> {
    let caller = caller(request)?;
    caller.may_be(node)?;
    // A certificate may have several names. The right to be a peer by one of them does not extend to the others.
    match (caller, request.extensions().get::<Arc<Policy>>()) {
        (Caller::Certificate(_), Some(policy)) if !policy.is_peer(node) => Err(Status::permission_denied(format!(
            "node {node:?} may not be a peer here: not allowed by --peers of transferd"
        ))),
        _ => Ok(()),
    }
}

/// The security of this sidecar. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Security(Arc<SecurityShared>);

#[derive(Debug)]
struct SecurityShared {
    node: Name,
    /// The current TLS material, if any. Each connection loads it, so that new connections use new certificates.
    tls: Option<ArcSwap<Present>>,
    policy: ArcSwap<Policy>,
    tenancy: Arc<Tenancy>,
    /// The number of refused handshakes for gRPC.
    refused: AtomicU64,
}

/// The state of the certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TlsState {
    /// The expiry of the first certificate of this node's chain to expire, as the time since 1970.
    pub(crate) expires: Option<Duration>,
    /// The number of handshakes for gRPC that were refused since the start.
    pub(crate) refused: u64,
}

#[derive(Debug)]
struct Present {
    files: Files,
    seen: watch::Seen,
    material: Material,
}

impl Present {
    fn read(files: Files, node: &Name) -> Result<Present, TlsError> {
        // The stamps are read first, so that a file that changes while it is read counts as changed.
        let seen = watch::Seen::of(&files);
        Ok(Present { material: Material::read(&files, node)?, seen, files })
    }
}

/// The files of the material.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

/// A new configuration that was checked and is not in effect yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    tls: Option<Arc<Present>>,
    policy: Policy,
    tenancy: Tenancy,
}

impl Prepared {
    /// Reads the files that the configuration names.
    pub(crate) fn of(config: &Config) -> Result<Prepared, TlsError> {
        Prepared::with(config, &config.node, config.security.insecure)
    }

    /// Reads the files for a running sidecar: its name and `--insecure` stay as they are.
    pub(crate) fn again(config: &Config, running: &Security) -> Result<Prepared, TlsError> {
        Prepared::with(config, &running.0.node, running.policy().is_insecure())
    }

    fn with(config: &Config, node: &Name, insecure: bool) -> Result<Prepared, TlsError> {
        let policy = Policy::of(&SecurityConfig { insecure, ..config.security.clone() });
        let files = config.security.tls_files().map(|files| Files {
            cert: files.cert.to_owned(),
            key: files.key.to_owned(),
            ca: files.ca.to_owned(),
        });
        let present = |files| Ok(Arc::new(Present::read(files, node)?));
        // `Config::check` has checked it.
        let tenancy = config.tenants.tenancy().unwrap_or_default();
        Ok(Prepared { tls: files.map(present).transpose()?, policy, tenancy })
    }
}

impl Security {
    /// Makes the security of a configuration.
    pub(crate) fn new(node: Name, prepared: Prepared) -> Security {
        let Prepared { tls, policy, tenancy } = prepared;
        let (tls, policy) = (tls.map(ArcSwap::new), ArcSwap::from_pointee(policy));
        let tenancy = Arc::new(tenancy);
        Security(Arc::new(SecurityShared { node, tls, policy, tenancy, refused: AtomicU64::new(0) }))
    }

    /// Makes the security of a node without certificates that has the default policy.
    #[cfg(test)]
    pub(crate) fn none() -> Security {
        Security::with_tenants(crate::config::TenantsConfig::default())
    }

    /// Makes the security of a node without certificates that accepts every claim.
    #[cfg(test)]
    pub(crate) fn of_all() -> Security {
        let policy = Policy::of(&SecurityConfig { insecure: true, ..SecurityConfig::default() });
        let node = Name::new("test").expect("a name");
        Security::new(node, Prepared { tls: None, policy, tenancy: Tenancy::default() })
    }

    /// Makes the security of a node without certificates that has rules about tenants.
    #[cfg(test)]
    pub(crate) fn with_tenants(tenants: crate::config::TenantsConfig) -> Security {
        let (node, tenancy) = (Name::new("test").expect("a name"), tenants.tenancy().expect("rules"));
        let policy = Policy::of(&SecurityConfig::default());
        Security::new(node, Prepared { tls: None, policy, tenancy })
    }

    /// Puts a new configuration into effect. Whether TLS is used does not change, because listeners and links were
    /// started with or without it.
    pub(crate) fn replace(&self, prepared: Prepared) {
        self.0.policy.store(Arc::new(prepared.policy));
        if let (Some(tls), Some(new)) = (&self.0.tls, prepared.tls) {
            tls.store(new);
        }
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.0.tls.is_some()
    }

    /// Returns the state of the certificates, if there are any.
    pub(crate) fn tls_state(&self) -> Option<TlsState> {
        let expires = self.present()?.material.expires;
        Some(TlsState { expires, refused: self.0.refused.load(Ordering::Relaxed) })
    }

    fn present(&self) -> Option<Arc<Present>> {
        Some(self.0.tls.as_ref()?.load_full())
    }

    /// Returns the current policy.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// Returns the TLS material for the tcp fabric.
    pub(crate) fn for_data(&self) -> Option<Arc<dyn TlsSource>> {
        self.has_tls().then(|| Arc::new(DataTls(self.clone())) as Arc<dyn TlsSource>)
    }
}

#[derive(Debug)]
struct DataTls(Security);

impl TlsSource for DataTls {
    fn client(&self) -> Option<Arc<rustls::ClientConfig>> {
        Some(self.0.present()?.material.data_client.clone())
    }

    fn server(&self) -> Option<Arc<rustls::ServerConfig>> {
        Some(self.0.present()?.material.data_server.clone())
    }
}
