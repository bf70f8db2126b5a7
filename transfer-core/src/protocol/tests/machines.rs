//! The four state machines of a transfer between nodes. The test drives each machine into each of its states, and
//! applies each event there.
//!
//! The tables in docs/protocol.md contain the results, and docs/protocol-states.svg draws them. With
//! `TRANSFER_UPDATE_DOCS=1` the test rewrites both files.

use super::pair::{bytes, key};
use super::picture;
use super::references::{by_reference, referring};
use super::solo::{KEY, LINK, ME, OURS, SESSION, Solo, YOU};
use super::tables::{table, update};
use crate::fabric::DownReason;
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Command, Failure, FailureCode, Push, Request};
use crate::protocol::landing::SlotState;
use crate::protocol::transfers::PullState;
use crate::protocol::{Control, PREPARED_METADATA_ID};
use crate::tensor::{BodyRange, GatheredPart, Retention, Select, Version};
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};
use crate::wire::message::{Body, Recall, Role};
use std::num::NonZeroU64;
use std::time::Duration;

type State = (&'static str, fn() -> Solo);
/// Applies the event. Returns `false` if it cannot happen in this state.
type Event = (&'static str, fn(&mut Solo) -> bool);

/// A state machine: its title, its states and events, and a function that observes its state.
pub(super) struct Machine {
    pub(super) title: &'static str,
    states: &'static [State],
    events: &'static [Event],
    observe: fn(&Solo) -> Option<String>,
}

/// The index of the request or flow that the test begins as the peer.
pub(super) const INDEX: u32 = 5;
const PUSH_TIMEOUT: Duration = Duration::from_secs(1000);

fn grant(capacity: u64) -> SlotGrant {
    let remote = RemoteSlice::new(0, capacity + HEADER_BYTES, RemoteKey(99));
    SlotGrant { number: SlotNumber::new(3, 1), capacity, remote, body: Vec::new() }
}

fn error(code: FailureCode) -> Body {
    Body::ErrorStatus(Failure::new(code, "a test"))
}

fn trace(version: u64) -> Body {
    Body::Trace { version: Version(version), context: TraceContext::new([1; 16], [2; 8], 1).unwrap() }
}

fn link_down(solo: &mut Solo) -> bool {
    solo.lose_link();
    true
}

fn granted(solo: &mut Solo) -> bool {
    let can = solo.has_to_grant();
    solo.grant();
    can
}

fn revoked(solo: &mut Solo) -> bool {
    let can = solo.has_to_revoke();
    solo.revoke();
    can
}

/// Writes into the first open slot, or to a slot number that does not exist.
fn write(solo: &mut Solo, role: Role) -> bool {
    land(solo, role, None);
    true
}

fn land(solo: &mut Solo, role: Role, identity: Option<NonZeroU64>) {
    let (index, metadata_id) = match role {
        Role::Pull => (pull(solo), 1),
        _ => (INDEX, PREPARED_METADATA_ID),
    };
    let slots = solo.node.landing.slots_of(LINK).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
    let slot = SlotNumber(slots.first().map_or(12345, |id| id.short()));
    let version = Version(if role == Role::Pull { 2 } else { 1 });
    solo.land(&Header {
        slot,
        index,
        metadata_id,
        version,
        body_len: 8,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity,
    });
}

// ---- a pull, at its receiver ----

fn pull(solo: &Solo) -> u32 {
    solo.node.transfers.of(LINK).unwrap().pulls().iter().last().map_or(0x77777, |(id, _)| id.short())
}

fn pull_state(solo: &Solo) -> Option<String> {
    let (_, pull) = solo.node.transfers.of(LINK)?.pulls().iter().last()?;
    let slot = pull.slot.and_then(|id| solo.node.landing.slots_of(LINK)?.get(id)).map(|s| &s.state);
    Some(match slot {
        None if pull.is_conditional && pull.state == PullState::Asked => format!("{:?}, held", pull.state),
        Some(SlotState::Revoking(Some(_))) if pull.state != PullState::Cancelling => "Landed".to_owned(),
        Some(SlotState::Granted(_)) => format!("{:?}, slot", pull.state),
        _ => format!("{:?}", pull.state),
    })
}

fn describe(solo: &mut Solo) {
    let body = Body::MetaDataUpdate { version: Version(2), metadata_id: 1, meta: bytes(8) };
    solo.hear(Role::Pull, pull(solo), body);
}

fn asked() -> Solo {
    let mut solo = referring();
    solo.fetch(Select::AtLeast(Version(2)));
    solo
}

fn preparing() -> Solo {
    let mut solo = asked();
    describe(&mut solo);
    solo.grant();
    write(&mut solo, Role::Pull);
    solo.revoke();
    solo.fetch(Select::AtLeast(Version(2)));
    solo
}

/// A request for a fetch that came while the peer was being asked for the same.
fn asked_again() -> Solo {
    let mut solo = asked();
    solo.fetch(Select::AtLeast(Version(2)));
    describe(&mut solo);
    solo.grant();
    land(&mut solo, Role::Pull, NonZeroU64::new(7));
    solo.revoke();
    solo
}

fn asked_with_slot() -> Solo {
    let mut solo = preparing();
    solo.grant();
    solo
}

fn given_up(solo: &mut Solo) -> bool {
    let Some((_, op)) = solo.node.sessions.operations().iter().last() else { return false };
    let op = op.id;
    solo.request(Request::Cancel { op });
    true
}

const PULL: Machine = Machine {
    title: "A pull at its receiver",
    states: &[
        ("none", referring),
        ("Preparing", preparing),
        ("Asked", asked),
        ("Asked, slot", asked_with_slot),
        ("Asked, held", asked_again),
        ("WaitingForRoom", || {
            let mut solo = asked();
            solo.fill_pool();
            describe(&mut solo);
            solo
        }),
        ("Granting", || {
            let mut solo = asked();
            describe(&mut solo);
            solo
        }),
        ("Landed", || {
            let mut solo = asked_with_slot();
            write(&mut solo, Role::Pull);
            solo
        }),
        ("Cancelling", || {
            let mut solo = asked();
            given_up(&mut solo);
            solo
        }),
        ("Cancelling, slot", || {
            let mut solo = asked_with_slot();
            given_up(&mut solo);
            solo
        }),
    ],
    events: &[
        ("META_DATA_UPDATE", |solo| {
            describe(solo);
            true
        }),
        ("TRACE", |solo| {
            solo.hear(Role::Pull, pull(solo), trace(2));
            true
        }),
        ("BY_REFERENCE", |solo| {
            solo.hear(Role::Pull, pull(solo), by_reference(0));
            true
        }),
        ("UNCHANGED", |solo| {
            solo.hear(Role::Pull, pull(solo), Body::Unchanged { version: Version(2) });
            true
        }),
        ("ERROR_STATUS", |solo| {
            solo.hear(Role::Pull, pull(solo), error(FailureCode::VersionGone));
            true
        }),
        ("CANCELLED", |solo| {
            solo.hear(Role::Pull, pull(solo), Body::Cancelled);
            true
        }),
        ("WRITE", |solo| write(solo, Role::Pull)),
        ("room", Solo::free_pool),
        ("granted", granted),
        ("revoked", revoked),
        ("given up", given_up),
        ("link down", link_down),
    ],
    observe: pull_state,
};

// ---- a pull, at the owner ----

fn request(solo: &mut Solo, slot: bool) {
    let (metadata_id, slot) = (u32::from(slot), slot.then(|| grant(8)));
    let select = Select::AtLeast(Version(2));
    let body = Body::TensorRequest {
        key: KEY,
        select,
        metadata_id,
        tenant: OURS,
        excerpt: None,
        slot,
        held: None,
        direct: false,
        trace: None,
    };
    solo.hear(Role::Pull, INDEX, body);
}

/// Publishes a version beside that of `k`, and receives a request for a range of it.
fn gather(solo: &mut Solo) -> bool {
    let op = solo.op();
    let push = Push { timeout: PUSH_TIMEOUT, ..Push::new(key("kk"), bytes(64), 1 << 19) };
    solo.command(op, Command::Push(push));
    solo.answer();
    let part = GatheredPart::new("k", BodyRange { offset: 0, len: 64 }).unwrap();
    solo.hear(Role::Pull, INDEX, Body::GatherRequest { stem: KEY, tenant: OURS, parts: vec![part], trace: None });
    true
}

fn owner() -> Solo {
    let mut solo = Solo::new(|_| {});
    solo.push(None, PUSH_TIMEOUT);
    solo
}

fn waiting() -> Solo {
    let mut solo = owner();
    request(&mut solo, false);
    solo
}

fn described() -> Solo {
    let mut solo = waiting();
    solo.push(None, PUSH_TIMEOUT);
    solo
}

fn writing() -> Solo {
    let mut solo = described();
    solo.hear(Role::Pull, INDEX, Body::TensorReRequest { slot: grant(8) });
    solo
}

const SERVE: Machine = Machine {
    title: "A pull at the owner",
    states: &[
        ("none", owner),
        ("Waiting", waiting),
        ("Waiting, slot", || {
            let mut solo = owner();
            let (select, slot) = (Select::Latest, None);
            let body = Body::TensorRequest {
                key: KEY,
                select,
                metadata_id: 0,
                tenant: OURS,
                excerpt: None,
                slot,
                held: None,
                direct: false,
                trace: None,
            };
            solo.hear(Role::Pull, INDEX + 1, body);
            solo.hear(Role::Pull, INDEX + 1, Body::Cancel);
            request(&mut solo, true);
            solo
        }),
        ("Described", described),
        ("Sharing", || {
            let mut solo = referring();
            solo.push(None, PUSH_TIMEOUT);
            request(&mut solo, false);
            solo.push(None, PUSH_TIMEOUT);
            solo
        }),
        ("Writing", writing),
    ],
    events: &[
        ("TENSOR_REQUEST", |solo| {
            request(solo, false);
            true
        }),
        ("GATHER_REQUEST", gather),
        ("TENSOR_RE_REQUEST", |solo| {
            solo.hear(Role::Pull, INDEX, Body::TensorReRequest { slot: grant(8) });
            true
        }),
        ("CANCEL", |solo| {
            solo.hear(Role::Pull, INDEX, Body::Cancel);
            true
        }),
        ("published", |solo| {
            solo.push(None, PUSH_TIMEOUT);
            true
        }),
        ("key ends", |solo| {
            let op = solo.op();
            solo.command(op, Command::Delete { key: key("k") });
            true
        }),
        ("placed", |solo| {
            let can = !solo.writes.is_empty();
            solo.placed();
            can
        }),
        ("kept", Solo::keep),
        ("link down", link_down),
    ],
    observe: |solo| solo.node.transfers.serve(LINK, INDEX).map(|s| s.state().to_owned()),
};

// ---- a push, at its sender ----

fn flow_out(solo: &Solo) -> u32 {
    solo.node.transfers.of(LINK).unwrap().flows().iter().last().map_or(0x77777, |(id, _)| id.short())
}

fn requested() -> Solo {
    let mut solo = Solo::new(|_| {});
    solo.push(Some("you"), PUSH_TIMEOUT);
    solo
}

fn respond(solo: &mut Solo) -> bool {
    solo.hear(Role::Push, flow_out(solo), Body::BufferResponse { slots: vec![grant(8); 2] });
    true
}

fn calling() -> Solo {
    let mut solo = Solo::new(|_| {});
    solo.reserve();
    solo
}

fn recall(solo: &mut Solo, why: Recall) -> bool {
    solo.hear(Role::Push, flow_out(solo), Body::BufferRecall { why, round: 0 });
    true
}

fn session_ends(solo: &mut Solo) -> bool {
    solo.node.session_closed(solo.now, SESSION, "it died");
    solo.drain();
    true
}

const SENDER: Machine = Machine {
    title: "A push at its sender",
    states: &[
        ("none", || Solo::new(|_| {})),
        ("New", || {
            let mut solo = requested();
            solo.hear(Role::Push, flow_out(&solo), error(FailureCode::Busy));
            solo
        }),
        ("Requested", requested),
        ("Requested, call", calling),
        ("New, call", || {
            let mut solo = calling();
            recall(&mut solo, Recall::Ends);
            solo
        }),
        ("Ready", || {
            let mut solo = requested();
            respond(&mut solo);
            solo
        }),
    ],
    events: &[
        ("push", |solo| {
            solo.push(Some("you"), PUSH_TIMEOUT);
            true
        }),
        ("BUFFER_RESPONSE", respond),
        ("call answered", |solo| {
            let asks = solo.controls.iter().any(|c| matches!(c, Control::PrepareBuffers { .. }));
            if asks {
                let answer = (flow_out(solo), Ok(vec![grant(8); 2]));
                solo.node.buffers_prepared(solo.now, LINK, vec![answer]);
                solo.drain();
            }
            asks
        }),
        ("BUFFER_IDLE", |solo| {
            solo.hear(Role::Push, flow_out(solo), Body::BufferIdle { slot: grant(8) });
            true
        }),
        ("ERROR_STATUS", |solo| {
            solo.hear(Role::Push, flow_out(solo), error(FailureCode::Busy));
            true
        }),
        ("RECALL, it ends", |solo| recall(solo, Recall::Ends)),
        ("RECALL, for room", |solo| recall(solo, Recall::Room)),
        ("session ends", session_ends),
        ("link down", link_down),
    ],
    observe: |solo| solo.node.transfers.of(LINK)?.flows().iter().last().map(|(_, f)| f.state()),
};

// ---- a push, at its receiver ----

fn buffer_request(solo: &mut Solo) -> bool {
    let metadata_id = PREPARED_METADATA_ID;
    let body = Body::BufferRequest { key: KEY, target: ME, owner: YOU, tenant: OURS, metadata_id, meta: bytes(8) };
    solo.hear(Role::Push, INDEX, body);
    true
}

fn claiming() -> Solo {
    let mut solo = Solo::new(|_| {});
    buffer_request(&mut solo);
    solo
}

fn granting() -> Solo {
    let mut solo = claiming();
    solo.answer();
    solo
}

pub(super) fn ready() -> Solo {
    let mut solo = granting();
    solo.grant();
    solo
}

fn reclaiming() -> Solo {
    let mut solo = ready();
    solo.node.recall_idle_slots();
    solo.drain();
    solo
}

fn recalled(solo: &mut Solo, why: Recall) -> bool {
    solo.hear(Role::Push, INDEX, Body::Recalled { why, round: 0 });
    true
}

const RECEIVER: Machine = Machine {
    title: "A push at its receiver",
    states: &[
        ("none", || Solo::new(|_| {})),
        ("Claiming", claiming),
        ("WaitingForRoom", || {
            let mut solo = claiming();
            solo.fill_pool();
            solo.answer();
            solo
        }),
        ("Granting", granting),
        ("Ready", ready),
        ("Reclaiming", reclaiming),
        ("Without", || {
            let mut solo = reclaiming();
            recalled(&mut solo, Recall::Room);
            solo
        }),
        ("Recalling", || {
            let mut solo = ready();
            session_ends(&mut solo);
            solo
        }),
    ],
    events: &[
        ("BUFFER_REQUEST", buffer_request),
        ("META_DATA_UPDATE", |solo| {
            let body = Body::MetaDataUpdate { version: Version(1), metadata_id: 2, meta: bytes(4) };
            solo.hear(Role::Push, INDEX, body);
            true
        }),
        ("TRACE", |solo| {
            solo.hear(Role::Push, INDEX, trace(1));
            true
        }),
        ("WRITE", |solo| write(solo, Role::Push)),
        ("RECALLED, it ends", |solo| recalled(solo, Recall::Ends)),
        ("RECALLED, for room", |solo| recalled(solo, Recall::Room)),
        ("BUFFER_RELEASE", |solo| {
            solo.hear(Role::Push, INDEX, Body::BufferRelease);
            true
        }),
        ("claimed", |solo| {
            let can = solo.controls.iter().any(|c| matches!(c, Control::Claim(_)));
            solo.answer();
            can
        }),
        ("room", Solo::free_pool),
        ("granted", granted),
        ("room is wanted", |solo| {
            let can = solo.node.recall_idle_slots() > 0;
            solo.drain();
            can
        }),
        ("target gone", session_ends),
        ("link down", link_down),
    ],
    observe: |solo| {
        let flow = solo.node.landing.flow_of(LINK, INDEX)?;
        solo.node.landing.flow((LINK, flow)).map(|f| format!("{:?}", f.state))
    },
};

impl Machine {
    /// Applies every event in every state. Returns the results as rows of cells, the header first.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let head = std::iter::once("state").chain(self.events.iter().map(|(name, _)| *name));
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for (state, make) in self.states {
            let mut row = vec![(*state).to_owned()];
            for (event, happens) in self.events {
                let mut solo = make();
                let before = (self.observe)(&solo);
                assert_eq!(before.as_deref().unwrap_or("none"), *state, "{}: before {event}", self.title);
                assert_eq!(solo.ended, None, "{}: {state}", self.title);
                let can = happens(&mut solo);
                row.push(match (&solo.ended, (self.observe)(&solo)) {
                    _ if !can => String::new(),
                    (Some(DownReason::Violation(_)), _) => "violation".to_owned(),
                    (Some(other), _) => panic!("{}: {state}, {event}: {other}", self.title),
                    (None, after) if after == before => "=".to_owned(),
                    (None, Some(after)) => after,
                    (None, None) => "gone".to_owned(),
                });
            }
            rows.push(row);
        }
        rows
    }
}

#[test]
fn state_tables_match_the_document() {
    let found: Vec<_> = [PULL, SERVE, SENDER, RECEIVER].iter().map(|m| (m.title, m.rows())).collect();
    let drawn = picture::draw(&found);
    if std::env::var_os("TRANSFER_UPDATE_DOCS").is_some() {
        return update(&found, &drawn);
    }
    let how = "run this test with TRANSFER_UPDATE_DOCS=1 where the code is right";
    for (title, rows) in &found {
        assert_eq!(table(&format!("### {title}")), *rows, "{title}: {how}");
    }
    assert!(include_str!("../../../../docs/protocol-states.svg") == drawn, "docs/protocol-states.svg is old: {how}");
}
