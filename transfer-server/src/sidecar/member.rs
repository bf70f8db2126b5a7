//! What a sidecar is in its cluster: its name, its address, and its directory.

use super::StartError;
use super::sockets::Sockets;
use crate::config::{Config, ConfigError, DirectoryLimits, DirectoryPlace, EtcdConfig, KubernetesConfig};
use crate::directory::{
    Candidate, Coordinator, Directory, DirectoryClient, DirectoryEvent, Etcd, Hello, Kubernetes, Outlook, Place,
    Places, Record, Takeover,
};
use crate::peering::Identity;
use crate::security::Security;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The time for which a start waits for the directory of another node.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(2);

/// A member of a cluster, before it is known to the directory.
pub(super) struct Member {
    pub(super) identity: Identity,
    /// The address at which other nodes reach the gRPC services; empty: none.
    advertised: Arc<str>,
    /// The path of the socket for other sidecars of this host; empty: none.
    pub(super) local: Arc<str>,
    directory: DirectoryPlace,
    takeover: Takeover,
    /// With an etcd or Kubernetes: whether this node may lead.
    directory_host: bool,
    etcd: EtcdConfig,
    kubernetes: KubernetesConfig,
    limits: DirectoryLimits,
    replace: bool,
}

impl Member {
    pub(super) fn new(config: &Config, identity: Identity, sockets: &Sockets) -> Member {
        let advertised = match (&config.advertise, sockets.grpc_address()) {
            (Some(told), _) => told.as_str().into(),
            (None, Some(bound)) => bound.to_string().into(),
            (None, None) => "".into(),
        };
        let (directory, limits) = (config.directory.clone(), config.limits.all().directory);
        let (takeover, replace) = (Takeover(config.directory_takeover), config.replace);
        let (directory_host, local) = (config.directory_host, sockets.local());
        let (etcd, kubernetes) = (config.etcd.clone(), config.kubernetes.clone());
        Member { identity, advertised, local, directory, takeover, directory_host, etcd, kubernetes, limits, replace }
    }

    /// Begins to attach to the directory. Returns the directory, too, if this sidecar hosts it.
    pub(super) fn attach(
        self,
        security: &Security,
        news: mpsc::UnboundedSender<DirectoryEvent>,
    ) -> Result<(DirectoryClient, Option<Directory>), StartError> {
        let Member { identity, advertised, local, directory, takeover, limits, replace, .. } = self;
        let named = |coordinator: Coordinator, outlook: Outlook| {
            let takeover = takeover.in_whole_seconds();
            let hosted = self.directory_host.then(|| {
                let (node, address) = (identity.node.clone(), advertised.to_string());
                let me = Record { node, address, incarnation: identity.incarnation, leads: false };
                let tenants = security.tenancy().tenants().clone();
                let hosted = Directory::by_coordinator(me, takeover, local.clone(), tenants);
                hosted.limit_keys(limits.keys_per_node);
                hosted
            });
            (Places::by_coordinator(coordinator, outlook, hosted.clone(), security.clone(), takeover), hosted)
        };
        let (places, hosted): (Places, _) = match directory {
            DirectoryPlace::Embedded => {
                let tenants = security.tenancy().tenants().clone();
                let hosted = Directory::with(identity.node.clone(), local.clone(), tenants);
                hosted.limit_keys(limits.keys_per_node);
                (Place::Local(hosted.clone()).into(), Some(hosted))
            }
            DirectoryPlace::At(url) => {
                let place = Place::there(&url, security.clone());
                (place.map_err(|_| ConfigError::Directory { value: url })?.into(), None)
            }
            DirectoryPlace::Among(hosts) => {
                let names: Vec<_> = hosts.iter().map(|(node, _)| node.clone()).collect();
                let me = Candidate { node: identity.node.clone(), incarnation: identity.incarnation };
                let hosted = names.contains(&me.node).then(|| {
                    let tenants = security.tenancy().tenants().clone();
                    let hosted = Directory::among(names, me, takeover, local.clone(), tenants);
                    hosted.limit_keys(limits.keys_per_node);
                    hosted
                });
                let scheme = if security.has_tls() { "https" } else { "http" };
                let mut places = Vec::new();
                for (node, address) in hosts {
                    let place = match &hosted {
                        Some(hosted) if node == identity.node => Place::Local(hosted.clone()),
                        _ => Place::there(&format!("{scheme}://{address}"), security.clone()).map_err(|e| {
                            ConfigError::DirectoryHosts { value: address.clone(), wrong: e.to_string() }
                        })?,
                    };
                    places.push((node, place));
                }
                if let Some(hosted) = &hosted {
                    hosted.stand_for_election(&places);
                }
                (Places::among(places, takeover), hosted)
            }
            DirectoryPlace::Etcd(members) => {
                let outlook = Outlook::new(members.to_string());
                named(Coordinator::Etcd(Box::new(Etcd::new(members, self.etcd)?)), outlook)
            }
            DirectoryPlace::Kubernetes(lease) => {
                let outlook = Outlook::new(lease.to_string());
                let server = self.kubernetes.server(&lease)?;
                let kubernetes = Kubernetes::new(lease, server, &self.kubernetes, takeover)?;
                named(Coordinator::Kubernetes(Box::new(kubernetes)), outlook)
            }
        };
        let Identity { node, incarnation, .. } = identity;
        let hello = Hello { node, address: advertised, incarnation, local, replace };
        Ok((DirectoryClient::start(places, hello, news), hosted))
    }
}

/// Waits for a while until the directory has answered.
///
/// # Errors
/// The directory refuses this sidecar.
pub(super) async fn attached(directory: &DirectoryClient) -> Result<(), StartError> {
    let state = directory.first_word(DIRECTORY_TIMEOUT).await;
    if state.refused {
        // No worker and no peer has connected yet.
        return Err(StartError::Directory { place: directory.place().describe(), why: state.why_not });
    }
    if !state.attached {
        tracing::warn!(
            directory = directory.place().describe(),
            why = state.why_not,
            "ready without the directory: until it is there, this node knows only its own keys and workers"
        );
    }
    Ok(())
}
