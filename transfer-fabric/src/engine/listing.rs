//! The lists that the control plane can request page by page, and their entries. Each page is a bounded piece of work
//! for the data-plane thread; see [`Page`].

use super::handle::Answer;
use super::memory::Memory;
use super::run::Run;
use transfer_core::fabric::FabricKind;
use transfer_core::memory::SegmentId;
use transfer_core::protocol::{
    ExchangeStatus, LinkStatus, Page, QuarantineStatus, SessionStatus, Tenant, TensorFilter, TensorStatus,
    TransferFilter, TransferStatus,
};
use transfer_core::tensor::Name;
use transfer_core::time::Time;
use transfer_memory::segment::Achieved;

/// The start of a page, and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFrom {
    /// 0, or [`Page::next`].
    pub place: u64,
    /// The most entries; see [`Page::MAX_ENTRIES`].
    pub limit: usize,
}

/// A request for a page of a list.
#[non_exhaustive]
pub enum Listing {
    /// Workers whose name has this prefix.
    Sessions {
        /// The prefix.
        prefix: String,
        /// The page.
        answer: Answer<Page<SessionStatus>>,
    },
    /// Links to that node, or all if the name is empty.
    Links {
        /// The node's name.
        peer: String,
        /// The page.
        answer: Answer<Page<LinkStatus>>,
    },
    /// Published tensors.
    Tensors {
        /// The filter.
        filter: TensorFilter,
        /// The page.
        answer: Answer<Page<TensorStatus>>,
    },
    /// Operations of workers that have not ended.
    Transfers {
        /// The filter.
        filter: TransferFilter,
        /// The page.
        answer: Answer<Page<TransferStatus>>,
    },
    /// Landing slots in quarantine for that node, or all if the name is empty.
    Quarantine {
        /// The node's name.
        peer: String,
        /// The page.
        answer: Answer<Page<QuarantineStatus>>,
    },
    /// Exchanges of record batches whose name has this prefix.
    Exchanges {
        /// The prefix.
        prefix: String,
        /// The page. It has at most [`ExchangeStatus::MAX_ENTRIES`] entries.
        answer: Answer<Page<ExchangeStatus>>,
    },
    /// Memory.
    Segments {
        /// The page.
        answer: Answer<Page<SegmentStatus>>,
    },
}

/// The role of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentRole {
    /// Outgoing landing headers.
    Headers,
    /// The words of counters.
    Counters,
    /// The landing pool of this tenant.
    Pool(Tenant),
    /// The arena of this worker of this tenant.
    Arena(Tenant, Name),
    /// A segment of another sidecar on this host, which workers here may read by reference.
    Peer,
}

/// A segment of the data plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Its number.
    pub segment: SegmentId,
    /// Its role.
    pub role: SegmentRole,
    /// The name of its tenant. `None`: it belongs to the sidecar itself.
    pub tenant: Option<Name>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its pages, and whether they are locked.
    pub achieved: Achieved,
    /// The fabrics that it is registered with.
    pub registered: Vec<FabricKind>,
    /// For an arena: the number of ranges that are still reachable, and whether its worker is gone.
    pub reach: Option<(u64, bool)>,
}

impl Run {
    /// Answers a request for a page.
    pub(super) fn list(&mut self, now: Time, from: PageFrom, listing: Listing) {
        let PageFrom { place, limit } = from;
        let node = &self.driver.node;
        match listing {
            Listing::Sessions { prefix, answer } => {
                let mut page = node.state().sessions(&prefix, place, limit);
                for session in &mut page.entries {
                    session.leases += self.boards.hazards_of(session.session);
                }
                answer(page);
            }
            Listing::Links { peer, answer } => answer(self.driver.links(&peer, place, limit)),
            Listing::Tensors { filter, answer } => answer(node.state().tensors(&filter, place, limit)),
            Listing::Transfers { filter, answer } => answer(node.state().transfers(now, &filter, place, limit)),
            Listing::Quarantine { peer, answer } => answer(node.state().quarantine(now, &peer, place, limit)),
            Listing::Exchanges { prefix, answer } => answer(node.state().exchanges(now, &prefix, place, limit)),
            Listing::Segments { answer } => {
                let fabrics: Vec<_> = self.driver.fabrics().iter().map(|fabric| fabric.kind()).collect();
                let mut page = self.memory.page(place, limit, &fabrics);
                for segment in &mut page.entries {
                    segment.tenant = match segment.role {
                        SegmentRole::Pool(tenant) | SegmentRole::Arena(tenant, _) => {
                            Some(self.driver.node.state().tenant_name(tenant))
                        }
                        SegmentRole::Headers | SegmentRole::Counters | SegmentRole::Peer => None,
                    };
                    segment.reach = self.driver.node.state().arena_reach(segment.segment);
                }
                answer(page);
            }
        }
    }
}

impl Memory {
    fn page(&self, place: u64, limit: usize, registered: &[FabricKind]) -> Page<SegmentStatus> {
        let limit = limit.clamp(1, Page::<()>::MAX_ENTRIES);
        let from = SegmentId(u32::try_from(place).unwrap_or(u32::MAX));
        let mut rest = self.roles().range(from..).filter_map(|(id, role)| Some((*id, role, self.get(*id)?)));
        let entries = rest.by_ref().take(limit).map(|(id, role, segment)| SegmentStatus {
            segment: id,
            role: role.clone(),
            tenant: None,
            bytes: segment.len(),
            achieved: *segment.achieved(),
            registered: if *role == SegmentRole::Peer { Vec::new() } else { registered.to_vec() },
            reach: None,
        });
        let entries = entries.collect();
        Page { entries, next: rest.next().map(|(id, ..)| id.0.into()) }
    }
}
