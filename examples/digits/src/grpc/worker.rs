//! A worker over gRPC.

use super::proto::parameter_server_client::ParameterServerClient;
use super::proto::{GetWeightsRequest, PushGradientRequest};
use super::{decode, encode};
use crate::error::Error;
use crate::model::PARAMETERS;
use crate::training::{Job, Worker};
use std::net::SocketAddr;

/// Does all steps of worker `rank` with the parameter server at `server`.
///
/// # Errors
/// [`Error::Transport`] if the server cannot be reached, [`Error::Refused`] if a call fails, [`Error::Unexpected`] if
/// the weights do not fit this model.
pub async fn work(job: Job, rank: usize, server: SocketAddr) -> Result<(), Error> {
    let worker = Worker::new(job, rank)?;
    let mut server = ParameterServerClient::connect(format!("http://{server}")).await?;
    let mut gradient = vec![0.0; PARAMETERS];

    for step in 0..job.steps {
        let answer = server.get_weights(GetWeightsRequest { version: step }).await?.into_inner();
        let weights = decode(&answer.weights);
        if weights.len() != PARAMETERS {
            return Err(Error::Unexpected { what: "number of weights" });
        }
        worker.gradient(step, &weights, &mut gradient);
        let pushed = PushGradientRequest { rank: rank as u32, version: step, gradient: encode(&gradient) };
        server.push_gradient(pushed).await?;
    }
    Ok(())
}
