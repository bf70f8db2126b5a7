//! Fetches of bundles into the memory of the reader: which tensors land where they are to be, and what becomes of those that do not.

mod apart;

use crate::into_memory::{WIDTH, connect, empty, from_afar, has, numbers};
use std::time::Duration;
use tonic::transport::Endpoint;
use transfer_client::{BlockingClient, BundleMut, Client, DType, Error, FailureCode, FetchedInto, Landing, TensorMut};
use transfer_core::memory::RemoteSlice;
use transfer_core::op::Failure;
use transfer_core::tensor::{Retention, TensorMeta, TensorName, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::landing::{Header, SlotGrant};
use transfer_core::wire::message::{Body, Role};
use transfer_proto::v1::{self, node_item::Item};
use transfer_tests::stranger::{Attached, Link, NAME};
use transfer_tests::{Carrier, Scene};

fn named<const N: usize>(tensors: [(&str, TensorMut); N]) -> BundleMut {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

fn landings(fetched: &FetchedInto<BundleMut>) -> Vec<(&str, Landing)> {
    fetched.landings().collect()
}

/// Whether a version of another node is read where it lies.
fn is_by_reference(client: &BlockingClient, key: &str) -> bool {
    let plain = *client.fetch_bundle(key).call().expect("fetched").report();
    plain.fabric.name() == "shm" && plain.copied == 0
}

// Promise: into-memory, seen to fail
#[test]
fn bundle_lands_in_the_tensors_of_its_reader_or_none_is_written() {
    let scene = Scene::two_with(&["--pool-bytes", "4MiB"]);
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    // The second one does not fit the landing pool: it comes in buckets.
    for (version, rows) in [(1, 256), (2, 2048)] {
        let tensors = [("w", numbers(&pusher, rows, 5)), ("b", numbers(&pusher, 1, 7)), ("c", numbers(&pusher, 1, 0))];
        pusher.push_bundle("k", tensors).version(version).call().expect("pushed");
        for (client, is_here) in [(&near, true), (&far, false)] {
            let plain = *client.fetch_bundle("k").call().expect("fetched").report();
            let into = [("b", empty(client, 1)), ("w", empty(client, rows))];
            let into = into.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
            let fetched = client.fetch_bundle("k").at_least(version).into(into).call().expect("fetched");
            assert_eq!(fetched.version(), version);
            let by_reference = is_here || plain.fabric.name() == "shm" && plain.copied == 0;
            // In buckets, if it cannot land in place.
            let is_large = from_afar() != Landing::InPlace && version == 2;
            let afar = if is_large { Landing::Whole } else { from_afar() };
            assert_eq!(fetched.landing(), if by_reference { Landing::OnThisHost } else { afar });
            let further = (rows + 1) * WIDTH * 4;
            assert!(!is_here || fetched.report().copied == further);
            let tensors = fetched.into_tensors();
            assert!(has(tensors.get("w").expect("w"), 5) && has(tensors.get("b").expect("b"), 7));
        }
    }
    for client in [&near, &far] {
        for (name, rows, says) in [("w", 255, "u32[255, 1024]"), ("v", 1, "no tensor \"v\""), ("b", 1, "\"b\" twice")] {
            let into = [("b", empty(client, 1)), (name, empty(client, rows))];
            let into = into.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
            let failed = client.fetch_bundle("k").into(into).call().expect_err("it does not fit");
            let (error, tensors) = failed.into_parts();
            assert!(error.to_string().contains(says), "{error}");
            let tensors = tensors.expect("they are the caller's");
            assert!(tensors.iter().all(|(_, tensor)| tensor.as_bytes().iter().all(|byte| *byte == 0xee)));
        }
        // A call that is given up has its tensors again, although nobody has pushed.
        let into = [("b".to_owned(), empty(client, 1))].into_iter().collect();
        let mut waits = client.fetch_bundle("nobody").into(into).begin();
        assert!(waits.wait(Duration::ZERO).is_none());
        waits.cancel();
        let (error, tensors) =
            waits.wait(Duration::from_secs(20)).expect("it ends").expect_err("cancelled").into_parts();
        let is_cancelled = matches!(&error, Error::Failed(failure) if failure.code == FailureCode::Cancelled);
        assert!(is_cancelled && tensors.is_some_and(|tensors| tensors.len() == 1), "{error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").arena_bytes(1 << 20).await.expect("a worker");
        let b = client.allocate(DType::U32, [1, WIDTH]).expect("room");
        let fetched =
            client.fetch_bundle("k").into([("b".to_owned(), b)].into_iter().collect()).await.expect("fetched");
        assert!(has(fetched.tensors().get("b").expect("b"), 7));
        client.close().await;
    });
    drop((pusher, near, far));
    scene.end();
}

// Promise: into-memory, seen to fail
#[test]
fn long_tensors_of_a_bundle_land_in_place_and_short_ones_are_copied() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let push = |version, names: [&'static str; 2], rows: [u64; 2]| {
        let tensors = [0, 1].map(|n| (names[n], numbers(&pusher, rows[n], version as u32 * 10 + n as u32)));
        pusher.push_bundle("k", tensors).version(version).call().expect("pushed");
    };
    // 8 MiB and 4 KiB. The first fetch asks for the table, and the next ones know it.
    push(1, ["w", "b"], [2048, 1]);
    let by_reference = is_by_reference(&far, "k");
    let in_place = !by_reference && from_afar() == Landing::InPlace;
    let afar = |landing| match landing {
        _ if by_reference => Landing::OnThisHost,
        Landing::InPlace | Landing::Short if !in_place => from_afar(),
        landing => landing,
    };
    for _ in 0..3 {
        let (w, b) = (empty(&far, 2048), empty(&far, 1));
        let at = w.slice();
        let fetched = far.fetch_bundle("k").into(named([("b", b), ("w", w)])).call().expect("it lands");
        assert_eq!(landings(&fetched), [("b", afar(Landing::Short)), ("w", afar(Landing::InPlace))]);
        assert_eq!((fetched.landing(), fetched.version()), (afar(Landing::InPlace), 1));
        let report = *fetched.report();
        let further = if in_place { 4096 } else { 2049 * WIDTH * 4 };
        let carried = if by_reference { 0..=0 } else { Carrier::chosen().copies(report.bytes) };
        assert!(
            carried.contains(&(report.copied - further)),
            "{report}: {further} further bytes are copied, and no more"
        );
        let tensors = fetched.into_tensors();
        assert!(has(tensors.get("w").expect("w"), 10) && has(tensors.get("b").expect("b"), 11));
        assert_eq!(tensors.get("w").expect("w").slice(), at, "it is the tensor that was given");
    }
    let staged = far.fetch_bundle("k").into(named([("w", empty(&far, 2048))])).staged().call().expect("it is copied");
    assert!(has(staged.tensors().get("w").expect("w"), 10) && staged.landing() == afar(Landing::Staged));
    drop(staged);
    // The same tensors in another order, as long as before; then others.
    for (version, names, rows) in
        [(2, ["b", "w"], [512, 512]), (3, ["w", "b"], [512, 512]), (4, ["w", "b"], [256, 512])]
    {
        push(version, names, rows);
        let sizes = if names[0] == "w" { rows } else { [rows[1], rows[0]] };
        let into = named([("w", empty(&far, sizes[0])), ("b", empty(&far, sizes[1]))]);
        let fetched = far.fetch_bundle("k").at_least(version).into(into).call().expect("it comes");
        let expected = if version == 3 { Landing::OtherLayout } else { Landing::InPlace };
        // What lands in the pool has no layout to keep to.
        let expected = if version == 3 && !in_place { afar(fetched.landing()) } else { afar(expected) };
        assert_eq!((fetched.landing(), fetched.version()), (expected, version));
        let first = |name: &str| version as u32 * 10 + u32::from(names[1] == name);
        let tensors = fetched.tensors();
        assert!(["w", "b"].iter().all(|name| has(tensors.get(name).expect("a tensor"), first(name))), "{version}");
    }
    // One tensor more than before, so the version has another length.
    let tensors = [("w", numbers(&pusher, 256, 50)), ("c", numbers(&pusher, 1, 0)), ("b", numbers(&pusher, 512, 51))];
    pusher.push_bundle("k", tensors).version(5).call().expect("pushed");
    let into = named([("w", empty(&far, 256)), ("b", empty(&far, 512))]);
    let fetched = far.fetch_bundle("k").at_least(5).into(into).call().expect("it comes");
    assert_eq!((fetched.landing(), fetched.version()), (afar(Landing::OtherLayout), 5));
    assert!(has(fetched.tensors().get("w").expect("w"), 50) && has(fetched.tensors().get("b").expect("b"), 51));
    drop(fetched);
    // More tensors than one landing has ranges for, in another order than in the arena.
    let names: Vec<String> = (0..40).map(|n| format!("t{n}")).collect();
    let pushed = names.iter().zip(0..).map(|(name, n)| (name.clone(), numbers(&pusher, 16, n)));
    pusher.push_bundle("many", pushed.collect::<Vec<_>>()).call().expect("pushed");
    let mut into: Vec<_> = names.iter().map(|name| (name.clone(), empty(&far, 16))).collect();
    into.reverse();
    let fetched = far.fetch_bundle("many").into(into.into_iter().collect()).call().expect("it lands");
    assert!(fetched.landings().all(|(_, landing)| landing == afar(Landing::InPlace)));
    let expected: Vec<u32> = (0..40).collect();
    assert!(names.iter().zip(expected).all(|(name, n)| has(fetched.tensors().get(name).expect("a tensor"), n)));
    drop(fetched);
    // An arena without room for what lands beside.
    let mut all = Vec::new();
    let w = empty(&far, 256);
    while let Ok(tensor) = far.allocate(DType::U8, [4096]) {
        all.push(tensor);
    }
    let fetched = far.fetch_bundle("k").into(named([("w", w)])).call().expect("it is copied");
    assert!(has(fetched.tensors().get("w").expect("w"), 50) && fetched.landing() == afar(Landing::ArenaFull));
    drop((all, fetched));
    // A name of the same length, so the version is as long as before, and its bytes are in w when it is found that w is not there.
    let tensors = [("v", numbers(&pusher, 256, 60)), ("c", numbers(&pusher, 1, 0)), ("b", numbers(&pusher, 512, 61))];
    pusher.push_bundle("k", tensors).version(6).call().expect("pushed");
    let into = named([("w", empty(&far, 256)), ("b", empty(&far, 512))]);
    let failed = far.fetch_bundle("k").at_least(6).into(into).call().expect_err("it has no w");
    let (error, tensors) = failed.into_parts();
    let torn: &[_] = if let Error::DestinationTorn(torn) = &error { &torn.tensors } else { &[] };
    let torn: Vec<_> = torn.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(torn, if in_place { vec!["w", "b"] } else { vec![] }, "{error}");
    assert!(error.to_string().contains("no tensor \"w\"") && !error.can_retry(), "{error}");
    let tensors = tensors.expect("they are the caller's");
    let is_old = |name| tensors.get(name).expect("a tensor").as_bytes().iter().all(|byte| *byte == 0xee);
    assert!([is_old("w"), is_old("b")] == [!in_place; 2]);
    drop(tensors);
    // It is given up when it has landed, as the fetch that came later shows, and is not fetched once more.
    let last = connect(scene.b().socket(), "last");
    let into = named([("w", empty(&far, 256)), ("b", empty(&far, 512))]);
    let mut waits = far.fetch_bundle("k").at_least(7).into(into).begin();
    assert!(waits.wait(Duration::ZERO).is_none());
    let mut later = last.fetch_bundle("k").at_least(7).begin();
    assert!(later.wait(Duration::ZERO).is_none());
    let tensors = [("b", numbers(&pusher, 512, 70)), ("c", numbers(&pusher, 1, 0)), ("w", numbers(&pusher, 256, 71))];
    pusher.push_bundle("k", tensors).version(7).call().expect("pushed");
    later.wait(Duration::from_secs(60)).expect("it ends").expect("fetched");
    waits.cancel();
    let ended = waits.wait(Duration::from_secs(60)).expect("it ends");
    let code = ended.as_ref().err().and_then(|failed| failed.error().failure_code());
    // What lands in the pool has the tensors that it should have, and is copied.
    assert!(code == Some(FailureCode::Cancelled) || !in_place && ended.is_ok(), "{code:?}");
    drop((ended, waits, later, last, pusher, far));
    scene.end();
}

/// A stranger that owns a key, and answers as its sidecar.
struct Owner {
    link: Link,
    attached: Attached,
    runtime: tokio::runtime::Runtime,
}

impl Owner {
    fn of(key: &str, scene: &Scene) -> Owner {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        // At this socket the kernel tells the directory which user the peer is.
        let url = format!("unix://{}", scene.a().folder().join("a.peers").display());
        let claim = Item::Claim(v1::Claim {
            claim: 1,
            key: key.into(),
            owner: "owner".into(),
            tenant: rustix::process::geteuid().as_raw().to_string(),
            resident: true,
            takeover: false,
            entered: 0,
        });
        let attached = runtime.block_on(async {
            let channel = Endpoint::from_shared(url).expect("an address").connect().await.expect("a directory");
            let mut attached = Attached::to(channel, NAME).await.expect("it may attach");
            attached.ask(claim).await.expect("the key is free");
            attached
        });
        Owner { link: Link::to(scene.a()), attached, runtime }
    }

    /// Waits for a request, describes a version, and returns the slot that it gets, with the number of the request.
    fn asked(&mut self, meta: &TensorMeta) -> (u32, SlotGrant) {
        let (index, ()) =
            self.link.recv("TENSOR_REQUEST", |body| matches!(body, Body::TensorRequest { .. }).then_some(()));
        (index, self.describe(index, meta))
    }

    /// Waits for a request for parts of a version. Returns its number, and the description of these parts.
    fn request(&mut self, whole: &TensorMeta) -> (u32, TensorMeta) {
        self.link.recv("TENSOR_REQUEST", |body| match body {
            Body::TensorRequest { excerpt: Some(excerpt), .. } => Some(excerpt.of(whole).expect("parts of it").meta),
            _ => None,
        })
    }

    /// Describes what a request brings, and returns the slot that it gets. No other request comes before that.
    fn describe(&mut self, index: u32, meta: &TensorMeta) -> SlotGrant {
        let described = Body::MetaDataUpdate { version: Version(1), metadata_id: 1, meta: meta.clone() };
        self.link.send(Role::Pull, index, described);
        let (of, slot) = self.link.recv("TENSOR_RE_REQUEST", |body| match body {
            Body::TensorReRequest { slot } => Some(Some(slot.clone())),
            Body::TensorRequest { .. } => Some(None),
            _ => None,
        });
        assert_eq!((of, slot.is_some()), (index, true), "another request has come");
        slot.expect("a slot")
    }

    /// Writes a version behind its header, or into the ranges of the slot, and the header last.
    fn write(&mut self, index: u32, slot: &SlotGrant, bytes: &[u8]) {
        let header = Header {
            slot: slot.number,
            index,
            metadata_id: 1,
            version: Version(1),
            body_len: bytes.len() as u64,
            pieces: 1,
            waited_us: 0,
            name: 0,
            retention: Retention::default(),
            packed: false,
            identity: None,
            deltas_follow: false,
            is_delta: false,
            spreads: false,
        };
        let mut rest = bytes;
        for range in &slot.body {
            let (part, others) = rest.split_at(range.len as usize);
            self.link.write(range, 0, None, part);
            rest = others;
        }
        let landing = [&header.encode()[..], rest].concat();
        self.link.write(&slot.remote, 0, Some(slot.number.0), &landing);
    }

    fn end(self) {
        drop((self.link, self.attached, self.runtime));
    }
}

// Promise: into-memory
#[test]
fn error_names_the_tensors_of_a_bundle_that_may_be_half_new() {
    let scene = Scene::over(Carrier::Tcp, &[&["--listen", "127.0.0.1:0"]]);
    let mut owner = Owner::of("k", &scene);
    let reader = connect(scene.a().socket(), "reader");
    let (w, b) = (empty(&reader, 32), empty(&reader, 1));
    let table =
        [("w", w.meta()), ("b", b.meta())].map(|(name, meta)| (TensorName::new(name).expect("a name"), meta.clone()));
    let table = BundleTable::new(table.to_vec()).expect("a table");
    let mut metadata = table.to_bytes();
    let metadata_bytes = metadata.len() as u32;
    metadata.resize(metadata.len().next_multiple_of(64), 0);
    let described = |body_len| {
        TensorMeta::of(DType::U8, &[body_len])
            .and_then(|meta| meta.with_metadata(metadata_bytes))
            .expect("a description")
    };
    let mut fetch = reader.fetch_bundle("k").into(named([("b", b), ("w", w)])).begin();
    assert!(fetch.wait(Duration::ZERO).is_none());
    let (index, slot) = owner.asked(&described(0));
    assert!(slot.body.is_empty(), "the table comes alone, and lands in the pool");
    owner.write(index, &slot, &metadata);
    let ended = std::thread::scope(|threads| {
        let waits = threads.spawn(|| fetch.wait(Duration::from_secs(60)).expect("it ends"));
        let (index, slot) = owner.asked(&described(table.body_len()));
        let in_place: &RemoteSlice =
            slot.body.iter().find(|range| range.len == 32 * WIDTH * 4).expect("w lands in place");
        assert_eq!(slot.body.len(), 3, "before and behind w the rest lands");
        owner.link.write(in_place, 0, None, &[0x11; 4096]);
        let failed = Body::ErrorStatus(Failure::new(FailureCode::PoolFull, "it is enough"));
        owner.link.send(Role::Pull, index, failed);
        waits.join().expect("no panic")
    });
    let (error, tensors) = ended.expect_err("it fails").into_parts();
    let Error::DestinationTorn(torn) = &error else { panic!("{error}") };
    let names: Vec<_> = torn.tensors.iter().map(|(name, meta)| (name.as_str(), meta.to_string())).collect();
    assert_eq!((torn.key.as_str(), names), ("k", vec![("w", "u32[32, 1024]".to_owned())]));
    assert_eq!(error.failure_code(), Some(FailureCode::PoolFull));
    assert!(error.to_string().contains("\"w\" u32[32, 1024] for key \"k\""), "{error}");
    let tensors = tensors.expect("they are the caller's");
    let bytes = tensors.get("w").expect("w").as_bytes();
    assert!(bytes[..4096].iter().all(|byte| *byte == 0x11) && bytes[4096..].iter().all(|byte| *byte == 0xee));
    assert!(tensors.get("b").expect("b").as_bytes().iter().all(|byte| *byte == 0xee));
    drop((tensors, fetch, reader));
    owner.end();
    scene.end();
}

/// Short tensors of a state that no cache holds are copied past it, and a few shorter ones are not.
// Promise: into-memory
#[test]
fn states_larger_than_a_cache_are_copied_on_one_host() {
    let scene = Scene::one();
    let connect = |name: &str| {
        let connect = BlockingClient::connect(scene.a().socket()).name(name).arena_bytes(48 << 20);
        connect.call().expect("the sidecar takes workers")
    };
    let (pusher, near) = (connect("pusher"), connect("near"));
    // 36 MiB together, of 16,381 bytes to 3 MiB.
    let len = |n: u64| if n < 14 { (2 << 20) + (n << 16) + n } else { 16_381 + n };
    let element = |n: u64, i: u64| (n * 31 + i * 7) as u8 | 1;
    let tensors = (0..20).map(|n| {
        let mut tensor = pusher.allocate(DType::U8, [len(n)]).expect("room");
        (0..).zip(tensor.as_mut_bytes()).for_each(|(i, byte)| *byte = element(n, i));
        (format!("t{n}"), tensor)
    });
    pusher.push_bundle("k", tensors.collect::<Vec<_>>()).call().expect("pushed");
    let into = (0..20).map(|n| {
        let mut tensor = near.allocate(DType::U8, [len(n)]).expect("room");
        tensor.as_mut_bytes().fill(0);
        (format!("t{n}"), tensor)
    });
    let fetched = near.fetch_bundle("k").into(into.collect()).call().expect("fetched");
    assert!(fetched.landing() == Landing::OnThisHost && fetched.report().copied >= 32 << 20);
    for (n, (_, tensor)) in (0..).zip(fetched.into_tensors().iter()) {
        assert!((0..).zip(tensor.as_bytes()).all(|(i, byte)| *byte == element(n, i)), "tensor {n}");
    }
    drop((pusher, near));
    scene.end();
}
