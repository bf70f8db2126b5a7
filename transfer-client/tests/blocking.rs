//! The blocking client against a sidecar that the test plays.
#![allow(clippy::unwrap_used, reason = "test")]

mod sidecar;
mod woken;

use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Float32Array, Int64Array, PrimitiveArray};
use sidecar::{Honest, Script, Sidecar, Wire, failed};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, DType, Error, FailureCode, Fault, Key, ViewError};
use transfer_core::op::{Command, Reply, Request};
use woken::Woken;

fn start(script: impl Script, arena_bytes: u64) -> (Sidecar, BlockingClient) {
    let (sidecar, socket) = Sidecar::start(script);
    let client = BlockingClient::from_socket(socket).name("trainer-0").arena_bytes(arena_bytes).call().unwrap();
    (sidecar, client)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_pushed_tensor_is_fetched_and_its_memory_comes_back() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    assert_eq!((client.name(), client.node(), client.incarnation()), ("trainer-0", "node-a", 5));
    let free = client.arena_free_bytes();

    let mut w = client.allocate(DType::F32, [4, 8]).unwrap();
    let (mapping, address) = (w.mapping().clone(), w.as_bytes().as_ptr());
    let place = mapping.offset_of(address);
    w.as_mut_slice::<f32>().unwrap().iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
    assert!(matches!(w.as_slice::<f64>(), Err(Error::WrongType { asked: DType::F64, .. })));
    let pushed = client.push_tensor("layer0/w", w).version(3).call().unwrap();
    assert_eq!((pushed.version, pushed.report.bytes, pushed.report.copied), (3, 128, 0));

    let w = client.fetch("layer0/w").at_least(2).timeout(secs(9)).call().unwrap();
    assert_eq!((w.version(), w.dtype(), w.shape()), (3, DType::F32, &[4, 8][..]));
    // The bytes that the producer wrote, through a mapping that is read-only.
    assert_eq!(mapping.offset_of(w.as_bytes().as_ptr()), place);
    assert_ne!(w.as_bytes().as_ptr(), address);
    assert_eq!(w.as_slice::<f32>().unwrap()[31], 31.0);
    assert_eq!(w.report().to_string(), "fabric=local bytes=128 copied=0 B queued=0ns waited=0ns in_flight=3µs");
    let array: Float32Array = w.to_arrow().unwrap();
    assert_eq!((array.values().as_ptr().cast(), array.len()), (w.as_bytes().as_ptr(), 32));
    assert!(matches!(w.to_arrow::<Int64Type>(), Err(Error::View(ViewError::WrongArrowType { .. }))));

    // The array alone keeps the lease.
    drop(w);
    client.delete("layer0/w").call().unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(sidecar.heard().leases, 1);
    assert_eq!(array.value(7), 7.0);
    drop(array);
    sidecar.wait_until(|heard| heard.leases == 0 && heard.pushed == 0);
    let e = client.delete("layer0/w").call().unwrap_err();
    assert_eq!((e.failure_code(), e.can_retry()), (Some(FailureCode::UnknownKey), true));
    assert_eq!(client.arena_free_bytes(), free);
}

#[test]
fn every_dtype_and_the_empty_tensor_pass() {
    let (_sidecar, client) = start(Honest::default(), 1 << 20);
    for dtype in DType::ALL {
        let mut t = client.allocate(dtype, [6]).unwrap();
        t.fill_zero();
        client.push_tensor(dtype.name(), t).call().unwrap();
        let t = client.fetch(dtype.name()).call().unwrap();
        assert_eq!((t.dtype(), t.as_bytes().len() as u64), (dtype, 6 / dtype.elements_per_unit() * dtype.size_bytes()));
        client.push_tensor("empty", client.allocate(dtype, [5, 0]).unwrap()).call().unwrap();
        let t = client.fetch("empty").call().unwrap();
        assert_eq!((t.shape(), t.as_bytes()), (&[5, 0][..], &[][..]));
    }
    let mut t = client.allocate(DType::Bool, [2]).unwrap();
    t.as_mut_bytes().copy_from_slice(&[1, 0]);
    assert_eq!(t.as_slice::<bool>().unwrap(), [true, false]);
    assert!(matches!(t.freeze().to_array(), Err(Error::View(ViewError::NoArrowType { dtype: DType::Bool }))));
}

#[test]
fn a_failed_push_gives_the_tensor_back_unless_it_is_kept() {
    let (mut count, mut kept) = (0, (transfer_core::op::OpId(0), 0));
    let script = move |wire: &mut Wire, request: Request| {
        let Request::Command { op, command: Command::Push(push) } = request else { return };
        count += 1;
        match count {
            1 => wire.reply(&failed(op, FailureCode::KeyOwned, false)),
            2 => {
                kept = (op, push.offset);
                wire.reply(&failed(op, FailureCode::Deadline, true));
            }
            _ => {
                // The kept range is returned later.
                wire.reply(&Reply::Returned { pushed: kept.0, offset: kept.1 });
                wire.reply(&failed(op, FailureCode::PoolFull, false));
            }
        }
    };
    let (_sidecar, client) = start(script, 4096);
    let mut t = client.allocate(DType::U8, [100]).unwrap();
    t.as_mut_bytes().fill(7);
    let e = client.push_tensor("k", t).call().unwrap_err();
    assert_eq!((e.error().failure_code(), e.error().fault()), (Some(FailureCode::KeyOwned), Fault::Caller));
    assert_eq!(e.to_string(), "KeyOwned, says the test");
    let t = e.into_tensor().unwrap();
    assert_eq!(t.as_bytes(), [7; 100]);

    let free = client.arena_free_bytes();
    let e = client.push_tensor("k", t).call().unwrap_err();
    assert!(e.error().can_retry());
    assert!(e.into_tensor().is_none());
    assert_eq!(client.arena_free_bytes(), free);

    let other = client.allocate(DType::U8, [100]).unwrap();
    let t = client.push_tensor("k", other).call().unwrap_err().into_tensor().unwrap();
    assert_eq!(client.arena_free_bytes(), free, "one was returned, one is here");
    drop(t);
    assert_eq!(client.arena_free_bytes(), 4096);
}

#[test]
fn wrong_arguments_fail_at_once() {
    let (_sidecar, client) = start(Honest::default(), 4096);
    let t = client.allocate(DType::U8, [4]).unwrap();
    let e = client.push_tensor("k".repeat(513), t).call().unwrap_err();
    assert!(e.to_string().contains("513") && !e.error().can_retry(), "{e}");
    let t = e.into_tensor().unwrap();
    let e = client.push_tensor("k", t).to("").call().unwrap_err();
    assert!(matches!(e.error(), Error::Name(_)));
    assert!(matches!(client.fetch("").call(), Err(Error::Name(_))));
    let e = client.push_slice("k", [5], &[1.0f32, 2.0]).call().unwrap_err();
    assert!(matches!(e.error(), Error::WrongLength { expected_bytes: 20, found_bytes: 8, .. }));
    assert!(matches!(client.allocate(DType::U8, [4097]), Err(Error::TooLargeForArena { .. })));
    assert!(matches!(client.allocate(DType::U8, [1; 33]), Err(Error::Shape(_))));
    let _all = client.allocate(DType::U8, [4000]).unwrap();
    let e = client.allocate(DType::U8, [200]).unwrap_err();
    assert!(e.can_retry() && e.to_string().contains("arena_bytes()"), "{e}");

    let (_other_sidecar, other) = start(Honest::default(), 4096);
    let foreign = other.allocate(DType::U8, [4]).unwrap();
    let e = client.push_tensor("k", foreign).call().unwrap_err();
    assert!(matches!(e.error(), Error::OtherClient { .. }));
    assert!(e.into_tensor().is_some());
}

#[test]
fn the_longest_keys_pass() {
    let (_sidecar, client) = start(Honest::default(), 1 << 20);
    let key = Key::new(&"ä".repeat(256)).unwrap();
    client.push_tensor(&key, client.allocate(DType::U8, [1; 32]).unwrap()).call().unwrap();
    assert_eq!(client.fetch(&key).exactly(1).call().unwrap().shape(), [1; 32]);
}

#[test]
fn foreign_memory_is_copied_once_and_counted() {
    let (sidecar, client) = start(Honest::default(), 32 << 20);
    let elements: Vec<u32> = (0..(5 << 20)).collect();
    let pushed = client.push_slice("big", [elements.len() as u64], &elements).call().unwrap();
    assert_eq!(pushed.report.copied, 20 << 20);
    assert_eq!(client.fetch("big").call().unwrap().as_slice::<u32>().unwrap(), elements);
    // There is no room for a second one, and the first one stays. So this waits, and fails at its deadline.
    let e = client.push_slice("other", [elements.len() as u64], &elements).timeout(Duration::from_millis(30));
    assert!(matches!(e.call().unwrap_err().error(), Error::ArenaFull { .. }));

    // Room becomes free while it waits.
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            client.delete("big").call().unwrap();
        });
        client.push_slice("other", [elements.len() as u64], &elements).timeout(secs(20)).call().unwrap();
    });
    assert_eq!(client.push_bytes("bytes", DType::BF16, [2], &[1, 2, 3, 4]).call().unwrap().report.copied, 4);
    assert_eq!(client.fetch("bytes").call().unwrap().as_bytes(), [1, 2, 3, 4]);
    sidecar.wait_until(|heard| heard.leases == 0 && heard.pushed == 2);
}

#[test]
fn a_wait_for_room_is_woken_by_what_is_dropped_and_looks_at_no_other_time() {
    let (_sidecar, client) = start(Honest::default(), 1 << 20);
    let whole = || client.allocate(DType::U8, [1 << 20]).unwrap();
    // However its last holder lets it go.
    for freeze in [false, true] {
        let held = whole();
        let (writable, frozen) = if freeze { (None, Some(held.freeze())) } else { (Some(held), None) };
        let mut wait = client.allocate_wait(DType::U8, [1 << 20]).timeout(secs(600)).begin();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let ControlFlow::Continue(at) = wait.poll(&waker) else { panic!("there is no room") };
        assert!(at > Instant::now() + secs(300), "it does not poll");
        drop((writable, frozen));
        assert_eq!(woken.count(), 1);
        let ControlFlow::Break(Ok(tensor)) = wait.poll(&waker) else { panic!("there is room") };
        drop(tensor);
    }
    drop(whole());
}

#[test]
fn arrays_in_the_arena_are_pushed_in_place() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    let free = client.arena_free_bytes();
    let mut t = client.allocate(DType::F32, [64]).unwrap();
    t.as_mut_slice::<f32>().unwrap().fill(2.5);
    let (mapping, frozen) = (t.mapping().clone(), t.freeze());
    let array: PrimitiveArray<Float32Type> = frozen.to_arrow().unwrap();
    assert_eq!(array.values().as_ptr().cast(), frozen.as_bytes().as_ptr());

    let whole = client.push_array("whole", &array).call().unwrap();
    // A slice from element 16 starts at byte 64, where a push can start; a slice from element 1 is copied.
    let part = client.push_array("part", &array.slice(16, 8)).call().unwrap();
    let moved = client.push_array("moved", &array.slice(1, 8)).call().unwrap();
    let again = client.push_frozen("again", &frozen).call().unwrap();
    assert_eq!([whole, part, moved, again].map(|p| p.report.copied), [0, 0, 32, 0]);
    let part = client.fetch("part").call().unwrap();
    assert_eq!(mapping.offset_of(part.as_bytes().as_ptr()), mapping.offset_of(frozen.as_bytes()[64..].as_ptr()));
    // What was fetched lies in the arena, too, while it is frozen there.
    let fetched: PrimitiveArray<Float32Type> = client.fetch("again").call().unwrap().to_arrow().unwrap();
    assert_eq!(client.push_array("fetched", &fetched).call().unwrap().report.copied, 0);
    client.delete("fetched").call().unwrap();
    drop(fetched);
    assert_eq!(client.fetch("again").call().unwrap().as_bytes(), frozen.as_bytes());

    // Memory outside of the arena, and arrays that are no dense tensor.
    let foreign = client.push_array("foreign", &Int64Array::from(vec![1, 2, 3])).call().unwrap();
    assert_eq!(foreign.report.copied, 24);
    let e = client.push_array("nulls", &Int64Array::from(vec![Some(1), None])).call().unwrap_err();
    assert!(matches!(e.error(), Error::HasNulls { nulls: 1, len: 2, .. }), "{e}");
    let e = client.push_array("text", &arrow_array::StringArray::from(vec!["a"])).call().unwrap_err();
    assert!(matches!(e.error(), Error::NotDense { .. }), "{e}");

    // The allocation is freed when all its holders are done: the arrays, the pushes, the readers.
    drop((array, frozen, part));
    assert!(client.arena_free_bytes() < free);
    for key in ["whole", "part", "moved", "again", "foreign"] {
        client.delete(key).call().unwrap();
    }
    sidecar.wait_until(|heard| heard.leases == 0 && heard.pushed == 0);
    let _ = client.delete("nothing").call();
    assert_eq!(client.arena_free_bytes(), free);
}

#[test]
fn waits_for_room_end_at_their_deadline() {
    let (_sidecar, client) = start(Honest::default(), 4096);
    let a = client.allocate(DType::U8, [4096]).unwrap();
    let e = client.allocate_wait(DType::U8, [1]).timeout(Duration::from_millis(20)).call().unwrap_err();
    assert!(matches!(e, Error::ArenaFull { free_bytes: 0, in_use_bytes: 4096, .. }));
    client.push_tensor("a", a).call().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| client.allocate_wait(DType::U8, [4096]).timeout(secs(20)).call().unwrap());
        thread::sleep(Duration::from_millis(20));
        client.delete("a").call().unwrap();
    });
    // Dropping a frozen tensor wakes no one, but is noticed.
    let frozen = client.allocate(DType::U8, [4096]).unwrap().freeze();
    thread::scope(|scope| {
        scope.spawn(|| client.allocate_wait(DType::U8, [4096]).timeout(secs(20)).call().unwrap());
        thread::sleep(Duration::from_millis(20));
        drop(frozen);
    });
}
