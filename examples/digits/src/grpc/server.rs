//! The parameter server over gRPC.

use super::proto::parameter_server_server::{ParameterServer, ParameterServerServer};
use super::proto::{GetWeightsRequest, GetWeightsResponse, PushGradientRequest, PushGradientResponse};
use super::{decode, encode};
use crate::error::Error;
use crate::event::{Event, Reporter};
use crate::model::PARAMETERS;
use crate::training::{Job, Server, WORKERS};
use prost::bytes::Bytes;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Serves one job at `listen` (port 0: any free one). Returns when its last version is made and all answers are sent.
///
/// # Errors
/// [`Error::Io`] if the address is not available, [`Error::Transport`] if serving fails, [`Error::Unexpected`] if a
/// worker is out of step.
pub async fn serve(job: Job, listen: SocketAddr) -> Result<(), Error> {
    let listener = TcpListener::bind(listen).await.map_err(Error::io("listen for workers"))?;
    let address = listener.local_addr().map_err(Error::io("learn the address to listen at"))?;

    let server = Server::new(job)?;
    let first = Published { version: 0, weights: encode(server.weights()) };
    let (publish, published) = watch::channel(first);
    let (gradients_in, gradients) = mpsc::channel(WORKERS);
    let (done, shutdown) = oneshot::channel::<()>();

    let serving = async {
        tonic::transport::Server::builder()
            .add_service(ParameterServerServer::new(Service { published, gradients: gradients_in }))
            .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), async {
                // Training sends nothing: the end of the channel means that it is done or has failed, and serving ends
                // in both cases.
                let _ = shutdown.await;
            })
            .await
            .map_err(Error::from)
    };
    let training = async {
        let result = train(job, server, publish, gradients).await;
        drop(done);
        result
    };
    Event::Listening { address }.emit()?;
    tokio::try_join!(serving, training)?;
    Ok(())
}

/// The training loop: each step makes one version from two gradients.
async fn train(
    job: Job,
    mut server: Server,
    publish: watch::Sender<Published>,
    mut gradients: mpsc::Receiver<PushGradientRequest>,
) -> Result<(), Error> {
    let mut reporter = Reporter::new(job);
    while server.version() < job.steps {
        let mut by_rank = [const { Vec::new() }; WORKERS];
        for _ in 0..WORKERS {
            let pushed = gradients.recv().await.ok_or(Error::Unexpected { what: "end of the gradients" })?;
            let slot = &mut by_rank[pushed.rank as usize];
            if pushed.version != server.version() || !slot.is_empty() {
                return Err(Error::Unexpected { what: "gradient of another step" });
            }
            *slot = decode(&pushed.gradient);
        }
        server.update(by_rank.each_ref().map(Vec::as_slice));
        reporter.updated(&server)?;
        publish.send_replace(Published { version: server.version(), weights: encode(server.weights()) });
    }
    Ok(())
}

/// The newest weights, ready to be sent to any number of workers.
#[derive(Debug, Clone)]
struct Published {
    version: u64,
    weights: Bytes,
}

#[derive(Debug)]
struct Service {
    published: watch::Receiver<Published>,
    gradients: mpsc::Sender<PushGradientRequest>,
}

#[tonic::async_trait]
impl ParameterServer for Service {
    async fn get_weights(&self, request: Request<GetWeightsRequest>) -> Result<Response<GetWeightsResponse>, Status> {
        let wanted = request.into_inner().version;
        let mut published = self.published.clone();
        let newest = published
            .wait_for(|newest| newest.version >= wanted)
            .await
            .map_err(|_| Status::unavailable(format!("training ended before version {wanted}")))?
            .clone();
        if newest.version != wanted {
            return Err(Status::out_of_range(format!("version {wanted} is gone, the newest is {}", newest.version)));
        }
        Ok(Response::new(GetWeightsResponse { weights: newest.weights }))
    }

    async fn push_gradient(
        &self,
        request: Request<PushGradientRequest>,
    ) -> Result<Response<PushGradientResponse>, Status> {
        let pushed = request.into_inner();
        if pushed.rank as usize >= WORKERS {
            return Err(Status::invalid_argument(format!("rank {} of {WORKERS} workers", pushed.rank)));
        }
        if pushed.gradient.len() != PARAMETERS * size_of::<f32>() {
            return Err(Status::invalid_argument(format!("a gradient of {} bytes", pushed.gradient.len())));
        }
        self.gradients.send(pushed).await.map_err(|_| Status::unavailable("training has ended"))?;
        Ok(Response::new(PushGradientResponse {}))
    }
}
