//! The control thread.

use super::StartError;
use super::parts::Parts;
use crate::admin::{AdminService, AdminState};
use crate::config::{ConfigError, DirectoryPlace};
use crate::control::Control;
use crate::copying::Copies;
use crate::directory::{Directory, DirectoryClient, Hello, Place};
use crate::drain::Drain;
use crate::engine::EngineClient;
use crate::events::Events;
use crate::grpc;
use crate::observe::{Export, HttpServer, Observer, ObserverParts};
use crate::peering::{Echo, Links, PeeringService};
use crate::poll::PollControl;
use crate::reload::Live;
use crate::security;
use crate::sessions::{Acceptor, Granted, Sessions};
use crate::text;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use transfer_fabric::engine::Engine;
use transfer_fabric::verbs::datagrams::Datagrams;

/// The time for which a start waits for the directory of another node.
const DIRECTORY_PATIENCE: Duration = Duration::from_secs(2);

/// The time for which running calls may continue after the stop.
const GRACE: Duration = Duration::from_millis(500);

type Report = SyncSender<Result<Live, StartError>>;

/// Runs a sidecar until it is stopped, or has drained. Returns whether it has drained.
pub(super) fn run(parts: Parts, stopped: oneshot::Receiver<()>, report: Report) -> bool {
    let runtime = Builder::new_current_thread().enable_all().thread_name("transfer-handshake").build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(source) => {
            let _ = report.send(Err(StartError::System { what: "making the runtime", source }));
            return false;
        }
    };
    let drained = runtime.block_on(serve(parts, stopped, report));
    // A handshake under way could block the thread for as long as its worker takes.
    runtime.shutdown_background();
    drained
}

async fn serve(parts: Parts, stopped: oneshot::Receiver<()>, report: Report) -> bool {
    match Running::start(parts).await {
        Ok(running) => {
            // The caller of the start waits for the report, unless it is gone.
            let _ = report.send(Ok(running.live.clone()));
            running.until(stopped).await
        }
        Err(e) => {
            let _ = report.send(Err(e));
            false
        }
    }
}

struct Running {
    engine: Engine,
    datagrams: Option<Datagrams>,
    hosted: Option<Directory>,
    directory: DirectoryClient,
    health: tonic_health::server::HealthReporter,
    stop: watch::Sender<bool>,
    servers: JoinSet<Result<(), tonic::transport::Error>>,
    /// Ends with the engine.
    control: tokio::task::JoinHandle<()>,
    acceptor: Acceptor,
    /// The paths of the Unix sockets for gRPC.
    paths: Vec<crate::unix::SocketPath>,
    http: Option<HttpServer>,
    drain: Drain,
    live: Live,
    /// The export, if there is a collector of spans.
    export: Option<Export>,
}

impl Running {
    async fn start(parts: Parts) -> Result<Running, StartError> {
        let Parts { addresses, identity, advertised, directory, replace, policy, pool, board_entries, workers, .. } =
            parts;
        let Parts { grpc, admin, siblings, http, engine, records, poll, requests, security, limits, .. } = parts;
        let (folder, copies) = parts.copies;
        let datagrams = parts.datagrams.as_ref().ok().cloned();
        let export = records.export.clone();
        let budget = policy.budget.clone();
        let handle = engine.handle().clone();
        let client = EngineClient::new(move |command| handle.send(command));

        let local = siblings.as_ref().map(|(_, path)| path.absolute()).unwrap_or_default();
        let believes = if grpc.is_some() { security.believes(&local) } else { String::new() };
        if grpc.is_some() {
            tracing::info!(believes, "rule of trust for the tenants of requests");
        }
        let (place, hosted) = match directory {
            DirectoryPlace::Embedded => {
                let tenants = security.tenancy().tenants().clone();
                let hosted = Directory::with(identity.node.clone(), local.clone(), tenants);
                hosted.limit_keys(limits.directory.keys_per_node);
                (Place::Here(hosted.clone()), Some(hosted))
            }
            DirectoryPlace::At(url) => {
                let place = Place::there(&url, security.clone());
                (place.map_err(|_| ConfigError::Directory { value: url })?, None)
            }
        };
        let hello = Hello {
            node: identity.node.clone(),
            address: advertised,
            incarnation: addresses.incarnation,
            local,
            replace,
        };
        let (tell, news) = mpsc::unbounded_channel();
        let directory = DirectoryClient::start(place, hello, tell);

        let events = Events::new();
        let drain = Drain::new(client.clone(), events.clone());
        tokio::spawn(directory.clone().tell_of(events.clone()));
        let links = Links::new(identity.clone(), client.clone(), directory.clone(), drain.clone(), security.clone());
        let echo = Echo::new(links.clone(), parts.datagrams);
        let sessions = Sessions::new(
            policy,
            Granted { pool, board_entries, sessions: limits.sessions },
            security.tenancy().clone(),
            client.clone(),
            directory.clone(),
            events.clone(),
            drain.clone(),
        );
        let copies = Copies::new(folder, &copies, security.tenancy(), client.clone(), sessions.clone());
        let control = Control {
            engine: client.clone(),
            directory: directory.clone(),
            links: links.clone(),
            sessions: sessions.clone(),
            events: events.clone(),
        };
        let control = tokio::spawn(control.run(requests, news));

        let (clock, poll) = (engine.clock(), PollControl::new(poll));
        let live = Live { poll: poll.clone(), engine: client.clone(), security: security.clone() };
        let watched = Observer::new(ObserverParts {
            me: identity.clone(),
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
        let (stop, stopping) = watch::channel(false);
        let shown = AdminState {
            me: identity,
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
            stopping: stopping.clone(),
        };
        let peering = PeeringService::new(links, directory.clone(), echo);
        let (routes, health) = grpc::routes(peering, AdminService::new(shown), hosted.clone(), security.clone())
            .await
            .map_err(|e| StartError::Services(e.to_string()))?;
        let mut servers = JoinSet::new();
        let system = |source| StartError::System { what: "handing a socket to the runtime", source };
        if let Some(listener) = grpc {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(system)?;
            servers.spawn(grpc::over_tcp(routes.clone(), listener, security.clone(), stopping.clone()));
        }
        // The task ends with the runtime, which ends with the sidecar.
        tokio::spawn(security::watch(security.clone()));
        let mut paths = Vec::new();
        if let Some((listener, path)) = siblings {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(system)?;
            servers.spawn(grpc::of_this_host(routes.clone(), listener, security.clone(), stopping.clone()));
            paths.push(path);
        }
        if let Some((listener, path)) = admin {
            let listener = tokio::net::UnixListener::from_std(listener).map_err(system)?;
            servers.spawn(grpc::over_unix(routes, listener, security.clone(), stopping));
            paths.push(path);
        }

        let http = http.map(|listener| HttpServer::start(listener, watched)).transpose();
        let http = http.map_err(|source| StartError::System { what: "starting the HTTP server", source })?;
        let state = directory.first_word(DIRECTORY_PATIENCE).await;
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
        let acceptor = Acceptor::start(workers, sessions, tokio::runtime::Handle::current())
            .map_err(|source| StartError::System { what: "starting the acceptor's thread", source })?;
        Ok(Running {
            engine,
            datagrams,
            hosted,
            directory,
            health,
            stop,
            servers,
            control,
            acceptor,
            paths,
            http,
            drain,
            live,
            export,
        })
    }

    /// Runs until the sidecar ends. Returns whether it has drained.
    async fn until(mut self, stopped: oneshot::Receiver<()>) -> bool {
        let (drain, health) = (self.drain.clone(), self.health.clone());
        let leaves = async {
            drain.begun().await;
            grpc::draining(&health).await;
            drain.over().await;
        };
        let drained = tokio::select! {
            // An error means that the owner of the sidecar is gone, so the sidecar stops as well.
            _ = stopped => {
                tracing::info!("stopping");
                false
            }
            () = leaves => true,
            _ = &mut self.control => {
                tracing::error!("the data plane has ended by itself");
                false
            }
        };
        // The sidecar first refuses new workers, then ends the present workers and peers, then the services.
        drop(self.acceptor);
        drop(self.paths);
        drop(self.http);
        grpc::not_serving(&self.health).await;
        let (engine, datagrams) = (self.engine, self.datagrams);
        let ended = tokio::task::spawn_blocking(move || {
            engine.stop();
            datagrams.inspect(Datagrams::stop);
        });
        if ended.await.is_err() {
            tracing::error!("the data plane has panicked while it ended");
        }
        match &self.hosted {
            Some(hosted) => hosted.close(),
            None => self.directory.leave(GRACE).await,
        }
        // There may be no receiver.
        let _ = self.stop.send(true);
        let ending = async {
            while let Some(ended) = self.servers.join_next().await {
                if let Ok(Err(e)) = ended {
                    tracing::error!("a gRPC listener has failed: {}", text::chain(&e));
                }
            }
        };
        // A stream that its client keeps open does not end by itself.
        let _ = tokio::time::timeout(GRACE, ending).await;
        if let Some(export) = self.export {
            export.flushed().await;
        }
        drained
    }
}
