//! Fetches of sharded states into the memory of the reader: pieces land where they belong.

use crate::into_memory::{connect, from_afar};
use std::time::Duration;
use transfer_client::{
    BlockingClient, BundleMut, Client, DType, Error, FailureCode, FetchedInto, Landing, Rank, Shard, TensorMut, s,
};
use transfer_tests::{Carrier, Scene};

const SIDE: u64 = 1024;

/// The number of short matrices of the state, which more than one request has to name.
const MANY: u64 = 60;

/// The elements of these rows and columns of "w".
fn numbers(rows: std::ops::Range<u64>, columns: std::ops::Range<u64>) -> Vec<u32> {
    rows.flat_map(|row| columns.clone().map(move |column| (row * SIDE + column) as u32)).collect()
}

fn filled(client: &BlockingClient, rows: u64, columns: u64) -> TensorMut {
    let mut tensor = client.allocate(DType::U32, [rows, columns]).expect("room");
    tensor.as_mut_slice::<u32>().expect("u32").fill(u32::MAX);
    tensor
}

fn named<const N: usize>(tensors: [(&str, TensorMut); N]) -> BundleMut {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

fn has(fetched: &BundleMut, name: &str, expected: &[u32]) -> bool {
    fetched.get(name).expect("the tensor").as_slice::<u32>().expect("u32") == expected
}

/// Pushes a rank's quarter of the rows of "w", and of many matrices whose elements are their numbers.
fn push(client: &BlockingClient, rank: u32) {
    let rows = u64::from(rank) * SIDE / 4..u64::from(rank + 1) * SIDE / 4;
    let mut w = client.allocate(DType::U32, [SIDE / 4, SIDE]).expect("room");
    w.as_mut_slice::<u32>().expect("u32").copy_from_slice(&numbers(rows.clone(), 0..SIDE));
    let mut shards = vec![Shard::new("w", [SIDE, SIDE], [rows.start, 0], w)];
    for n in 0..MANY {
        let mut matrix = client.allocate(DType::U32, [16, SIDE]).expect("room");
        matrix.as_mut_slice::<u32>().expect("u32").fill(n as u32);
        shards.push(Shard::new(format!("m{n}"), [64, SIDE], [u64::from(rank) * 16, 0], matrix));
    }
    let rank = Rank { rank, world_size: 4 };
    client.push_shards("policy", 1, rank, shards).timeout(Duration::from_secs(20)).call().expect("pushed");
}

/// Two sidecars; two ranks at each of them.
fn four_ranks() -> (Scene, Vec<BlockingClient>) {
    let scene = Scene::two();
    let ranks: Vec<_> = (0..4).map(|rank| connect(scene.nodes[rank / 2].socket(), &format!("rank-{rank}"))).collect();
    (0..).zip(&ranks).for_each(|(rank, client)| push(client, rank));
    (scene, ranks)
}

fn moved(scene: &Scene) -> u64 {
    scene.b().status().links.iter().map(|link| link.bytes_in).sum()
}

fn landing(fetched: &FetchedInto<BundleMut>, name: &str) -> Landing {
    fetched.landings().find(|(found, _)| *found == name).expect("it has a place").1
}

// Promise: sharded-into, seen to fail
#[test]
fn pieces_of_a_sharded_state_land_where_they_belong() {
    let (scene, ranks) = four_ranks();
    let far = connect(scene.b().socket(), "far");
    // What a peer's memory is read of where it lies is copied.
    let plain = *far.fetch_sharded("policy").slices([("w", s![0..256])]).call().expect("fetched").report();
    let by_reference = plain.fabric.name() == "shm" && plain.copied == 0;
    let in_place = !by_reference && from_afar() == Landing::InPlace;
    let afar = |landing| match landing {
        _ if by_reference => Landing::OnThisHost,
        landing if in_place => landing,
        _ => from_afar(),
    };
    // The rows of both ranks of the other node: one run, in two pieces.
    let before = moved(&scene);
    let into = named([("w", filled(&far, SIDE / 2, SIDE))]);
    let fetched = far.fetch_sharded("policy").slices([("w", s![0..512])]).into(into).call().expect("it lands");
    let (report, landed) = (*fetched.report(), moved(&scene) - before);
    assert_eq!((landing(&fetched, "w"), fetched.version()), (afar(Landing::InPlace), 1));
    assert!(has(fetched.tensors(), "w", &numbers(0..512, 0..SIDE)));
    assert_eq!(report.bytes, SIDE * SIDE * 2);
    let further = if in_place { 0 } else { report.bytes };
    // The tables of both ranks come along, and what the fabric copies of them.
    let carried = if by_reference { 0..=0 } else { Carrier::chosen().copies(report.bytes) };
    let copied = report.copied - further;
    assert!(*carried.start() <= copied && copied <= carried.end() + (64 << 10), "{report}");
    assert!(by_reference || landed < report.bytes + (64 << 10), "{landed} bytes have moved");
    drop(fetched);
    // All of it, of which half lies here.
    let all = filled(&far, SIDE, SIDE);
    let at = all.slice();
    let fetched = far.fetch_sharded("policy").into(named([("w", all)])).call().expect("it lands");
    assert!(has(fetched.tensors(), "w", &numbers(0..SIDE, 0..SIDE)));
    assert_eq!(landing(&fetched, "w"), if in_place { Landing::OnThisHost } else { afar(landing(&fetched, "w")) });
    assert_eq!(fetched.tensors().get("w").expect("w").slice(), at, "it is the tensor that was given");
    drop(fetched);
    // Half of the columns is contiguous where it belongs. In a wider tensor its runs have 2 KiB.
    let slices = || [("w", s![0..512, 256..768])];
    let into = named([("w", filled(&far, 512, 512))]);
    let fetched = far.fetch_sharded("policy").slices(slices()).into(into).call().expect("it lands");
    assert!(has(fetched.tensors(), "w", &numbers(0..512, 256..768)));
    assert_eq!(landing(&fetched, "w"), afar(Landing::InPlace));
    drop(fetched);
    let into = named([("wide", filled(&far, 512, 600))]);
    let fetch = far.fetch_sharded("policy").slices(slices()).into(into).at("w", "wide", s![.., 88..]);
    let fetched = fetch.call().expect("it comes");
    assert_eq!(landing(&fetched, "w"), afar(Landing::Short));
    let wide = fetched.tensors().get("wide").expect("wide").as_slice::<u32>().expect("u32");
    let inside: Vec<u32> = wide.chunks(600).flat_map(|row| row[88..].iter().copied()).collect();
    assert!(inside == numbers(0..512, 256..768));
    assert!(wide.chunks(600).all(|row| row[..88].iter().all(|element| *element == u32::MAX)));
    drop(fetched);
    // Many tensors, more than one request has ranges for.
    let names: Vec<String> = (0..MANY).map(|n| format!("m{n}")).collect();
    let into = names.iter().map(|name| (name.clone(), filled(&far, 32, SIDE))).collect();
    let slices = names.iter().map(|name| (name, s![0..32]));
    let fetched = far.fetch_sharded("policy").slices(slices).into(into).call().expect("it lands");
    let of = |n: u64| vec![n as u32; 32 * SIDE as usize];
    assert!((0..MANY).all(|n| has(fetched.tensors(), &format!("m{n}"), &of(n))));
    assert!(fetched.landings().all(|(_, landing)| landing == afar(Landing::InPlace)));
    drop(fetched);
    // What does not fit is found before anything is written.
    let w = |rows| named([("w", filled(&far, rows, SIDE))]);
    let fetch = || far.fetch_sharded("policy");
    for (fetch, says) in [
        (fetch().into(w(1023)), "u32[1023, 1024]"),
        (fetch().slices([("m0", s![0..1])]).into(w(SIDE)), "same names"),
        (fetch().slices([("w", s![0..1]), ("w", s![1..2])]).into(w(1)), "\"w\""),
        (fetch().into(w(SIDE)).at("v", "w", s![..]), "no tensor \"v\""),
        (fetch().exactly(7).timeout(Duration::from_millis(300)).into(w(SIDE)), "exactly v7"),
    ] {
        let (error, tensors) = fetch.call().expect_err(says).into_parts();
        assert!(error.to_string().contains(says), "{error}: {says}");
        let is_old = |tensors: &BundleMut| tensors.iter().all(|(_, w)| w.as_bytes().iter().all(|byte| *byte == 0xff));
        assert!(
            tensors.is_some_and(|tensors| is_old(&tensors)) && !matches!(error, Error::DestinationTorn(_)),
            "{error}"
        );
    }
    // A call that is given up has its tensors again.
    let mut waits = far.fetch_sharded("nothing").into(w(1)).begin();
    assert!(waits.wait(Duration::ZERO).is_none());
    waits.cancel();
    let (error, tensors) = waits.wait(Duration::from_secs(20)).expect("it ends").expect_err("cancelled").into_parts();
    assert!(
        error.failure_code() == Some(FailureCode::Cancelled) && tensors.is_some_and(|all| all.len() == 1),
        "{error}"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").arena_bytes(4 << 20).await.expect("a worker");
        let into = named([("w", client.allocate(DType::U32, [100, SIDE]).expect("room"))]);
        let fetched = client.fetch_sharded("policy").slices([("w", s![200..300])]).into(into).await.expect("it lands");
        assert!(has(fetched.tensors(), "w", &numbers(200..300, 0..SIDE)));
        client.close().await;
    });
    drop((waits, ranks, far));
    scene.end();
}

// Promise: sharded-into, seen to fail
#[test]
fn error_says_which_tensors_are_half_new_when_a_rank_is_gone() {
    let (scene, mut ranks) = four_ranks();
    let far = connect(scene.b().socket(), "far");
    // Its layout is known from now on.
    let into = named([("w", filled(&far, SIDE, SIDE)), ("m0", filled(&far, 64, SIDE))]);
    far.fetch_sharded("policy").into(into).call().expect("it lands");
    drop(ranks.remove(1));
    // The row is too short to land in place, and is copied.
    let slices = [("w", None), ("m0", None), ("m1", Some(s![0..1]))];
    let into = named([("w", filled(&far, SIDE, SIDE)), ("m0", filled(&far, 64, SIDE)), ("m1", filled(&far, 1, SIDE))]);
    let fetch = far.fetch_sharded("policy").slices(slices).into(into);
    let (error, tensors) = fetch.call().expect_err("a rank is gone").into_parts();
    let Error::DestinationTorn(torn) = &error else { panic!("{error}") };
    let mut names: Vec<_> = torn.tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!((torn.key.as_str(), names), ("policy", vec!["m0", "m1", "w"]), "{error}");
    assert!(matches!(torn.error, Error::Sharded(_)), "{error}");
    let tensors = tensors.expect("they are the caller's");
    let w = tensors.get("w").expect("w").as_slice::<u32>().expect("u32");
    let quarter = (SIDE * SIDE / 4) as usize;
    assert!(w[..quarter] == numbers(0..256, 0..SIDE) && w[quarter..2 * quarter].iter().all(|e| *e == u32::MAX));
    drop((tensors, ranks, far));
    scene.end();
}
