//! The admin service: shows the sidecar's state, and lets an operator change some of it.
//!
//! # Layout
//! - `status`: the overview, and the sidecar's health.
//! - `nodes`: the directory's view of the cluster.
//! - `ping`: round trips to other nodes. `copy`: files that other nodes copy here.
//! - `lists`: the entries of lists, as messages. `paging`: the pages of lists. `exchanges`: the pages of exchanges.

mod copy;
mod exchanges;
mod lists;
mod nodes;
pub(crate) mod paging;
mod ping;
mod status;

use crate::copying::Copies;
use crate::directory::{DirectoryClient, HandOverError};
use crate::drain::Drain;
use crate::engine::{EngineClient, EngineError, Listing};
use crate::events::Events;
use crate::observe::logging::{LogControl, LogError};
use crate::peering::{Echo, Identity, Links};
use crate::poll::{self, PollControl};
use crate::security::{Caller, Scope, Security};
use paging::PageRequest;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use transfer_core::protocol::{NotDeleted, Tenant, TensorFilter, TransferFilter};
use transfer_core::tensor::{Key, Name};
use transfer_fabric::engine::Clock;
use transfer_memory::segment::PinnedBudget;
use transfer_proto::v1;
use v1::event::What;

/// The admin service; see the module. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AdminService(Arc<AdminState>);

/// The parts of the sidecar from which the service reads and which it changes.
#[derive(Debug)]
pub(crate) struct AdminState {
    pub(crate) me: Identity,
    pub(crate) clock: Clock,
    pub(crate) budget: PinnedBudget,
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
    pub(crate) links: Links,
    pub(crate) echo: Echo,
    pub(crate) events: Events,
    pub(crate) drain: Drain,
    pub(crate) security: Security,
    pub(crate) copies: Copies,
    /// The rule of trust among peers, in words; empty if there can be no peers.
    pub(crate) believes: String,
    /// Becomes true when streams have to end.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl AdminService {
    pub(crate) fn new(shown: AdminState) -> AdminService {
        AdminService(Arc::new(shown))
    }

    /// Returns the name of the one tenant to which the caller is limited; empty: no limit.
    fn only_of<T>(&self, request: &Request<T>) -> Result<String, Status> {
        // The guard has set it.
        let scope = request
            .extensions()
            .get::<Scope>()
            .ok_or_else(|| Status::internal("the guard has not checked the caller"))?;
        Ok(scope.0.map(|tenant| self.0.security.tenancy().tenants().name(tenant).to_string()).unwrap_or_default())
    }

    fn changed(&self, call: &str, text: String) {
        tracing::info!("{text}");
        self.0.events.tell(text, What::Changed(v1::Changed { call: call.to_owned() }));
    }
}

fn unavailable(error: EngineError) -> Status {
    Status::unavailable(error.to_string())
}

/// The number that stands for the user id of a tenant with a name.
const NO_ONE_USER: u32 = u32::MAX;

/// Returns the user id of a tenant, or `NO_ONE_USER` if the tenant has a name.
pub(crate) fn uid_of(tenant: Tenant) -> u32 {
    tenant.user_id().unwrap_or(NO_ONE_USER)
}

/// Returns whether the caller may see an entry of this tenant.
fn of_tenant(only: &str, tenant: &Name) -> bool {
    only.is_empty() || only == tenant.as_str()
}

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        self.0.status().await.map(Response::new)
    }

    async fn sessions(&self, request: Request<v1::SessionsRequest>) -> Result<Response<v1::SessionsResponse>, Status> {
        let only = self.only_of(&request)?;
        let v1::SessionsRequest { prefix, page_size, page_token } = request.into_inner();
        let list = |answer| Listing::Sessions { prefix: prefix.clone(), answer };
        let (sessions, next_page_token) = PageRequest::new(page_size, &page_token)?
            .gather(&self.0.engine, list, |s| of_tenant(&only, &s.tenant).then(|| lists::session(s)))
            .await?;
        Ok(Response::new(v1::SessionsResponse { sessions, next_page_token }))
    }

    async fn peers(&self, request: Request<v1::PeersRequest>) -> Result<Response<v1::PeersResponse>, Status> {
        let v1::PeersRequest { prefix, page_size, page_token } = request.into_inner();
        // The list is short and does not come from the data plane. So a page starts after the last name of the previous
        // page.
        let after = paging::name_of(&page_token)?;
        let (peers, last) = self.0.links.peers(&prefix, after, paging::size(page_size));
        let next_page_token = paging::token_of(&last);
        Ok(Response::new(v1::PeersResponse { peers, next_page_token }))
    }

    async fn nodes(&self, request: Request<v1::NodesRequest>) -> Result<Response<v1::NodesResponse>, Status> {
        self.0.nodes(request.into_inner()).await.map(Response::new)
    }

    async fn links(&self, request: Request<v1::LinksRequest>) -> Result<Response<v1::LinksResponse>, Status> {
        let v1::LinksRequest { peer, page_size, page_token } = request.into_inner();
        let list = |answer| Listing::Links { peer: peer.clone(), answer };
        let (links, next_page_token) =
            PageRequest::new(page_size, &page_token)?.gather(&self.0.engine, list, |l| Some(lists::link(l))).await?;
        Ok(Response::new(v1::LinksResponse { links, next_page_token }))
    }

    async fn tensors(&self, request: Request<v1::TensorsRequest>) -> Result<Response<v1::TensorsResponse>, Status> {
        let only = self.only_of(&request)?;
        let v1::TensorsRequest { prefix, owner, page_size, page_token } = request.into_inner();
        let filter = TensorFilter { prefix, owner };
        let list = |answer| Listing::Tensors { filter: filter.clone(), answer };
        let (tensors, next_page_token) = PageRequest::new(page_size, &page_token)?
            .gather(&self.0.engine, list, |t| of_tenant(&only, &t.tenant).then(|| lists::tensor(t, self.0.clock)))
            .await?;
        Ok(Response::new(v1::TensorsResponse { tensors, next_page_token }))
    }

    async fn segments(&self, request: Request<v1::SegmentsRequest>) -> Result<Response<v1::SegmentsResponse>, Status> {
        let only = self.only_of(&request)?;
        let request = request.into_inner();
        let asked = PageRequest::new(request.page_size, &request.page_token)?;
        let kind = v1::SegmentKind::try_from(request.kind).map_err(|_| {
            Status::invalid_argument(format!(
                "kind {} is none: arena, pool, headers and counters are 1 to 4",
                request.kind
            ))
        })?;
        let show = |segment| {
            let segment = lists::segment(segment);
            let kind_fits = kind == v1::SegmentKind::Unspecified || segment.kind() == kind;
            let is_own = only.is_empty() || segment.tenant == only;
            (is_own && kind_fits && (request.uid.is_none() || segment.uid == request.uid)).then_some(segment)
        };
        let (segments, next_page_token) =
            asked.gather(&self.0.engine, |answer| Listing::Segments { answer }, show).await?;
        Ok(Response::new(v1::SegmentsResponse { segments, next_page_token }))
    }

    async fn transfers(
        &self,
        request: Request<v1::TransfersRequest>,
    ) -> Result<Response<v1::TransfersResponse>, Status> {
        let only = self.only_of(&request)?;
        let v1::TransfersRequest { prefix, worker, peer, min_age_ns, page_size, page_token } = request.into_inner();
        let filter = TransferFilter { prefix, worker, peer, older_than: Duration::from_nanos(min_age_ns) };
        let list = |answer| Listing::Transfers { filter: filter.clone(), answer };
        let (transfers, next_page_token) = PageRequest::new(page_size, &page_token)?
            .gather(&self.0.engine, list, |t| of_tenant(&only, &t.tenant).then(|| lists::transfer(t)))
            .await?;
        Ok(Response::new(v1::TransfersResponse { transfers, next_page_token }))
    }

    async fn quarantine(
        &self,
        request: Request<v1::QuarantineRequest>,
    ) -> Result<Response<v1::QuarantineResponse>, Status> {
        let only = self.only_of(&request)?;
        let v1::QuarantineRequest { peer, page_size, page_token } = request.into_inner();
        let list = |answer| Listing::Quarantine { peer: peer.clone(), answer };
        let (slots, next_page_token) = PageRequest::new(page_size, &page_token)?
            .gather(&self.0.engine, list, |q| of_tenant(&only, &q.tenant).then(|| lists::quarantined(q)))
            .await?;
        Ok(Response::new(v1::QuarantineResponse { slots, next_page_token }))
    }

    async fn exchanges(
        &self,
        request: Request<v1::ExchangesRequest>,
    ) -> Result<Response<v1::ExchangesResponse>, Status> {
        let only = self.only_of(&request)?;
        self.0.exchanges(&only, request.into_inner()).await.map(Response::new)
    }

    type EventsStream = ReceiverStream<Result<v1::Event, Status>>;

    async fn events(&self, request: Request<v1::EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let stream = self.0.events.stream(request.into_inner().after, self.0.stopping.clone())?;
        Ok(Response::new(stream))
    }

    async fn ping(&self, request: Request<v1::PingRequest>) -> Result<Response<v1::PingResponse>, Status> {
        self.0.ping(request.into_inner()).await.map(Response::new)
    }

    type CopyStream = ReceiverStream<Result<v1::CopyProgress, Status>>;

    async fn copy(&self, request: Request<v1::CopyRequest>) -> Result<Response<Self::CopyStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        self.0.copy(caller.as_ref(), request.into_inner()).await.map(|told| Response::new(ReceiverStream::new(told)))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteResponse>, Status> {
        let only = request.extensions().get::<Scope>().and_then(|scope| scope.0);
        let v1::DeleteRequest { key } = request.into_inner();
        let key = Key::new(&key).map_err(|e| Status::invalid_argument(format!("key: {e}")))?;
        let deleted = self.0.engine.delete(key.clone(), only).await.map_err(unavailable)?;
        let deleted = deleted.map_err(|why| match why {
            NotDeleted::Unknown(_) => Status::not_found(why.to_string()),
            NotDeleted::Claiming(_) => Status::failed_precondition(why.to_string()),
            _ => Status::invalid_argument(why.to_string()),
        })?;
        let owner = deleted.owner.to_string();
        self.changed("Delete", format!("an operator has deleted key {key:?} of worker {owner}"));
        let (versions, bytes, still_read) = (deleted.versions, deleted.bytes, deleted.still_read);
        Ok(Response::new(v1::DeleteResponse { owner, versions, bytes, still_read }))
    }

    type DrainStream = ReceiverStream<Result<v1::DrainProgress, Status>>;

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        self.0.drain.begin(request.into_inner().deadline_ns).map(Response::new)
    }

    async fn evict(&self, request: Request<v1::EvictRequest>) -> Result<Response<v1::EvictResponse>, Status> {
        let only = request.extensions().get::<Scope>().and_then(|scope| scope.0);
        let domain = only.or(request.into_inner().uid.map(Tenant::User));
        let (mut keys, mut bytes, mut place) = (0, 0, 0);
        loop {
            let page = self.0.engine.evict(domain, place).await.map_err(unavailable)?;
            keys += page.entries.len() as u64;
            bytes += page.entries.iter().sum::<u64>();
            match page.next {
                Some(next) => place = next,
                None => break,
            }
        }
        self.changed(
            "Evict",
            format!("an operator has called idle landing slots of {} back", crate::text::counted(keys, "key")),
        );
        Ok(Response::new(v1::EvictResponse { keys, bytes }))
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Result<Response<v1::SetLogLevelResponse>, Status> {
        let v1::SetLogLevelRequest { level } = request.into_inner();
        let Some(log) = LogControl::installed() else {
            return Err(Status::failed_precondition("the program that this sidecar runs in keeps its log to itself"));
        };
        let before = log.set_filter(&level).map_err(|e| match e {
            LogError::Filter { .. } => Status::invalid_argument(e.to_string()),
            LogError::Taken(_) | LogError::Thread(_) => Status::internal(e.to_string()),
        })?;
        self.changed("SetLogLevel", format!("an operator has changed what is logged from {before} to {level}"));
        Ok(Response::new(v1::SetLogLevelResponse { before, now: level }))
    }

    async fn set_poll(&self, request: Request<v1::SetPollRequest>) -> Result<Response<v1::SetPollResponse>, Status> {
        let AdminState { poll, engine, .. } = &*self.0;
        let wanted = request.into_inner().poll.unwrap_or_default();
        let strategy = poll::from_message(&wanted).map_err(Status::invalid_argument)?;
        let before = poll.set(engine, strategy).map_err(|gone| unavailable(gone.into()))?;
        self.changed(
            "SetPoll",
            format!(
                "the data plane waits differently from now on: {}, before {}",
                poll::in_words(strategy),
                poll::in_words(before)
            ),
        );
        let (before, now) = (Some(poll::to_message(before)), Some(poll::to_message(strategy)));
        Ok(Response::new(v1::SetPollResponse { before, now }))
    }

    async fn move_directory(
        &self,
        request: Request<v1::MoveDirectoryRequest>,
    ) -> Result<Response<v1::MoveDirectoryResponse>, Status> {
        let node = request.into_inner().node;
        let heir = Some(node).filter(|node| !node.is_empty()).map(|node| Name::new(&node)).transpose();
        let heir = heir.map_err(|e| Status::invalid_argument(format!("node: {e}")))?;
        let directory = &self.0.directory;
        let moved = match directory.hosted() {
            Some(hosted) => hosted.hand_over(heir).await,
            None if !directory.may_move() => Err(HandOverError::OnlyHost),
            None => Err(HandOverError::StandsBy { host: self.0.me.node.clone(), leader: directory.host() }),
        };
        let leads = moved.map_err(|why| match why {
            HandOverError::NoHost { .. } => Status::invalid_argument(why.to_string()),
            HandOverError::OnlyHost | HandOverError::StandsBy { .. } => Status::failed_precondition(why.to_string()),
            HandOverError::Another { .. } | HandOverError::NobodyElse | HandOverError::NobodyYet { .. } => {
                Status::unavailable(why.to_string())
            }
        })?;
        self.changed("MoveDirectory", format!("node {leads} leads the directory now"));
        Ok(Response::new(v1::MoveDirectoryResponse { node: leads.to_string() }))
    }
}
