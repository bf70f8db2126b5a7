//! `/metrics`, for Prometheus.
//!
//! The number of samples is bounded: labels are fabrics, operations, codes of failures, user ids, and at most
//! [`MAX_PATHS`] peers. Keys, versions and workers are never labels, because there may be millions of them.

use super::families::Families;
use super::observer::{Observation, Observer};
use crate::directory::Counts;
use std::collections::BTreeMap;
use std::time::SystemTime;
use transfer_core::drive::PostMeter;
use transfer_core::protocol::{
    DeltaMeter, ExchangeTotals, LinkStatus, MAX_PATHS, Operation, OperationMeter, PathMeter, SpreadMeter, WhyWhole,
};
use transfer_fabric::engine::EngineMeters;

/// The content type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Makes the text of all metrics.
///
/// # Errors
/// The text cannot be written, which is a defect.
pub(super) fn text(watched: &Observer, look: &Observation) -> Result<Vec<u8>, prometheus::Error> {
    let mut families = Families::default();
    of_sidecar(&mut families, watched, look);
    of_records(&mut families, watched, look);
    of_transfers(&mut families, look);
    of_memory(&mut families, look);
    of_exchanges(&mut families, look);
    of_links(&mut families, look);
    of_engine(&mut families, look);
    of_fabrics(&mut families, look);
    families.encode()
}

fn of_sidecar(f: &mut Families, watched: &Observer, look: &Observation) {
    let started = watched.started_at().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let node = watched.parts().me.node.as_str();
    f.gauge("transfer_build_info", "1; the labels say which sidecar this is and of which version.")
        .sample(&[("node", node), ("version", env!("CARGO_PKG_VERSION"))], 1.0);
    f.gauge("transfer_start_time_seconds", "When the sidecar started, in seconds since 1970.").sample(&[], started);
    let what = "1 while this node is attached to the directory, else 0.";
    f.level("transfer_directory_attached", what, look.directory.attached.into());
    let what = "The number of times that this node has attached to the directory.";
    f.count("transfer_directory_attachments_total", what, look.directory.attachments);
    if let Some(why_not) = &look.coordinator {
        let what = "1 while the etcd or the Kubernetes of --directory answers this node, else 0: then no other host can lead the directory.";
        f.level("transfer_directory_coordinator_answers", what, why_not.is_none().into());
    }
    if let Some(Counts { keys, workers, nodes, watches, .. }) = look.hosted {
        let kinds = [("key", keys), ("worker", workers), ("node", nodes), ("watch", watches)];
        f.gauge("transfer_directory_entries", "Entries of the directory, if this node hosts it.").each("kind", kinds);
    }
    if let Some(tls) = look.tls {
        if let Some(expires) = tls.expires {
            let what = "When the first certificate of --tls-cert expires, in seconds since 1970.";
            f.gauge("transfer_tls_certificate_expiry_seconds", what).sample(&[], expires.as_secs_f64());
        }
        let what =
            "gRPC handshakes that were refused: invalid certificates, other protocols, and clients that send nothing.";
        f.count("transfer_tls_handshakes_refused_total", what, tls.refused);
    }
    let reached = look.measured.snapshot.limits_reached;
    let kinds = [("keys", reached.keys), ("versions", reached.versions), ("partitions", reached.partitions)];
    let what = "Pushes and sessions that were refused at a limit of --limits, by what there was too much of.";
    f.counter("transfer_limits_reached_total", what)
        .each("of", kinds.into_iter().chain([("sessions", look.sessions_refused)]));
    let what = "Log lines that were dropped by the limit of their place in the code.";
    f.count("transfer_log_lines_dropped_total", what, look.log_lines_dropped);
}

fn of_records(f: &mut Families, watched: &Observer, look: &Observation) {
    let what = "Records of transfers that were not written, for too many waited.";
    f.count("transfer_spans_dropped_total", what, look.spans_dropped);
    if let Some(export) = &watched.parts().records.export {
        let what = "Spans for the collector, by what has become of them.";
        f.counter("transfer_otlp_spans_total", what).each("outcome", export.counts().get());
    }
    if let Some(datagrams) = &watched.parts().datagrams {
        let what = "Datagrams of transferctl ping --ud that have arrived, by what has become of them.";
        f.counter("transfer_datagrams_total", what).each("outcome", datagrams.counts());
    }
    let what = "1 while the sidecar takes nothing new and is about to leave.";
    f.level("transfer_draining", what, look.measured.snapshot.draining.into());
}

/// Returns the labels of a path and an operation.
fn labels(path: &PathMeter, operation: Operation) -> [(&'static str, &str); 3] {
    let peer = path.peer.as_ref().map_or("", |p| p.as_str());
    [("operation", operation.name()), ("fabric", path.fabric.name()), ("peer", peer)]
}

fn of_transfers(f: &mut Families, look: &Observation) {
    let meters = &look.measured.meters;
    // Within the node no tensor is served to a peer, and none lands.
    let there = |path: &PathMeter, operation: Operation| {
        path.fabric != transfer_core::fabric::FabricKind::Local
            || matches!(operation, Operation::Push | Operation::Fetch)
    };
    let each = || {
        meters.paths().iter().flat_map(|path| {
            let meters = Operation::ALL.into_iter().zip(&path.operations);
            meters.map(move |(op, meter)| (path, op, meter)).filter(move |(path, op, _)| there(path, *op))
        })
    };
    let mut numbers = |name: &str, help: &str, of: fn(&OperationMeter) -> u64| {
        let mut family = f.counter(name, help);
        for (path, operation, meter) in each() {
            family.number(&labels(path, operation), of(meter));
        }
    };
    let what = "Finished transfers. Peers beyond the first 128 have no name.";
    numbers("transfer_transfers_total", what, |meter| meter.transfers);
    numbers("transfer_bytes_total", "Bytes of tensors in finished transfers.", |meter| meter.bytes);
    let what =
        "Bytes that a CPU copied in finished transfers, on both sides, the kernel's copies in a socket included.";
    numbers("transfer_copied_bytes_total", what, |meter| meter.copied);
    let what = "From the time that a transfer between nodes was on its way until it was there.";
    let mut family = f.histogram("transfer_flight_seconds", what);
    for (path, operation, meter) in each().filter(|(_, _, meter)| meter.in_flight.count() > 0) {
        family.durations(&labels(path, operation), &meter.in_flight);
    }
    drop(family);
    let what = "How long a transfer waited for the directory, a link, credits or memory before it was on its way.";
    let mut family = f.histogram("transfer_queued_seconds", what);
    for (fabric, wait) in meters.waits() {
        for (operation, durations) in [(Operation::Push, &wait.push_queued), (Operation::Fetch, &wait.fetch_queued)] {
            if durations.count() > 0 {
                family.durations(&[("operation", operation.name()), ("fabric", fabric.name())], durations);
            }
        }
    }
    drop(family);
    let what = "How long a fetch waited until its version was published.";
    let mut family = f.histogram("transfer_version_wait_seconds", what);
    for (fabric, wait) in meters.waits().filter(|(_, wait)| wait.waited.count() > 0) {
        family.durations(&[("fabric", fabric.name())], &wait.waited);
    }
    drop(family);
    let shared = meters.shared();
    let what = "Fetches from other nodes that were answered with what the fetch of another worker here had brought.";
    f.count("transfer_shared_fetches_total", what, shared.fetches);
    f.count("transfer_shared_bytes_total", "Bytes of these fetches, which did not come again.", shared.bytes);
    let DeltaMeter { versions, bytes, saved, given_up } = meters.deltas();
    let what = "Versions that came from other nodes as deltas of ones that were here.";
    f.count("transfer_delta_versions_total", what, versions);
    f.count("transfer_delta_bytes_total", "Bytes of these deltas.", bytes);
    let what = "Bytes by which these versions are longer than their deltas.";
    f.count("transfer_delta_saved_bytes_total", what, saved);
    let what = "Versions that were asked for as a whole although a delta was on its way, by the reason.";
    let reasons = WhyWhole::ALL.into_iter().map(WhyWhole::name);
    f.counter("transfer_delta_fallbacks_total", what).each("reason", reasons.zip(given_up));
    let SpreadMeter { redirects, relayed, relayed_bytes, refused, asked_again, held } = meters.spreading();
    let what = "Requests of other nodes that were sent to nodes that have a version of this node, or are receiving it.";
    f.count("transfer_redirects_total", what, redirects);
    f.count(
        "transfer_relayed_versions_total",
        "Versions of other nodes whose last chunk was sent on from here.",
        relayed,
    );
    f.count(
        "transfer_relayed_bytes_total",
        "Bytes of versions of other nodes that were sent on from here.",
        relayed_bytes,
    );
    let what = "Versions that came from other nodes than their owner, and had other bytes than their owner says.";
    f.count("transfer_relays_refused_total", what, refused);
    let what = "Fetches for which no other node had the version, so that its owner was asked again.";
    f.count("transfer_relay_fallbacks_total", what, asked_again);
    let what = "Requests of other nodes that were sent to others, and for which the version is held here.";
    f.level("transfer_redirects_held", what, held);
    let failures = meters.failures().map(|(code, count)| (format!("{code:?}"), count));
    f.counter("transfer_failures_total", "Operations of workers that ended in failure, by code.")
        .each("code", failures);
    let counted = meters.counted().map(|(path, count)| (path.name(), count));
    let what = "Operations on counters of the job, by who did them.";
    f.counter("transfer_atomic_operations_total", what).each("path", counted);
    let what = "Arrivals at barriers whose round became complete.";
    f.count("transfer_barrier_arrivals_total", what, meters.barriers());
}

fn of_memory(f: &mut Families, look: &Observation) {
    let now = &look.measured.snapshot;
    f.level("transfer_pinned_bytes", "Pinned memory: arenas, pools and rings.", look.pinned);
    f.level("transfer_pinned_limit_bytes", "The limit of pinned memory.", look.pinned_limit);
    let pools = |f: &mut Families, name: &str, help: &str, of: fn(&transfer_core::protocol::PoolStatus) -> u64| {
        let mut family = f.gauge(name, help);
        for pool in &now.pools {
            // The label has its name from the time when every tenant was a user id.
            family.number(&[("uid", pool.tenant.as_str())], of(pool));
        }
    };
    pools(f, "transfer_pool_bytes", "Size of a user id's landing pool.", |p| p.bytes);
    pools(f, "transfer_pool_used_bytes", "Used bytes of a user id's landing pool.", |p| p.used);
    pools(f, "transfer_pool_waiting", "Requests that wait for room in a user id's landing pool.", |p| p.waiting);
    f.level("transfer_sessions", "Connected workers.", now.sessions);
    f.level("transfer_tensors", "Keys with a published version.", now.tensors);
    f.level(
        "transfer_blobs",
        "Ranges of memory that somebody can reach: published, being read, or under way.",
        now.blobs,
    );
    f.level(
        "transfer_base_bytes",
        "Bytes of versions from other nodes that are kept because deltas of them may follow, or other nodes may ask for them.",
        now.base_bytes,
    );
    f.level("transfer_leases", "Leases that workers hold on what they fetched.", now.leases);
    f.level("transfer_operations", "Operations of workers that have not ended.", now.operations);
    f.level(
        "transfer_slots",
        "Landing slots that peers may write to, or in quarantine until they surely do not any more.",
        now.slots,
    );
    f.level("transfer_named_counters", "Counters, barriers and rosters that live at this sidecar.", now.counters);
    f.level("transfer_rosters", "Rosters of sharded states that live at this sidecar.", now.rosters);
    f.level(
        "transfer_unfinished_versions",
        "Versions of these states that some ranks have committed and that are not whole, at most 64.",
        now.unfinished.len() as u64,
    );
}

/// Exchanges are never labels, because their number is not bounded: the Admin service and the status page list them.
fn of_exchanges(f: &mut Families, look: &Observation) {
    let ExchangeTotals { exchanges, tasks, rows, bytes, memory, spilled, reads_waiting, writes_waiting } =
        look.measured.snapshot.exchanges;
    f.count("transfer_exchange_tasks_total", "Tasks of exchanges that workers of this node have committed.", tasks);
    f.count("transfer_exchange_rows_total", "Rows of committed tasks of exchanges, as their workers say.", rows);
    f.count("transfer_exchange_bytes_total", "Bytes of these rows, as their workers say.", bytes);
    f.level(
        "transfer_exchanges",
        "Exchanges of which something is here: an anchor, committed tasks, or rows.",
        exchanges,
    );
    f.level("transfer_exchange_memory_bytes", "Bytes of rows of exchanges that lie in arenas here.", memory);
    f.level("transfer_exchange_spilled_bytes", "Bytes of rows of exchanges that lie on disk here.", spilled);
    f.level("transfer_exchange_reads_waiting", "Fetches of parts of exchanges that wait.", reads_waiting);
    f.level(
        "transfer_exchange_writers_waiting",
        "Tasks that found no room in their arena, and whose rows wait to be written to disk.",
        writes_waiting,
    );
}

/// Returns the newest link to each peer over each fabric: the first [`MAX_PATHS`] by name. An older link is about to
/// end.
fn shown_links(look: &Observation) -> Vec<&LinkStatus> {
    let mut newest = BTreeMap::new();
    for link in &look.links {
        let shown = newest.entry((&link.peer, link.fabric as u8)).or_insert(link);
        if shown.link < link.link {
            *shown = link;
        }
    }
    newest.into_values().take(MAX_PATHS).collect()
}

fn of_links(f: &mut Families, look: &Observation) {
    f.level("transfer_links", "Links to peers.", look.measured.snapshot.links);
    let links = shown_links(look);
    let mut gauge = |name: &str, help: &str, of: &dyn Fn(&LinkStatus) -> u64| {
        let mut family = f.gauge(name, help);
        for link in &links {
            family.number(&[("peer", link.peer.as_str()), ("fabric", link.fabric.name())], of(link));
        }
    };
    gauge("transfer_link_up", "1 for each link to a peer; of the first 128 of them, by name.", &|_| 1);
    gauge("transfer_link_credits", "Messages and immediates that may be sent to the peer now.", &|l| l.credits.into());
    gauge("transfer_link_queued", "Messages and writes that wait for credits.", &|l| l.work.queued);
    gauge("transfer_link_pulls", "Fetches that the peer has not answered.", &|l| l.work.pulls);
    gauge("transfer_link_serves", "Fetches of the peer that are not answered.", &|l| l.work.serves);
    gauge("transfer_link_flows_out", "Keys that this side pushes there.", &|l| l.work.flows_out);
    gauge("transfer_link_flows_in", "Keys that the peer pushes here.", &|l| l.work.flows_in);
    gauge("transfer_link_rails", "Rails that the link was made of.", &|l| l.rails as u64);
    gauge("transfer_link_rails_live", "Rails of it that live.", &|l| l.rails_live as u64);
}

fn of_engine(f: &mut Families, look: &Observation) {
    let measured = &look.measured;
    let EngineMeters { rounds, busy, sleeps, commands, submissions, replies, replies_delayed, .. } = measured.engine;
    f.counter("transfer_engine_busy_seconds_total", "The time that the data-plane thread was busy.")
        .sample(&[], busy.as_secs_f64());
    f.count("transfer_engine_rounds_total", "Rounds of the data-plane thread with work.", rounds);
    f.count("transfer_engine_sleeps_total", "Sleeps of the data-plane thread.", sleeps);
    f.count("transfer_engine_commands_total", "Commands of the control plane to the data plane.", commands);
    f.count("transfer_ring_submissions_total", "Records taken out of workers' submission rings.", submissions);
    f.count("transfer_ring_replies_total", "Replies to workers.", replies);
    f.count("transfer_ring_replies_delayed_total", "Replies that found their worker's ring full.", replies_delayed);
    let boards = measured.boards;
    f.count(
        "transfer_board_hits_total",
        "Fetches that workers have answered by a look-up on their board.",
        boards.hits,
    );
    f.count("transfer_board_bytes_total", "Bytes of the tensors that these look-ups found.", boards.bytes);
    f.level("transfer_board_versions", "Versions that boards show.", boards.shown);
    let what = "Withdrawn versions of boards that workers still read.";
    f.level("transfer_board_versions_pending", what, boards.pending);
    let what = "Commands that wait for the data plane.";
    f.level("transfer_engine_commands_waiting", what, measured.commands_waiting);
    f.level("transfer_ring_replies_waiting", "Replies that wait for their workers to read.", measured.replies_waiting);
    let rung = [("rung", measured.engine.doorbells_rung), ("taken", measured.engine.doorbells_taken)];
    f.counter("transfer_doorbells_total", "Doorbells of workers: rung to wake a worker, taken when a worker woke us.")
        .each("direction", rung);
}

fn of_fabrics(f: &mut Families, look: &Observation) {
    let fabrics: Vec<_> = look.measured.fabrics.iter().zip(&look.measured.posts).collect();
    let mut family = f.counter("transfer_work_requests_total", "Work posted to a fabric, by kind.");
    for (fabric, posts) in &fabrics {
        let PostMeter { sends, writes, grants, revokes, atomics, .. } = posts;
        let kinds = [("send", sends), ("write", writes), ("grant", grants), ("revoke", revokes), ("atomic", atomics)];
        for (kind, count) in kinds {
            family.number(&[("fabric", fabric.kind.name()), ("kind", kind)], *count);
        }
    }
    drop(family);
    let mut family = f.counter("transfer_work_completions_total", "Completions that a fabric reported, by kind.");
    for (fabric, posts) in &fabrics {
        let PostMeter { writes_done, messages, immediates, atomics_done, .. } = posts;
        let kinds =
            [("write", writes_done), ("message", messages), ("immediate", immediates), ("atomic", atomics_done)];
        for (kind, count) in kinds {
            family.number(&[("fabric", fabric.kind.name()), ("kind", kind)], *count);
        }
    }
    drop(family);
    let mut family = f.counter("transfer_link_changes_total", "Links that came up, and links that ended, by fabric.");
    for (fabric, posts) in &fabrics {
        family.number(&[("fabric", fabric.kind.name()), ("change", "up")], posts.links_up);
        family.number(&[("fabric", fabric.kind.name()), ("change", "down")], posts.links_down);
    }
    drop(family);
    let mut family = f.counter("transfer_send_queue_full_total", "Posts that found a fabric's send queue full.");
    for (fabric, posts) in &fabrics {
        family.number(&[("fabric", fabric.kind.name())], posts.full);
    }
    drop(family);
    let mut family = f.counter("transfer_fabric_events_total", "What a fabric's device counts of itself.");
    for (fabric, _) in &fabrics {
        for (event, count) in &fabric.counts {
            let event = event.replace(' ', "_");
            family.number(&[("fabric", fabric.kind.name()), ("event", &event)], *count);
        }
    }
}
