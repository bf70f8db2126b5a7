//! Builds and serves the gRPC services.

use crate::admin::AdminService;
use crate::directory::{Directory, DirectoryService};
use crate::peering::PeeringService;
use crate::security::{self, GuardLayer, Security};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::service::RoutesBuilder;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;
use transfer_proto::v1::admin_server::AdminServer;
use transfer_proto::v1::directory_server::DirectoryServer;
use transfer_proto::v1::peering_server::PeeringServer;

/// The interval of pings. A dead client is noticed after this and [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The time-out of a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most concurrent calls on one connection.
const MAX_STREAMS: u32 = 256;

/// Returns the routes of all services. Only the host of the directory serves the directory.
pub(crate) async fn routes(
    peering: PeeringService,
    admin: AdminService,
    directory: Option<Directory>,
    security: Security,
) -> Result<(Routes, HealthReporter), tonic_reflection::server::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<PeeringServer<PeeringService>>().await;
    health.set_serving::<AdminServer<AdminService>>().await;
    let mut routes = RoutesBuilder::default();
    if let Some(directory) = directory {
        health.set_serving::<DirectoryServer<DirectoryService>>().await;
        routes.add_service(DirectoryServer::new(DirectoryService::new(directory, security)));
    }
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(transfer_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    routes
        .add_service(PeeringServer::new(peering))
        .add_service(AdminServer::new(admin))
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        // Older tools, such as grpcurl, use this version.
        .add_service(reflection().build_v1alpha()?);
    Ok((routes.routes().prepare(), health))
}

/// Sets the health of a draining node's services to not serving. Admin calls and the directory are served until the
/// end.
pub(crate) async fn draining(health: &HealthReporter) {
    health.set_not_serving::<PeeringServer<PeeringService>>().await;
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
}

/// Sets the health of all services to not serving.
pub(crate) async fn not_serving(health: &HealthReporter) {
    health.set_not_serving::<PeeringServer<PeeringService>>().await;
    health.set_not_serving::<AdminServer<AdminService>>().await;
    health.set_not_serving::<DirectoryServer<DirectoryService>>().await;
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
}

fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(Some(MAX_STREAMS))
}

async fn told(mut stop: watch::Receiver<bool>) {
    // Returns also if the sender is gone.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Serves over TCP until `stop` is set and the running calls have ended. Uses TLS if there are certificates.
pub(crate) async fn over_tcp(
    routes: Routes,
    listener: TcpListener,
    security: Security,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let incoming = match security.has_tls() {
        true => security::over_tls(listener, security.clone()),
        false => security::over_plain(listener),
    };
    server().layer(GuardLayer(security)).add_routes(routes).serve_with_incoming_shutdown(incoming, told(stop)).await
}

/// Serves at the socket for sidecars of this host.
pub(crate) async fn of_this_host(
    routes: Routes,
    listener: UnixListener,
    security: Security,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let incoming = security::of_this_host(listener);
    server().layer(GuardLayer(security)).add_routes(routes).serve_with_incoming_shutdown(incoming, told(stop)).await
}

/// Serves at the admin socket.
pub(crate) async fn over_unix(
    routes: Routes,
    listener: UnixListener,
    security: Security,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let incoming = security::over_unix(listener);
    server().layer(GuardLayer(security)).add_routes(routes).serve_with_incoming_shutdown(incoming, told(stop)).await
}
