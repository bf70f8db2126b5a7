//! Tests of a version that has landed and whose slot is still being revoked.

use super::machines::{INDEX, ready};
use super::solo::{LINK, Solo};
use crate::op::{Answer, FetchedTensor, Reply};
use crate::protocol::PREPARED_METADATA_ID;
use crate::protocol::landing::SlotState;
use crate::tensor::{Retention, Select, Version};
use crate::wire::landing::{Header, SlotNumber};

fn land(solo: &mut Solo, version: u64) {
    let open = solo.node.landing.slots_of(LINK).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
    solo.land(&Header {
        slot: SlotNumber(open[0].short()),
        index: INDEX,
        metadata_id: PREPARED_METADATA_ID,
        version: Version(version),
        body_len: 8,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity: None,
    });
}

fn fetched(solo: &mut Solo) -> Vec<Version> {
    let versions = solo.replies.drain(..).filter_map(|reply| match reply {
        Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version, .. }, .. }, .. } => Some(version),
        _ => None,
    });
    versions.collect()
}

/// The sender may learn that its push is done before this side has revoked the slot. A fetch of the latest version then
/// waits for the pushed version, and does not get the one before.
// Promise: fetch-after-push-to, seen to fail
#[test]
fn latest_includes_a_landed_version_whose_slot_is_being_revoked() {
    let mut solo = ready();
    land(&mut solo, 1);
    solo.revoke();
    solo.fetch(Select::Latest);
    assert_eq!(fetched(&mut solo), [Version(1)]);
    land(&mut solo, 2);
    solo.fetch(Select::Latest);
    solo.fetch(Select::AtLeast(Version(1)));
    assert_eq!(fetched(&mut solo), [Version(1)], "the second asks for no more than is there");
    solo.revoke();
    assert_eq!(fetched(&mut solo), [Version(2)]);
}
