//! Memory windows.

use transfer_verbs::*;

use crate::setup::{End, LEN, OPEN, Pages, ends};

const WRITES: RemoteAccess = RemoteAccess { write: true, read: false, atomic: false };

/// Binds a window over all of the end's memory.
fn bind(end: &mut End, window: &MemoryWindow, region: &MemoryRegion) -> RemoteKey {
    let key = window.next_key();
    let done = end.run(SendKind::BindWindow { window, region, offset: 0, len_bytes: LEN, access: WRITES });
    assert_eq!((done.opcode, window.key()), (Opcode::BindWindow, key));
    key
}

fn write(end: &mut End, address: u64, key: RemoteKey) -> Result<Done, Status> {
    end.post(&[SendKind::Write { data: Data::Inline(&[b"bytes"]), address, key, immediate: None }]);
    end.completion().result
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_window_opens_memory_and_closes_it_again_many_times() {
    let (mut a, mut b) = ends();
    let closed = Access { remote_write: false, remote_read: false, remote_atomic: false, ..OPEN };
    let memory = Pages::new(LEN);
    let region = MemoryRegion::register(&b.domain, memory.clone(), closed).unwrap();
    let window = MemoryWindow::allocate(&b.domain).unwrap();
    // More than the 256 keys of a window.
    let mut first = None;
    for round in 0..260 {
        let key = bind(&mut b, &window, &region);
        if round == 256 {
            assert_eq!(first, Some(key), "keys come round");
        }
        first = first.or(Some(key));
        if round % 20 == 0 {
            memory.write(0, &[0; 5]);
            assert!(write(&mut a, region.address(), key).is_ok());
            assert_eq!(memory.read(0, 5), b"bytes");
        }
        assert_eq!(b.run(SendKind::LocalInvalidate { key }).opcode, Opcode::LocalInvalidate);
    }
    let closed = write(&mut a, region.address(), window.key());
    assert_eq!(closed, Err(Status::RemoteAccess));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn bind_and_message_go_in_one_list_and_the_window_keeps_its_region() {
    let (mut a, mut b) = ends();
    a.receive(1, 0, 64);
    let memory = Pages::new(LEN);
    let region = MemoryRegion::register(&b.domain, memory.clone(), OPEN).unwrap();
    let window = MemoryWindow::allocate(&b.domain).unwrap();
    let key = window.next_key();
    let message = key.to_wire().to_be_bytes();
    b.post(&[
        SendKind::BindWindow { window: &window, region: &region, offset: 0, len_bytes: LEN, access: WRITES },
        SendKind::Send { data: Data::Inline(&[&message]), immediate: None },
    ]);
    let address = region.address();
    drop(region);
    assert_eq!(a.done().len_bytes, 4);
    let told = RemoteKey::from_peer(u32::from_be_bytes(a.memory.read(0, 4).try_into().unwrap()));
    assert_eq!(told, key);
    assert!(write(&mut a, address, told).is_ok());
    assert_eq!(memory.read(0, 5), b"bytes");
    b.done();
    b.done();
    assert_eq!(b.run(SendKind::LocalInvalidate { key }).opcode, Opcode::LocalInvalidate);
    let held = std::sync::Arc::downgrade(&memory);
    drop(memory);
    assert!(held.upgrade().is_some(), "the window holds its region");
    window.release_region();
    assert!(held.upgrade().is_none(), "and lets it go");
    drop(window);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_regions_own_key_does_not_open_it_without_remote_access() {
    let (mut a, b) = ends();
    let local = Access { local_write: true, window_bind: true, ..Access::default() };
    let region = MemoryRegion::register(&b.domain, Pages::new(LEN), local).unwrap();
    assert_eq!(write(&mut a, region.address(), region.remote_key()), Err(Status::RemoteAccess));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_window_of_another_domain_is_refused_before_it_is_posted() {
    let (mut a, b) = ends();
    let window = MemoryWindow::allocate(&b.domain).unwrap();
    let (before, kind) = (window.key(), SendKind::LocalInvalidate { key: window.key() });
    let mut list = SendList::new();
    let bind = SendKind::BindWindow { window: &window, region: &a.region, offset: 0, len_bytes: 8, access: WRITES };
    for kind in [bind, kind] {
        list.push(SendRequest { work_id: 0, signaled: true, fence: false, kind });
    }
    let error = a.pair.post_send(&mut list).unwrap_err();
    assert_eq!((error.taken, error.of, window.key()), (0, 2, before));
}
