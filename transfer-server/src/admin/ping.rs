//! Round trips to other nodes, over the data plane or by datagrams.

use super::{AdminState, lists, unavailable};
use crate::engine::{Listing, PageFrom, PingError};
use std::time::Duration;
use tonic::Status;
use transfer_core::fabric::LinkId;
use transfer_core::protocol::NotPinged;
use transfer_core::tensor::Name;
use transfer_proto::v1;

/// The time-out of an answer, by default and at most.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(9);

impl AdminState {
    /// Sends a PING to a node and waits for its PONG. Makes a link first if there is none. Or sends a datagram, which
    /// needs no link.
    pub(super) async fn ping(&self, request: v1::PingRequest) -> Result<v1::PingResponse, Status> {
        let v1::PingRequest { node, timeout_ns, datagrams } = request;
        let peer = Name::new(&node).map_err(|e| Status::invalid_argument(format!("node: {e}")))?;
        let timeout = match Duration::from_nanos(timeout_ns) {
            Duration::ZERO => PING_TIMEOUT,
            timeout if timeout > LONGEST_TIMEOUT => {
                let text = format!("timeout_ns is {timeout_ns}; at most {} is possible", LONGEST_TIMEOUT.as_nanos());
                return Err(Status::invalid_argument(text));
            }
            timeout => timeout,
        };
        if peer == self.me.node {
            return Err(Status::invalid_argument(format!(
                "node {peer} is this node itself, and it has no link to itself"
            )));
        }
        if datagrams {
            return self.echo.ping(&peer, timeout).await;
        }
        let link = self.links.reach(&peer).await;
        let link = link.map_err(|why| Status::unavailable(format!("there is no link to node {peer}: {why}")))?;
        let round_trip = match self.engine.ping(link, timeout).await.map_err(unavailable)? {
            None => {
                return Err(Status::deadline_exceeded(format!("node {peer} has not answered within {timeout:?}")));
            }
            Some(Err(why @ PingError::NotSent(NotPinged::Unanswered { .. }))) => {
                return Err(Status::resource_exhausted(why.to_string()));
            }
            Some(Err(why)) => return Err(Status::unavailable(format!("node {peer}: {why}"))),
            Some(Ok(round_trip)) => round_trip,
        };
        // The link may have gone since the answer came.
        let link = self.link(&peer, link).await?;
        let round_trip_ns = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        let v1::Link { link, fabric, why, .. } = link;
        Ok(v1::PingResponse { round_trip_ns, link, fabric, why, from: None, to: None })
    }

    /// Returns the state of a link to a node, or an empty one if the link has gone.
    pub(super) async fn link(&self, peer: &Name, link: LinkId) -> Result<v1::Link, Status> {
        let from = PageFrom { place: u64::from(link.0), limit: 1 };
        let listing = |answer| Listing::Links { peer: peer.to_string(), answer };
        let page = self.engine.list(from, listing).await.map_err(unavailable)?;
        Ok(page.entries.into_iter().find(|entry| entry.link == link).map(lists::link).unwrap_or_default())
    }
}
