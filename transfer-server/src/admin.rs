//! The admin service: what this sidecar shows of itself.

use crate::directory::{DirectoryClient, Place};
use crate::engine::{EngineClient, EngineError, FabricDescription};
use crate::locked;
use crate::peering::{Identity, Kind};
use crate::poll::{self, PollControl};
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};
use tonic::{Request, Response, Status};
use transfer_core::protocol::{Snapshot, TensorStatus};
use transfer_core::tensor::TensorMeta;
use transfer_memory::segment::PinnedBudget;
use transfer_proto::v1;

/// The page size where none is asked for, and the longest.
const PAGE: (usize, usize) = (100, 1000);

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AdminService(Arc<Shown>);

/// What is shown beside what the engine counts.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) me: Identity,
    pub(crate) started: Instant,
    pub(crate) budget: PinnedBudget,
    pub(crate) poll: PollControl,
    pub(crate) engine: EngineClient,
    pub(crate) directory: DirectoryClient,
}

impl AdminService {
    pub(crate) fn new(shown: Shown) -> AdminService {
        AdminService(Arc::new(shown))
    }
}

fn unavailable(error: EngineError) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusResponse>, Status> {
        let Shown { me, started, budget, poll, engine, directory } = &*self.0;
        let snapshot = engine.snapshot().await.map_err(unavailable)?;
        let descriptions = engine.describe().await.map_err(unavailable)?;
        let Snapshot { sessions, links, pools, tensors, blobs, leases, operations, slots, counters, finished, failed } =
            snapshot;
        let sessions = sessions.into_iter().map(|s| v1::Session {
            session: s.session.0,
            worker: s.name.to_string(),
            uid: s.domain.0,
            arena_bytes: s.arena_bytes,
            leases: s.leases,
            operations: s.operations,
        });
        let links = links.into_iter().map(|l| v1::Link {
            link: l.link.0,
            peer: l.peer.to_string(),
            fabric: v1::Fabric::from(Kind(l.fabric)).into(),
            rails: u32::try_from(l.rails).unwrap_or(u32::MAX),
            rails_live: u32::try_from(l.rails_live).unwrap_or(u32::MAX),
            credits: l.credits,
            queued: l.queued,
            pulls: l.pulls,
            serves: l.serves,
            flows_out: l.flows_out,
            flows_in: l.flows_in,
            why: l.passed_over.into_iter().map(|passed| passed.why).collect::<Vec<_>>().join("; "),
        });
        let pools = pools.into_iter().map(|p| v1::Pool {
            uid: p.domain.0,
            bytes: p.bytes,
            used_bytes: p.used,
            waiting: p.waiting,
        });
        let finished = finished.into_iter().map(|p| v1::Path {
            fabric: v1::Fabric::from(Kind(p.fabric)).into(),
            transfers: p.transfers,
            bytes: p.bytes,
            copied_bytes: p.copied,
        });
        let finished = finished.collect();
        Ok(Response::new(v1::StatusResponse {
            node: me.node.to_string(),
            incarnation: me.incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            sessions: sessions.collect(),
            links: links.collect(),
            pools: pools.collect(),
            counters: Some(v1::Counters {
                tensors,
                blobs,
                leases,
                operations,
                slots,
                failed,
                finished,
                named: counters,
            }),
            pinned_bytes: budget.used(),
            pinned_limit_bytes: budget.limit(),
            directory: Some(directory_state(directory)),
            fabrics: me.fabrics.iter().map(|kind| v1::Fabric::from(Kind(*kind)).into()).collect(),
            require: me.require.map_or(v1::Fabric::Unspecified, |kind| Kind(kind).into()).into(),
            fabric_states: fabric_states(me, descriptions),
            poll: Some(poll::to_message(poll.present())),
            locked_limit_bytes: locked::limit_bytes(),
            time_unix_ns: UNIX_EPOCH.elapsed().map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
        }))
    }

    async fn set_poll(&self, request: Request<v1::SetPollRequest>) -> Result<Response<v1::SetPollResponse>, Status> {
        let Shown { poll, engine, .. } = &*self.0;
        let wanted = request.into_inner().poll.unwrap_or_default();
        let strategy = poll::from_message(&wanted).map_err(Status::invalid_argument)?;
        let before = poll.set(engine, strategy).map_err(|gone| unavailable(gone.into()))?;
        tracing::info!(?strategy, ?before, "the data plane waits differently from now on");
        let (before, now) = (Some(poll::to_message(before)), Some(poll::to_message(strategy)));
        Ok(Response::new(v1::SetPollResponse { before, now }))
    }

    async fn tensors(&self, request: Request<v1::TensorsRequest>) -> Result<Response<v1::TensorsResponse>, Status> {
        let v1::TensorsRequest { prefix, page_size, page_token } = request.into_inner();
        let limit = match page_size as usize {
            0 => PAGE.0,
            n => n.min(PAGE.1),
        };
        // One more than the page: whether there is a next one.
        let mut page = self.0.engine.tensors(prefix, page_token, limit + 1).await.map_err(unavailable)?;
        let more = page.len() > limit;
        page.truncate(limit);
        let next_page_token = match page.last() {
            Some(last) if more => last.key.to_string(),
            _ => String::new(),
        };
        Ok(Response::new(v1::TensorsResponse { tensors: page.into_iter().map(tensor).collect(), next_page_token }))
    }
}

/// What is not there comes first: it would be better.
fn fabric_states(me: &Identity, descriptions: Vec<FabricDescription>) -> Vec<v1::FabricState> {
    let lacking = me.lacking.iter().map(|lack| v1::FabricState {
        fabric: v1::Fabric::from(Kind(lack.fabric)).into(),
        why_not: lack.why.clone(),
        ..v1::FabricState::default()
    });
    let there = descriptions.into_iter().map(|FabricDescription { kind, settings, counts }| v1::FabricState {
        fabric: v1::Fabric::from(Kind(kind)).into(),
        available: true,
        why_not: String::new(),
        settings: settings.into_iter().map(|(name, value)| v1::Setting { name: name.to_owned(), value }).collect(),
        counts: counts.into_iter().map(|(name, value)| v1::Count { name: name.to_owned(), value }).collect(),
    });
    lacking.chain(there).collect()
}

fn directory_state(directory: &DirectoryClient) -> v1::DirectoryState {
    let state = directory.state();
    let place = directory.place();
    let mut shown = v1::DirectoryState {
        location: place.describe(),
        attached: state.attached,
        why_not: state.why_not,
        attachments: state.attachments,
        ..v1::DirectoryState::default()
    };
    if let Place::Here(hosted) = place {
        let counts = hosted.counts();
        shown.hosted_here = true;
        shown.keys = counts.keys;
        shown.workers = counts.workers;
        shown.nodes = counts.nodes;
        shown.watches = counts.watches;
    }
    shown
}

fn tensor(status: TensorStatus) -> v1::Tensor {
    let TensorStatus { key, owner, version, meta, slice, readers, retention, older } = status;
    v1::Tensor {
        key: key.to_string(),
        owner: owner.to_string(),
        version: version.0,
        len_bytes: meta.len_bytes(),
        tensor: Some(descriptor(&meta)),
        readers,
        segment: slice.segment.0,
        offset: slice.offset,
        retention: retention.to_string(),
        older,
    }
}

fn descriptor(meta: &TensorMeta) -> v1::TensorDescriptor {
    // The numbers are the same, and a test says so.
    v1::TensorDescriptor { dtype: i32::from(meta.dtype() as u8), shape: meta.shape().dims().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::DType;

    #[test]
    fn element_types_have_the_same_numbers_in_messages() {
        for dtype in DType::ALL {
            let meta = TensorMeta::of(dtype, &[2, 3]).unwrap();
            let message = descriptor(&meta).dtype();
            assert_eq!(message.as_str_name(), format!("DTYPE_{}", dtype.name().to_uppercase()));
        }
    }
}
