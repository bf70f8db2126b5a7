//! Fetches.

use super::{Kind, Waiting};
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::PullId;
use crate::protocol::node::flows::NodeState;
use crate::protocol::search::{Search, SearchStage};
use crate::protocol::sessions::{FetchOp, FetchStage, Op};
use crate::protocol::transfers::{Pull, PullState};
use crate::tensor::Name;
use std::time::Duration;

impl Kind for FetchOp {
    fn name(&self, _op: &Op) -> &'static str {
        "fetch"
    }

    fn waits_for(&self, Waiting { op, state, .. }: Waiting<'_>) -> String {
        let select = self.select;
        match &self.stage {
            FetchStage::Waiting => {
                let record = state.keys.find(&op.key).and_then(|r| state.keys.record(r));
                match record.and_then(|r| state.sessions.owner_name(r.owner())) {
                    Some(owner) => format!("worker {owner:?} to publish {select} here"),
                    None => "the directory to say who owns the key: nobody has published it yet".to_owned(),
                }
            }
            FetchStage::Connecting(node) if state.transfers.is_searched_at(&op.key, node) => {
                of_named_node(state, Some(&SearchStage::Connecting(node.clone())))
            }
            FetchStage::Connecting(node) => format!("a link to node {node:?}, which owns the key"),
            FetchStage::Copying(_) => "a copy out of another tenant's memory or from disk, or room for it".to_owned(),
            FetchStage::Closing(link, _) => {
                format!("node {:?} to write no more into the worker's memory", state.links.peer_name(*link))
            }
            FetchStage::Pulling(link, pull) => {
                let peer = state.links.peer_name(*link);
                let pull = state.transfers.pull(*link, *pull);
                let delta = pull.and_then(Pull::delta_bytes).map(|bytes| format!("a delta of {bytes} bytes"));
                let of_delta = delta.as_ref().map_or_else(String::new, |delta| format!(" for {delta}"));
                let named = pull.and_then(|pull| pull.search.as_deref()).map(|search| &search.stage);
                match pull.map(|p| p.state) {
                    Some(PullState::Redirected) => of_named_node(state, named),
                    Some(PullState::WaitingForRoom) => format!("room in the landing pool{of_delta}"),
                    Some(PullState::Applying) => format!("{} to be applied", delta.as_deref().unwrap_or("a delta")),
                    Some(PullState::Preparing | PullState::Granting) => {
                        format!("a landing slot to be opened{of_delta}")
                    }
                    _ => format!("node {peer:?} to send {}", delta.unwrap_or_else(|| select.to_string())),
                }
            }
        }
    }

    fn other_node<'a>(&'a self, at: Waiting<'a>) -> Option<&'a Name> {
        match &self.stage {
            FetchStage::Waiting | FetchStage::Copying(_) => None,
            FetchStage::Connecting(node) => Some(node),
            FetchStage::Pulling(link, pull) => {
                let search = at.state.transfers.pull(*link, *pull).and_then(|pull| pull.search.as_deref());
                let link = match search.map(|search| &search.stage) {
                    Some(SearchStage::Connecting(node)) => return Some(node),
                    Some(SearchStage::Asked(named)) => named,
                    Some(SearchStage::Idle) | None => link,
                };
                at.state.links.peer_of(*link).map(|peer| &peer.name)
            }
            FetchStage::Closing(link, _) => at.state.links.peer_of(*link).map(|peer| &peer.name),
        }
    }

    fn len_bytes(&self, at: Waiting<'_>) -> Option<u64> {
        match &self.stage {
            FetchStage::Pulling(link, pull) => at.state.transfers.pull(*link, *pull).and_then(Pull::version_bytes),
            _ => None,
        }
    }

    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure> {
        let (key, select) = (&at.op.key, self.select);
        let failure = |code, text: String| Some(Failure::new(code, text));
        match &self.stage {
            FetchStage::Waiting => {
                let record = at.state.keys.find(key).zip(at.state.sessions.tenant_of(at.op.session));
                match record.and_then(|(record, reader)| access!(at.state).readable_newest(reader, record)) {
                    Some(newest) => failure(
                        FailureCode::Deadline,
                        format!("key {key:?} is at {newest}; {select} was not published within {after:?}"),
                    ),
                    None => failure(FailureCode::UnknownKey, format!("nobody published key {key:?} within {after:?}")),
                }
            }
            FetchStage::Connecting(node) if at.state.transfers.is_searched_at(key, node) => failure(
                FailureCode::PeerLost,
                format!(
                    "the link to the owner of key {key:?} was lost, and none to node {node:?}, to which that has sent this one, came up within {after:?}"
                ),
            ),
            FetchStage::Connecting(node) => failure(
                FailureCode::PeerUnreachable,
                format!("key {key:?} is owned by node {node:?}, to which no link came up within {after:?}"),
            ),
            // It has failed, and ends when its memory is closed.
            FetchStage::Closing(..) => None,
            FetchStage::Pulling(link, pull) => Some(self.pull_overdue(at, (*link, *pull), after)),
            FetchStage::Copying(_) => failure(
                FailureCode::PoolFull,
                format!("there was no room in this worker's landing pool for a copy of key {key:?} within {after:?}"),
            ),
        }
    }
}

/// What a fetch waits for whose owner has named other nodes.
fn of_named_node(state: &NodeState<'_>, stage: Option<&SearchStage>) -> String {
    match stage {
        Some(SearchStage::Connecting(node)) => format!("a link to node {node:?}, which its owner has named"),
        Some(SearchStage::Asked(link)) => {
            format!("node {:?} to send the version in chunks", state.links.peer_name(*link))
        }
        Some(SearchStage::Idle) | None => "a node that its owner has named".to_owned(),
    }
}

impl FetchOp {
    fn pull_overdue(&self, at: Waiting<'_>, (link, pull): (LinkId, PullId), after: Duration) -> Failure {
        let (key, select) = (&at.op.key, self.select);
        let search = at.state.transfers.pull(link, pull).and_then(|pull| pull.search.as_deref());
        let (link, pull) = (search.and_then(Search::asked).unwrap_or(link), at.state.transfers.pull(link, pull));
        if pull.is_some_and(|pull| pull.state == PullState::WaitingForRoom) {
            let text = format!("no room for key {key:?} came free in the landing pool within {after:?}");
            return Failure::new(FailureCode::PoolFull, text);
        }
        let peer = at.state.links.peer_name(link);
        let behind = pull.and_then(|pull| pull.behind);
        let newest = behind.map_or_else(String::new, |newest| format!(": the key was at {newest} there"));
        let text = format!("{select} of key {key:?} did not come from node {peer:?} within {after:?}{newest}");
        Failure::new(FailureCode::Deadline, text)
    }
}
