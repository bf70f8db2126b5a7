//! Peers that break the protocol, and one that is stopped: each loses its link, and all other workers continue.

use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use transfer_core::tensor::{DType, Name, Retention, TensorMeta, Version};
use transfer_core::wire::landing::Header;
use transfer_core::wire::message::{Body, NameRef, Role};
use transfer_proto::v1;
use transfer_tests::status::operations_of;
use transfer_tests::stranger::{HELLO, Link, NAME, SEND, WRITE, call, good_call};
use transfer_tests::{Scene, Sidecar, Spec};

const LEN: u64 = 3 << 20;

fn until_no_link(sidecar: &Sidecar) {
    sidecar.until("the stranger has no link", |s| s.links.iter().all(|l| l.peer != NAME));
}

fn name_ref(id: u32) -> NameRef {
    NameRef { id, generation: 0 }
}

fn scene() -> Scene {
    Scene::two().with_bystanders()
}

// Promise: hostile-peers, seen to fail
#[test]
fn malformed_frame_or_message_ends_the_link() {
    let mut scene = scene();
    let garbage: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    type Says<'a> = &'a dyn Fn(&mut Link);
    let offences: [(&str, Says<'_>); 6] = [
        ("does not start with TTCP", &|link| link.raw(&garbage)),
        ("of version 9", &|link| link.raw(&[b"TTCP\x09", &garbage[..43]].concat())),
        ("opens nothing", &|link| link.frame(WRITE, 0xBAD, 0, None, &garbage)),
        ("greeting", &|link| link.frame(HELLO, 0, 0, None, &[7; 16])),
        ("", &|link| link.frame(SEND, 0, 0, None, &garbage[..200])),
        ("", &|link| link.frame(SEND, 0, 0, None, &[&[1], &garbage[..200]].concat())),
    ];
    for (words, offend) in offences {
        let mut link = Link::to(scene.a());
        offend(&mut link);
        let refusal = link.refusal();
        assert!(refusal.contains(words), "{refusal:?} should contain {words:?}");
        until_no_link(scene.a());
        scene.others_go_on();
    }
    scene.end();
}

// Promise: hostile-peers, seen to fail
#[test]
fn peer_of_another_version_is_refused_by_name() {
    let mut scene = scene();
    let mut other = good_call();
    other.protocol_version += 1;
    let refused = call(scene.a(), other.clone()).expect_err("another version");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    for word in [NAME, &format!("version {}", other.protocol_version), "the same release"] {
        assert!(refused.message().contains(word), "{word:?} is missing in {refused}");
    }
    until_no_link(scene.a());
    scene.others_go_on();
    scene.end();
}

/// A token that is shown twice, a token that was never given, and a token that is shown too late.
// Promise: hostile-peers, seen to fail
#[test]
fn link_token_is_valid_once_and_for_a_limited_time() {
    let mut scene = scene();
    let (token, address) = call(scene.a(), good_call()).expect("a good call");
    let mut first = Link::at(address);
    first.frame(HELLO, 0, 0, None, &token);
    assert_eq!(first.next_frame().map(|(kind, _)| kind), Some(2), "it is welcome");
    for wrong in [token, [1; 16]] {
        let mut second = Link::at(address);
        second.frame(HELLO, 0, 0, None, &wrong);
        assert!(second.refusal().contains("token"));
    }
    scene.a().until("the first has its link", |s| s.links.iter().any(|l| l.peer == NAME));
    drop(first);
    until_no_link(scene.a());
    // A token expires after 5 seconds without a connection. A longer wait tests the same.
    let (late, address) = call(scene.a(), good_call()).expect("a good call");
    std::thread::sleep(Duration::from_secs(6));
    scene.others_go_on();
    let mut tardy = Link::at(address);
    tardy.frame(HELLO, 0, 0, None, &late);
    assert!(tardy.refusal().contains("token"));
    until_no_link(scene.a());
    scene.others_go_on();
    scene.end();
}

/// The peer gets landing slots by the protocol. Then it writes beyond one of them, or into one that is already
/// published.
// Promise: immutable-versions, seen to fail
// Promise: writes-of-peers, seen to fail
// Promise: attacker-as-peer
#[test]
fn write_outside_its_grant_changes_nothing() {
    let mut scene = scene();
    for again in [false, true] {
        let mut target = scene.a().worker("target");
        let mut link = Link::to(scene.a());
        let own = rustix::process::geteuid().as_raw().to_string();
        for (id, text) in ["loot", "target", "thief", &own].into_iter().enumerate() {
            let text = Name::new(text).expect("a name");
            link.send(Role::Push, 0, Body::Name { name: name_ref(id as u32), text });
        }
        let [key, target_ref, owner, tenant] = [0, 1, 2, 3].map(name_ref);
        let meta = TensorMeta::of(DType::U8, &[1000]).expect("a shape");
        link.send(Role::Push, 1, Body::BufferRequest { key, target: target_ref, owner, tenant, metadata_id: 1, meta });
        let (_, slots) = link.recv("BUFFER_RESPONSE", |body| match body {
            Body::BufferResponse { slots } => Some(slots.clone()),
            Body::ErrorStatus(failure) => panic!("{failure:?}"),
            _ => None,
        });
        let slot = slots[0].clone();
        let bytes = transfer_tests::pattern::bytes_of(&Spec::bytes(1000, 5));
        let header = Header {
            slot: slot.number,
            index: 1,
            metadata_id: 1,
            version: Version(1),
            body_len: 1000,
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
        let landing = [&header.encode()[..], &bytes].concat();
        link.write(&slot.remote, 0, Some(slot.number.0), &landing);
        let landed = target.fetch("loot").hold("loot").get();
        assert_eq!(landed.sum, Spec::bytes(1000, 5).sum());
        if again {
            // A published slot cannot be written: its grant is revoked.
            link.write(&slot.remote, 64, None, &[0xee; 100]);
        } else {
            // The other slot is still granted, and the write goes beyond its end.
            link.write(&slots[1].remote, slots[1].remote.len - 8, None, &[0xee; 64]);
        }
        let refusal = link.refusal();
        assert!(refusal.contains("opens"), "{refusal}");
        until_no_link(scene.a());
        assert_eq!(target.read("loot"), Spec::bytes(1000, 5).sum(), "what was published has changed");
        scene.others_go_on();
        drop(target);
        scene.a().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "target"));
    }
    scene.end();
}

/// The peer owns a key according to the directory, and does not answer in time. It answers late, and then a second
/// time.
// Promise: hostile-peers, seen to fail
#[test]
fn late_answer_is_ignored_and_second_answer_ends_the_link() {
    let mut scene = scene();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // At this socket the kernel tells the directory which user the peer is.
    let url = format!("unix://{}", scene.a().folder().join("a.peers").display());
    let (tell, told) = tokio::sync::mpsc::channel(8);
    let say = |item| tell.try_send(v1::NodeUpdate { items: vec![v1::NodeItem { item: Some(item) }] }).expect("room");
    use v1::node_item::Item;
    say(Item::Hello(v1::Hello {
        node: NAME.into(),
        address: "127.0.0.1:1".into(),
        incarnation: 1,
        version: 5,
        ..v1::Hello::default()
    }));
    say(Item::Claim(v1::Claim {
        claim: 1,
        key: "lure".into(),
        owner: "lurer".into(),
        tenant: rustix::process::geteuid().as_raw().to_string(),
        resident: true,
        takeover: false,
        entered: 0,
    }));
    let attached = runtime.block_on(async {
        let channel = Endpoint::from_shared(url).expect("an address").connect().await.expect("the directory is there");
        let mut client = v1::directory_client::DirectoryClient::new(channel);
        let mut answers = client.attach(ReceiverStream::new(told)).await.expect("it may attach").into_inner();
        // The directory answers with its welcome, and then to the claim.
        for _ in 0..2 {
            answers.message().await.expect("the directory answers").expect("and goes on");
        }
        answers
    });
    let mut link = Link::to(scene.a());
    let mut taker = scene.a().worker("taker");
    let fetch = taker.fetch("lure").timeout(Duration::from_secs(2)).start();
    let (index, ()) = link.recv("TENSOR_REQUEST", |body| matches!(body, Body::TensorRequest { .. }).then_some(()));
    fetch.trouble().expect("Deadline", &["\"lure\""]);
    link.recv("CANCEL", |body| matches!(body, Body::Cancel).then_some(()));
    scene.others_go_on();
    let meta = TensorMeta::of(DType::U8, &[1000]).expect("a shape");
    link.send(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 1, meta });
    link.send(Role::Pull, index, Body::Cancelled);
    scene.a().until("nothing of the fetch is left", |s| {
        s.links.iter().any(|l| l.peer == NAME && l.pulls == 0) && operations_of(s, "taker") == 0
    });
    link.send(Role::Pull, index, Body::Cancelled);
    assert_ne!(link.refusal(), "", "it should be told why");
    until_no_link(scene.a());
    scene.others_go_on();
    drop((taker, attached, tell, runtime));
    scene.end();
}

/// A sidecar is stopped, as by a debugger or on a host that swaps. Calls that wait for it fail in the end, and once it
/// runs again everything works as before.
// Promise: stopped-peer
#[test]
fn a_stopped_sidecar_is_lost_to_others_and_comes_back() {
    let mut scene = Scene::two().with_bystanders_at([0, 0]);
    let (mut here, mut there) = (scene.a().worker("here"), scene.b().worker("there"));
    there.push("in", Spec::bytes(LEN, 1)).get();
    here.fetch("in").hold("in").get();
    let waiting = here.fetch("in").at_least(100).start();
    let storm = here.push("out", Spec::bytes(LEN, 2)).to("there").storm();
    scene.b().until("pushes come, and the fetch waits", |s| {
        s.counters.as_ref().is_some_and(|c| c.blobs > 1) && s.links.iter().any(|l| l.serves == 1)
    });
    scene.b().freeze();
    scene.others_go_on();
    let lost = ["PeerLost", "PeerUnreachable", "Deadline", "UnknownWorker", "UnknownKey"];
    for trouble in [storm.trouble(), waiting.trouble()] {
        assert!(lost.contains(&trouble.kind.as_str()) && trouble.can_retry, "{trouble}");
    }
    assert_eq!(here.read("in"), Spec::bytes(LEN, 1).sum());
    scene.others_go_on();
    scene.b().go_on();
    scene.b().until("it has its directory again", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    // The worker of the stopped sidecar keeps its session and its tensor.
    let fetched = transfer_tests::poll(|| here.fetch("in").start().wait()).expect("it can be reached again");
    assert_eq!(fetched.sum, Spec::bytes(LEN, 1).sum());
    let pushed = || here.push("again", Spec::bytes(LEN, 3)).to("there").start().wait();
    transfer_tests::poll(pushed).expect("it can be reached again");
    assert_eq!(there.fetch("again").get().sum, Spec::bytes(LEN, 3).sum());
    scene.others_go_on();
    drop((here, there));
    scene.end();
}

/// Hundreds of offences in a row: each is refused, a few are logged, and the log counts the lines that it leaves out.
// Promise: log-limit, seen to fail
#[test]
fn log_lines_of_repeated_offences_are_limited() {
    const OFFENCES: u64 = 600;
    let scene = Scene::two_with(&["--log-format", "json", "--log-limit", "10", "--http-listen", "127.0.0.1:0"]);
    let (_, address) = call(scene.a(), good_call()).expect("a good call");
    for _ in 0..OFFENCES {
        let mut link = Link::at(address);
        link.frame(HELLO, 0, 0, None, &[1; 16]);
        assert!(link.refusal().contains("token"));
    }
    let lines = || -> Vec<serde_json::Value> {
        let log = scene.a().log();
        let lines = log.lines().filter(|line| line.ends_with('}'));
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    };
    let count = || {
        let lines = lines();
        let written = lines.iter().filter(|l| l["message"] == "a data connection was refused").count() as u64;
        let dropped =
            lines.iter().filter(|l| l["target"] == "transfer_log" && l["of"] == "transfer_fabric::tcp::connecting");
        (written, dropped.map(|l| l["dropped"].as_u64().expect("a number")).sum::<u64>())
    };
    let told = transfer_tests::poll(|| match count() {
        (written, dropped) if written + dropped >= OFFENCES => Ok((written, dropped)),
        other => Err(other),
    });
    let (written, dropped) = told.expect("every offence is written or counted");
    assert_eq!(written + dropped, OFFENCES);
    assert!(dropped > 0 && written >= 10, "{written} lines written, {dropped} dropped");
    // The metrics may be a tenth of a second old, and other places in the code may have dropped lines as well.
    let counted = transfer_tests::poll(|| {
        let metrics = transfer_tests::http::get(&scene.a().http(), "/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("transfer_log_lines_dropped_total "));
        match line.and_then(|n| n.parse::<f64>().ok()) {
            Some(n) if n >= dropped as f64 => Ok(()),
            other => Err(other),
        }
    });
    assert_eq!(counted, Ok(()));
    // Messages from another place in the code are still logged.
    drop(scene.a().worker("loud"));
    let loud = || lines().iter().any(|l| l["message"] == "session open" && l["worker"] == "loud");
    assert_eq!(transfer_tests::poll(|| if loud() { Ok(()) } else { Err(()) }), Ok(()));
    scene.end();
}
