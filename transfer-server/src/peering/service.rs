//! Peering as a gRPC service.

use super::echo::Echo;
use super::links::Links;
use crate::directory::{DirectoryClient, Reached, lookup};
use crate::security;
use tonic::{Request, Response, Status};
use transfer_proto::v1;

/// Answers calls of other sidecars and of tools.
#[derive(Debug, Clone)]
pub(crate) struct PeeringService {
    links: Links,
    directory: DirectoryClient,
    echo: Echo,
}

impl PeeringService {
    pub(crate) fn new(links: Links, directory: DirectoryClient, echo: Echo) -> PeeringService {
        PeeringService { links, directory, echo }
    }
}

#[tonic::async_trait]
impl v1::peering_server::Peering for PeeringService {
    async fn connect(&self, request: Request<v1::ConnectRequest>) -> Result<Response<v1::ConnectResponse>, Status> {
        security::claimed(&request, &request.get_ref().node)?;
        let caller = security::caller(&request)?;
        self.links.accept(request.into_inner(), &caller).await.map(Response::new)
    }

    async fn prepare_buffers(
        &self,
        request: Request<v1::PrepareBuffersRequest>,
    ) -> Result<Response<v1::PrepareBuffersResponse>, Status> {
        security::claimed(&request, &request.get_ref().node)?;
        let caller = security::caller(&request)?;
        self.links.buffers_wanted(request.into_inner(), &caller).await.map(Response::new)
    }

    async fn echo(&self, request: Request<v1::EchoRequest>) -> Result<Response<v1::EchoResponse>, Status> {
        security::claimed(&request, &request.get_ref().node)?;
        self.echo.admit(request.into_inner()).await.map(Response::new)
    }

    async fn resolve(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::ResolveResponse>, Status> {
        match self.directory.place().reach().await? {
            Reached::Local(directory) => lookup(directory, request.into_inner()).map(Response::new),
            Reached::Remote(mut client) => client.lookup(request.into_inner()).await,
        }
    }
}
