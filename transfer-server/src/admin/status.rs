//! The overview, and the sidecar's health.

use super::{AdminState, uid_of, unavailable};
use crate::directory::{Directory, DirectoryClient, ElectionState, Place};
use crate::engine::FabricDescription;
use crate::events::{nanos, unix_nanos};
use crate::observe::logging::LogControl;
use crate::peering::{Identity, Kind};
use crate::{locked, poll};
use std::time::{Duration, SystemTime};
use tonic::Status;
use transfer_core::protocol::{LinkWork, PublishedStatus, Snapshot};
use transfer_proto::v1;

/// A sidecar is degraded if a request has waited for room in a pool for longer than this.
const FULL_FOR_LONG: Duration = Duration::from_secs(5);

impl AdminState {
    pub(super) async fn status(&self) -> Result<v1::StatusResponse, Status> {
        let AdminState { me, clock, budget, poll, engine, directory, drain, .. } = self;
        let snapshot = engine.snapshot().await.map_err(unavailable)?;
        let descriptions = engine.describe().await.map_err(unavailable)?;
        let (state, reasons) = self.state(&snapshot);
        let [cpu, _] = transfer_terminal::cpu::of_process_and_children();
        let pools = snapshot.pools.iter().map(|p| v1::Pool {
            uid: uid_of(p.domain),
            tenant: p.tenant.to_string(),
            bytes: p.bytes,
            used_bytes: p.used,
            waiting: p.waiting,
            full_ns: p.full_for.map_or(0, nanos),
        });
        let unfinished = snapshot.unfinished.iter().map(|version| v1::UnfinishedVersion {
            state: version.state.clone(),
            version: version.version.0,
            world_size: version.world_size,
            committed: version.committed,
            missing: version.missing.clone(),
            age_ns: nanos(SystemTime::now().duration_since(clock.wall_clock(version.since)).unwrap_or_default()),
        });
        Ok(v1::StatusResponse {
            unfinished_versions: unfinished.collect(),
            node: me.node.to_string(),
            incarnation: me.incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ns: nanos(clock.elapsed()),
            pools: pools.collect(),
            counters: Some(counters(snapshot)),
            pinned_bytes: budget.used(),
            pinned_limit_bytes: budget.limit(),
            directory: Some(directory_state(directory)),
            fabrics: me.fabrics.iter().map(|kind| v1::Fabric::from(Kind(*kind)).into()).collect(),
            require: me.require.map_or(v1::Fabric::Unspecified, |kind| Kind(kind).into()).into(),
            fabric_states: fabric_states(me, descriptions),
            poll: Some(poll::to_message(poll.present())),
            locked_limit_bytes: locked::limit_bytes(),
            state: state.into(),
            reasons,
            drain: drain.progress(),
            log_level: LogControl::installed().map(LogControl::filter).unwrap_or_default(),
            tls: self.security.tls_state().map(|tls| v1::TlsState {
                expires_unix_s: tls.expires.map_or(0, |expires| expires.as_secs()),
                refused_handshakes: tls.refused,
            }),
            believes: self.believes.clone(),
            cpu_user_ns: nanos(cpu.user),
            cpu_system_ns: nanos(cpu.system),
            time_unix_ns: unix_nanos(SystemTime::now()),
        })
    }

    fn state(&self, snapshot: &Snapshot) -> (v1::State, Vec<String>) {
        let mut reasons = Vec::new();
        let directory = self.directory.state();
        if !directory.attached {
            reasons.push(format!(
                "the directory at {} is out of reach, so new keys and workers cannot be entered or found: {}",
                self.directory.place().describe(),
                directory.why_not
            ));
        }
        if let Some((location, Some(why_not))) = self.directory.coordinator() {
            reasons.push(format!(
                "{location} does not answer, so no other host can lead the directory if the one that does ends: {why_not}"
            ));
        }
        if snapshot.impaired > 0 {
            reasons.push(format!(
                "{} of {} links live with fewer rails than they were made with; the list of links shows which",
                snapshot.impaired, snapshot.links
            ));
        }
        for pool in &snapshot.pools {
            if let Some(full_for) = pool.full_for.filter(|full_for| *full_for >= FULL_FOR_LONG) {
                reasons.push(format!(
                    "the landing pool of tenant {} has been full for {} s, and {} wait: raise --pool-bytes, release tensors earlier, \
                     or evict",
                    pool.tenant,
                    full_for.as_secs(),
                    pool.waiting
                ));
            }
        }
        if self.drain.is_under_way() {
            reasons.insert(
                0,
                "an operator has started a drain: it finishes what runs, takes nothing new, and leaves".to_owned(),
            );
            return (v1::State::Draining, reasons);
        }
        (if reasons.is_empty() { v1::State::Serving } else { v1::State::Degraded }, reasons)
    }
}

fn counters(snapshot: Snapshot) -> v1::Counters {
    let Snapshot { sessions, links, on_links, impaired, tensors, blobs, leases, operations, slots, counters, .. } =
        snapshot;
    let LinkWork { queued, pulls, serves, flows_out, flows_in } = on_links;
    let finished = snapshot.finished.into_iter().map(|p| v1::Path {
        fabric: v1::Fabric::from(Kind(p.fabric)).into(),
        transfers: p.transfers,
        bytes: p.bytes,
        copied_bytes: p.copied,
    });
    let PublishedStatus { pushes, bytes, copied } = snapshot.published;
    let fabric = v1::Fabric::Local.into();
    let published = Some(v1::Path { fabric, transfers: pushes, bytes, copied_bytes: copied });
    v1::Counters {
        tensors,
        blobs,
        leases,
        operations,
        slots,
        failed: snapshot.failed,
        wrong_digests: snapshot.wrong_digests,
        finished: finished.collect(),
        named: counters,
        sessions,
        links,
        queued,
        pulls,
        serves,
        flows_out,
        flows_in,
        impaired,
        published,
    }
}

/// Lists the states of all fabrics. Missing ones come first, because they would be better.
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
    shown.hosts = directory
        .hosts()
        .into_iter()
        .map(|(node, location)| v1::DirectoryHost { node: node.to_string(), location })
        .collect();
    match directory.hosted().and_then(Directory::election) {
        Some(ElectionState { leader, term, awaited }) => {
            shown.leader = leader.map(|leader| leader.to_string()).unwrap_or_default();
            shown.term = term;
            shown.awaited = awaited.iter().map(ToString::to_string).collect();
        }
        None if state.attached => shown.leader = directory.host().map(|host| host.to_string()).unwrap_or_default(),
        None => {}
    }
    if let Some((location, why_not)) = directory.coordinator() {
        (shown.coordinator, shown.coordinator_why_not) = (location.to_owned(), why_not.unwrap_or_default());
    }
    if let Place::Local(hosted) = place {
        let counts = hosted.counts();
        shown.hosted_here = true;
        shown.keys = counts.keys;
        shown.workers = counts.workers;
        shown.nodes = counts.nodes;
        shown.watches = counts.watches;
    }
    shown
}
