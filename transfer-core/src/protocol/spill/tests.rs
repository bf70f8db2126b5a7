use super::*;

const TENANT: Tenant = Tenant::User(7);
const OTHER: Tenant = Tenant::User(8);
const CONFIG: SpillConfig = SpillConfig { high_percent: 50, low_percent: 20, tenant_bytes: 1000, total_bytes: 1500 };

fn blob(n: u64) -> BlobId {
    BlobId::from_u64(n)
}

fn come(spills: &mut Spills, arena: u32, tenant: Tenant, n: u64, len: u64, now: bool) {
    let key = Key::new(&format!("k{n}")).unwrap();
    spills.came((SegmentId(arena), 1000), tenant, (key, blob(n)), len, now);
}

/// Writes all that is due. Returns the versions.
fn write_all(spills: &mut Spills) -> Vec<BlobId> {
    let mut all = Vec::new();
    while let Some(Writing { id, blob, .. }) = spills.next(|_| true) {
        assert!(spills.written(Time(0), id, true).is_some());
        spills.went(blob);
        all.push(blob);
    }
    all
}

// Promise: rows-on-disk
#[test]
fn the_oldest_are_written_from_the_high_mark_down_to_the_low_one() {
    let mut spills = Spills::new(Some(CONFIG));
    for n in 1..=5 {
        come(&mut spills, 1, TENANT, n, 100, false);
        assert!(write_all(&mut spills).is_empty());
    }
    come(&mut spills, 1, TENANT, 6, 100, false);
    assert_eq!(write_all(&mut spills), [1, 2, 3, 4].map(blob));
    assert_eq!((spills.status().versions, spills.status().bytes), (4, 400));
    // A worker that needs memory gets all of it.
    come(&mut spills, 1, TENANT, 7, 100, true);
    assert_eq!(write_all(&mut spills), [5, 6, 7].map(blob));
    assert!(spills.arenas.is_empty() && spills.versions.is_empty());
}

// Promise: rows-on-disk
#[test]
fn arenas_take_turns_and_what_is_read_stays() {
    let mut spills = Spills::new(Some(CONFIG));
    for n in 1..=6 {
        come(&mut spills, 1, TENANT, n, 100, false);
        come(&mut spills, 2, OTHER, 10 + n, 100, false);
    }
    let cold = |blob: BlobId| blob != BlobId::from_u64(1);
    let first: Vec<_> = std::iter::from_fn(|| spills.next(cold)).map(|w| w.blob).collect();
    assert_eq!(first, [2, 11].map(blob), "two at once, one of each arena, and not the one that is read");
}

// Promise: rows-on-disk
#[test]
fn limits_hold_for_a_tenant_and_for_all() {
    let mut spills = Spills::new(Some(CONFIG));
    (1..=9).for_each(|n| come(&mut spills, 1, TENANT, n, 300, true));
    assert_eq!(write_all(&mut spills).len(), 3, "1000 bytes for one tenant");
    (11..=19).for_each(|n| come(&mut spills, 2, OTHER, n, 300, true));
    assert_eq!(write_all(&mut spills).len(), 2, "1500 bytes for all");
    spills.ended(SpillId(1));
    assert_eq!(write_all(&mut spills).len(), 1);
}

#[test]
fn failed_write_leaves_the_version_and_is_tried_again_later() {
    let mut spills = Spills::new(Some(CONFIG));
    come(&mut spills, 1, TENANT, 1, 100, true);
    let id = spills.next(|_| true).unwrap().id;
    assert_eq!(spills.written(Time(0), id, false).unwrap().blob, blob(1));
    assert_eq!((spills.status().bytes, spills.status().failed_writes), (0, 1));
    assert!(spills.next(|_| true).is_none());
    spills.timeout(spills.paused_until().unwrap());
    assert_eq!(write_all(&mut spills), [blob(1)]);
}

#[test]
fn version_that_ends_while_it_is_written_is_forgotten() {
    let mut spills = Spills::new(Some(CONFIG));
    come(&mut spills, 1, TENANT, 1, 100, true);
    let id = spills.next(|_| true).unwrap().id;
    spills.went(blob(1));
    assert!(spills.written(Time(0), id, true).is_some());
    spills.ended(id);
    assert_eq!(spills.status().bytes, 0);
    assert!(spills.bytes.is_empty() && spills.arenas.is_empty());
}

#[test]
fn without_a_configuration_nothing_is_written() {
    let mut spills = Spills::new(None);
    come(&mut spills, 1, TENANT, 1, 1000, true);
    assert!(write_all(&mut spills).is_empty() && spills.versions.is_empty());
}
