//! The directory as a gRPC service.

use super::convert;
use super::host::{Attachment, Detached, Directory, MAX_BATCH};
use super::registry::AttachRefused;
use crate::admin::paging;
use crate::events::nanos;
use crate::security::{self, Caller, Security};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use transfer_core::tensor::{Key, Name};
use transfer_proto::v1;
use transfer_proto::v1::resolve_request::What;

/// The time-out of a node's Hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// Serves a [`Directory`] that this process hosts.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryService {
    directory: Directory,
    security: Security,
}

impl DirectoryService {
    pub(crate) fn new(directory: Directory, security: Security) -> DirectoryService {
        DirectoryService { directory, security }
    }
}

#[tonic::async_trait]
impl v1::directory_server::Directory for DirectoryService {
    type AttachStream = ReceiverStream<Result<v1::DirectoryUpdate, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::NodeUpdate>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (parts, extensions, mut inbound) = request.into_parts();
        let caller = Request::from_parts(parts, extensions, ());
        let first = tokio::time::timeout(HELLO_DEADLINE, inbound.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello within 5 s"))??;
        let hello = convert::hello(first.unwrap_or_default());
        let (hello, version, asks_for_socket) = hello.map_err(|e| Status::invalid_argument(e.to_string()))?;
        // This check also guards the right to replace another sidecar of that name.
        security::claimed(&caller, hello.node.as_str())?;
        let host = self.directory.host();
        if version != convert::VERSION {
            let text = convert::other_version(host.as_str(), convert::VERSION, hello.node.as_str(), version);
            return Err(Status::failed_precondition(text));
        }
        if hello.node == *host {
            return Err(Status::already_exists(format!(
                "node {host:?} hosts this directory, and no other sidecar can have its name: give this one another --node"
            )));
        }
        let met = security::caller(&caller)?;
        let word = self.security.vouches(hello.node.as_str(), &met);
        // The same sidecar may prove more at the Unix socket.
        let closer = |why: &str| convert::refusal(why, self.directory.local());
        if asks_for_socket && matches!(met, Caller::Plain { .. }) && !self.directory.local().is_empty() {
            return Err(closer("nodes of this host attach at its Unix socket"));
        }
        let attachment = self.directory.attach(&hello, word).await.map_err(|refused| match refused {
            AttachRefused::Lives { .. } => Status::already_exists(refused.to_string()),
            AttachRefused::Unproved { .. } => closer(&refused.to_string()),
            AttachRefused::TooMany { .. } => Status::resource_exhausted(refused.to_string()),
            AttachRefused::StandsBy { ref leader, .. } => convert::stands_by(&refused.to_string(), leader.as_ref()),
        })?;
        tracing::info!(node = %hello.node, incarnation = hello.incarnation, address = %hello.address, "node attached");
        let (to_node, answers) = mpsc::channel(4);
        // A new channel has room.
        let _ = to_node.try_send(Ok(convert::welcome(self.directory.host(), self.directory.silence())));
        tokio::spawn(async move {
            let why = tokio::select! {
                why = listen(inbound, &attachment) => why,
                why = speak(&to_node, &attachment) => why,
            };
            drop(attachment);
            tracing::info!(node = %hello.node, incarnation = hello.incarnation, why = why.message(), "node detached");
            // The reason is lost if the node is gone.
            let _ = to_node.try_send(Err(why));
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        security::claimed(&request, &request.get_ref().node)?;
        let ballot = convert::ballot_of(request.into_inner()).map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Response::new(convert::vote_message(self.directory.vote(&ballot)?)))
    }

    async fn lookup(&self, request: Request<v1::ResolveRequest>) -> Result<Response<v1::ResolveResponse>, Status> {
        lookup(&self.directory, request.into_inner()).map(Response::new)
    }

    async fn nodes(&self, request: Request<v1::NodesRequest>) -> Result<Response<v1::NodesResponse>, Status> {
        nodes(&self.directory, &request.into_inner()).map(Response::new)
    }
}

/// Answers Lookup and Resolve.
pub(crate) fn lookup(directory: &Directory, request: v1::ResolveRequest) -> Result<v1::ResolveResponse, Status> {
    directory.answers().map_err(|refused| Status::unavailable(refused.to_string()))?;
    let bad = |e: transfer_core::tensor::InvalidName| Status::invalid_argument(e.to_string());
    let (found, what) = match request.what {
        None => return Err(Status::invalid_argument("nothing to look for: set key, worker or node")),
        Some(What::Key(key)) => {
            let found = directory.key(&Key::new(&key).map_err(bad)?);
            (found.as_ref().map(convert::key_response), format!("nobody owns the key {key:?}"))
        }
        Some(What::Worker(worker)) => {
            let found = directory.worker(&Name::new(&worker).map_err(bad)?);
            (found.as_ref().map(convert::node_response), format!("no worker {worker:?} is connected anywhere"))
        }
        Some(What::Node(node)) => {
            let found = directory.node(&Name::new(&node).map_err(bad)?);
            (found.as_ref().map(convert::node_response), format!("no node {node:?} is attached"))
        }
    };
    found.ok_or_else(|| Status::not_found(what))
}

/// Returns a page of the nodes. The caller adds the node that was asked, and how it was asked.
pub(crate) fn nodes(directory: &Directory, request: &v1::NodesRequest) -> Result<v1::NodesResponse, Status> {
    directory.answers().map_err(|refused| Status::unavailable(refused.to_string()))?;
    let size = paging::size(request.page_size);
    let found = directory.nodes(paging::name_of(&request.page_token)?, size);
    let next_page_token = match found.last() {
        Some((last, _)) if found.len() == size => paging::token_of(last.node.as_str()),
        _ => String::new(),
    };
    let nodes = found.into_iter().map(|(at, since)| v1::Node {
        node: at.node.to_string(),
        address: at.address.to_string(),
        incarnation: at.incarnation,
        lost_ns: since.map(nanos),
    });
    Ok(v1::NodesResponse { nodes: nodes.collect(), next_page_token, ..v1::NodesResponse::default() })
}

async fn listen(mut inbound: Streaming<v1::NodeUpdate>, attachment: &Attachment) -> Status {
    loop {
        attachment.ready().await;
        let update = match inbound.message().await {
            Ok(Some(update)) => update,
            Ok(None) => return Status::ok("the node ended its stream"),
            Err(status) => return status,
        };
        if update.items.len() > MAX_BATCH {
            let len = update.items.len();
            return Status::invalid_argument(format!("a batch of {len} items; at most {MAX_BATCH} are allowed"));
        }
        let items: Result<Vec<_>, _> = update.items.into_iter().map(convert::node_item).collect();
        match items {
            Ok(items) => attachment.say(items),
            Err(e) => return Status::invalid_argument(e.to_string()),
        }
    }
}

async fn speak(to_node: &mpsc::Sender<Result<v1::DirectoryUpdate, Status>>, attachment: &Attachment) -> Status {
    loop {
        let heard = tokio::select! {
            heard = attachment.hear() => heard,
            () = to_node.closed() => return Status::cancelled("the node is gone"),
        };
        match heard {
            Ok(answers) => {
                if to_node.send(Ok(convert::directory_update(answers))).await.is_err() {
                    return Status::cancelled("the node is gone");
                }
            }
            Err(why @ Detached::Left) => return Status::ok(why.to_string()),
            Err(why @ Detached::Replaced) => return Status::aborted(why.to_string()),
            Err(why) => return Status::unavailable(why.to_string()),
        }
    }
}
