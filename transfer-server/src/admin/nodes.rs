//! The nodes of the cluster, as the directory knows them.

use super::AdminState;
use crate::directory::{self, Reached};
use std::time::Duration;
use tonic::{Code, Status};
use transfer_proto::v1;

/// The time-out of the directory. Callers wait longer than this, and have other nodes to ask.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(5);

impl AdminState {
    /// Returns a page of nodes. If the directory does not answer, the page has only this node.
    pub(super) async fn nodes(&self, request: v1::NodesRequest) -> Result<v1::NodesResponse, Status> {
        let place = self.directory.place();
        let asked = async {
            match place.reach().await? {
                Reached::Local(here) => directory::nodes(here, &request),
                Reached::Remote(mut client) => Ok(client.nodes(request).await?.into_inner()),
            }
        };
        let answer = tokio::time::timeout(DIRECTORY_TIMEOUT, asked).await.unwrap_or_else(|_| {
            let place = place.describe();
            Err(Status::unavailable(format!("the directory at {place} has not answered within {DIRECTORY_TIMEOUT:?}")))
        });
        let mut response = match answer {
            Err(status) if status.code() == Code::InvalidArgument => return Err(status),
            Err(status) => v1::NodesResponse {
                nodes: vec![v1::Node {
                    node: self.me.node.to_string(),
                    incarnation: self.me.incarnation,
                    ..v1::Node::default()
                }],
                why_not_all: status.message().to_owned(),
                ..v1::NodesResponse::default()
            },
            Ok(response) => response,
        };
        response.asked = self.me.node.to_string();
        response.tls = self.security.has_tls();
        Ok(response)
    }
}
