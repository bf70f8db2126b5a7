//! What answers workers, peers and tools: the control plane.

use super::StartError;
use super::data_plane::DataPlane;
use super::member::Member;
use super::memory::Memory;
use crate::admin::{AdminService, AdminState};
use crate::config::CopyConfig;
use crate::control::Control;
use crate::copying::{Copies, Folder};
use crate::directory::{Directory, DirectoryClient};
use crate::drain::Drain;
use crate::engine::EngineClient;
use crate::events::Events;
use crate::grpc;
use crate::observe::{Export, Observer, ObserverParts};
use crate::peering::{Echo, Links, PeeringService};
use crate::poll::PollControl;
use crate::reload::Live;
use crate::security::Security;
use crate::sessions::Sessions;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;
use transfer_fabric::engine::Engine;
use transfer_fabric::verbs::datagrams::Datagrams;

/// What runs until the sidecar ends.
pub(super) struct ControlPlane {
    pub(super) engine: Engine,
    pub(super) datagrams: Option<Datagrams>,
    pub(super) directory: DirectoryClient,
    /// The directory, if this sidecar hosts it.
    pub(super) hosted: Option<Directory>,
    pub(super) drain: Drain,
    pub(super) live: Live,
    /// Ends with the engine.
    pub(super) control: JoinHandle<()>,
    /// The export, if there is a collector of spans.
    pub(super) export: Option<Export>,
}

/// The control plane, whose tasks run from the beginning, and what is served of it: to workers, to peers and tools, and to
/// those who watch it.
pub(super) struct Services {
    pub(super) plane: ControlPlane,
    pub(super) sessions: Sessions,
    pub(super) routes: Routes,
    pub(super) health: HealthReporter,
    pub(super) observer: Observer,
}

impl Services {
    /// `believes` is the rule of trust among peers, in words. `stopping` becomes true when streams have to end.
    pub(super) async fn start(
        member: Member,
        memory: Memory,
        data_plane: DataPlane,
        security: Security,
        copies: (Option<Folder>, CopyConfig),
        (believes, stopping): (String, watch::Receiver<bool>),
    ) -> Result<Services, StartError> {
        let Memory { budget, policy, granted } = memory;
        let DataPlane { engine, requests, records, poll, datagrams: made } = data_plane;
        let (datagrams, export) = (made.as_ref().ok().cloned(), records.export.clone());
        let handle = engine.handle().clone();
        let client = EngineClient::of(handle);

        let me = member.identity.clone();
        let (tell, news) = mpsc::unbounded_channel();
        let (directory, hosted) = member.attach(&security, tell)?;
        let events = Events::new();
        let drain = Drain::new(client.clone(), events.clone());
        tokio::spawn(directory.clone().tell_of(events.clone()));
        let links = Links::new(me.clone(), client.clone(), directory.clone(), drain.clone(), security.clone());
        let echo = Echo::new(links.clone(), made);
        let sessions = Sessions::new(
            policy,
            granted,
            security.tenancy().clone(),
            client.clone(),
            directory.clone(),
            events.clone(),
            drain.clone(),
        );
        let copies = Copies::new(copies.0, &copies.1, security.tenancy(), client.clone(), sessions.clone());
        let control = Control {
            engine: client.clone(),
            directory: directory.clone(),
            links: links.clone(),
            sessions: sessions.clone(),
            events: events.clone(),
        };
        let control = tokio::spawn(control.run(requests, news));

        let (clock, poll) = (engine.clock(), PollControl::new(poll));
        let live =
            Live { poll: poll.clone(), engine: client.clone(), security: security.clone(), sessions: sessions.clone() };
        let observer = Observer::new(ObserverParts {
            me: me.clone(),
            clock,
            budget: budget.clone(),
            poll: poll.clone(),
            engine: client.clone(),
            directory: directory.clone(),
            records,
            security: security.clone(),
            datagrams: datagrams.clone(),
            sessions: sessions.clone(),
        });
        let admin = AdminService::new(AdminState {
            me,
            clock,
            budget,
            poll,
            engine: client,
            directory: directory.clone(),
            links: links.clone(),
            echo: echo.clone(),
            events,
            drain: drain.clone(),
            security: security.clone(),
            copies,
            believes,
            stopping,
        });
        let peering = PeeringService::new(links, directory.clone(), echo);
        let (routes, health) = grpc::routes(peering, admin, hosted.clone(), security)
            .await
            .map_err(|e| StartError::Services(e.to_string()))?;
        let plane = ControlPlane { engine, datagrams, directory, hosted, drain, live, control, export };
        Ok(Services { plane, sessions, routes, health, observer })
    }
}
