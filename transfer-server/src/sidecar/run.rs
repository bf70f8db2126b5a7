//! The control thread.

use super::StartError;
use super::member::attached;
use super::parts::Parts;
use super::servers::{GrpcSockets, Servers};
use super::services::{ControlPlane, Services};
use super::sockets::Sockets;
use crate::grpc;
use crate::observe::HttpServer;
use crate::reload::Live;
use crate::security;
use crate::sessions::Acceptor;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tonic_health::server::HealthReporter;
use transfer_fabric::verbs::datagrams::Datagrams;

/// The time for which running calls may continue after the stop.
const STOP_GRACE: Duration = Duration::from_millis(500);

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
            let _ = report.send(Ok(running.plane.live.clone()));
            running.until(stopped).await
        }
        Err(e) => {
            let _ = report.send(Err(e));
            false
        }
    }
}

struct Running {
    plane: ControlPlane,
    servers: Servers,
    acceptor: Acceptor,
    http: Option<HttpServer>,
    health: HealthReporter,
    stop: watch::Sender<bool>,
}

impl Running {
    async fn start(parts: Parts) -> Result<Running, StartError> {
        let Parts { addresses: _, member, security, memory, sockets, data_plane, copies } = parts;
        let Sockets { workers, grpc, admin, siblings, http } = sockets;
        let believes = if grpc.is_some() { security.believes(&member.local) } else { String::new() };
        if grpc.is_some() {
            tracing::info!(believes, "rule of trust for the tenants of requests");
        }
        let (stop, stopping) = watch::channel(false);
        let told = (believes, stopping.clone());
        let services = Services::start(member, memory, data_plane, security.clone(), copies, told).await?;
        let Services { plane, sessions, routes, health, observer } = services;
        let sockets = GrpcSockets { tcp: grpc.map(|(listener, _)| listener), siblings, admin };
        let servers = Servers::start(sockets, routes, &security, stopping)?;
        // The task ends with the runtime, which ends with the sidecar.
        tokio::spawn(security::watch(security));
        let http = http.map(|(listener, _)| HttpServer::start(listener, observer)).transpose();
        let http = http.map_err(|source| StartError::System { what: "starting the HTTP server", source })?;
        attached(&plane.directory).await?;
        let acceptor = Acceptor::start(workers, sessions, tokio::runtime::Handle::current())
            .map_err(|source| StartError::System { what: "starting the acceptor's thread", source })?;
        Ok(Running { plane, servers, acceptor, http, health, stop })
    }

    /// Runs until the sidecar ends. Returns whether it has drained.
    async fn until(self, stopped: oneshot::Receiver<()>) -> bool {
        let Running { plane, mut servers, acceptor, http, health, stop } = self;
        let ControlPlane { engine, datagrams, directory, hosted, drain, mut control, export, live: _ } = plane;
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
            _ = &mut control => {
                tracing::error!("the data plane has ended by itself");
                false
            }
        };
        // The sidecar first refuses new workers, then ends the present workers and peers, then the services.
        drop(acceptor);
        servers.remove_sockets();
        drop(http);
        grpc::not_serving(&health).await;
        let ended = tokio::task::spawn_blocking(move || {
            engine.stop();
            datagrams.inspect(Datagrams::stop);
        });
        if ended.await.is_err() {
            tracing::error!("the data plane has panicked while it ended");
        }
        // The directory goes on at another host, or, if this is the only one, ends now.
        let goes_on = hosted.is_none() || directory.may_move();
        if goes_on {
            directory.leave(STOP_GRACE).await;
        }
        // The next host does not wait for what this node recites, because it has left. An error says that another host leads already, or that none can.
        if let Some(hosted) = hosted.as_ref().filter(|_| goes_on) {
            let _ = tokio::time::timeout(STOP_GRACE, hosted.hand_over(None)).await;
        }
        if let Some(hosted) = &hosted {
            hosted.close();
            let _ = tokio::time::timeout(STOP_GRACE, hosted.ended()).await;
        }
        // There may be no receiver.
        let _ = stop.send(true);
        // A stream that its client keeps open does not end by itself.
        let _ = tokio::time::timeout(STOP_GRACE, servers.ended()).await;
        if let Some(export) = export {
            export.flushed().await;
        }
        drained
    }
}
