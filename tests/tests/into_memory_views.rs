//! Fetches of slices into the memory of the reader, and into parts of its tensors.

use crate::into_memory::{WIDTH, connect, empty, from_afar, numbers};
use transfer_client::{
    BlockingClient, BundleMut, Client, DType, Error, FailureCode, FetchedInto, Landing, MemoryView, TensorMut, s,
};
use transfer_tests::{Carrier, Scene};

fn named<const N: usize>(tensors: [(&str, TensorMut); N]) -> BundleMut {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

fn filled(client: &BlockingClient, rows: u64, width: u64) -> TensorMut {
    let mut tensor = client.allocate(DType::U32, [rows, width]).expect("room");
    tensor.as_mut_slice::<u32>().expect("u32").fill(u32::MAX);
    tensor
}

/// The elements of these columns of a tensor whose rows have this width.
fn columns(tensor: &TensorMut, width: usize, columns: std::ops::Range<usize>) -> Vec<u32> {
    let rows = tensor.as_slice::<u32>().expect("u32").chunks(width);
    rows.flat_map(|row| row[columns.clone()].iter().copied()).collect()
}

/// Whether what is fetched from the other node is read where it lies.
fn is_by_reference(client: &BlockingClient, key: &str) -> bool {
    let plain = *client.fetch(key).call().expect("fetched").report();
    plain.fabric.name() == "shm" && plain.copied == 0
}

fn check_copies(report: &transfer_client::Report, further: u64, by_reference: bool) {
    let carried = if by_reference { 0..=0 } else { Carrier::chosen().copies(report.bytes) };
    // Of a slice with short runs, the owner has packed all.
    let may_be_packed = [0, report.bytes];
    let found = report.copied - further;
    assert!(may_be_packed.iter().any(|packed| carried.contains(&(found - packed.min(&found)))), "{report}, {further}");
}

// Promise: into-views
#[test]
fn tensor_and_slice_land_in_a_part_of_a_tensor() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let rows = 64_u32;
    pusher.push_tensor("w", numbers(&pusher, u64::from(rows), 0)).call().expect("pushed");
    // Four rows of 128 KiB each, of which two runs are in one piece where they belong.
    let mut wide = pusher.allocate(DType::U32, [4, 32 * WIDTH]).expect("room");
    (0..).zip(wide.as_mut_slice::<u32>().expect("u32")).for_each(|(n, element)| *element = n);
    pusher.push_tensor("wide", wide).call().expect("pushed");
    let in_place = from_afar() == Landing::InPlace;
    let by_reference = is_by_reference(&far, "w");
    let afar = |landing| match landing {
        _ if by_reference => Landing::OnThisHost,
        Landing::Short => Landing::Short,
        landing if in_place => landing,
        _ => from_afar(),
    };
    for (client, is_near) in [(&near, true), (&far, false)] {
        let expected = |landing| if is_near { Landing::OnThisHost } else { afar(landing) };
        // Columns: runs of 4 KiB, which land beside.
        let into = filled(client, rows.into(), 3 * WIDTH);
        let fetched = client.fetch("w").into(into).at(s![.., 1024..2048]).call().expect("it comes");
        assert_eq!(fetched.landing(), expected(Landing::Short));
        let w: Vec<u32> = (0..rows * 1024).collect();
        assert!(columns(fetched.tensor(), 3 * 1024, 1024..2048) == w);
        assert!(columns(fetched.tensor(), 3 * 1024, 0..1024).iter().all(|element| *element == u32::MAX));
        assert!(columns(fetched.tensor(), 3 * 1024, 2048..3072).iter().all(|element| *element == u32::MAX));
        check_copies(fetched.report(), u64::from(rows) * 4096, by_reference || is_near);
        // Columns of 128 KiB, which land in place.
        let into = filled(client, 4, 64 * WIDTH);
        let fetched = client.fetch("wide").into(into).at(s![.., 100..32868]).call().expect("it lands");
        assert_eq!(fetched.landing(), expected(Landing::InPlace));
        let wide: Vec<u32> = (0..4 * 32 * 1024).collect();
        assert!(columns(fetched.tensor(), 64 * 1024, 100..32868) == wide);
        assert!(columns(fetched.tensor(), 64 * 1024, 0..100).iter().all(|element| *element == u32::MAX));
        assert!(columns(fetched.tensor(), 64 * 1024, 32868..65536).iter().all(|element| *element == u32::MAX));
        let further = if fetched.landing() == Landing::InPlace { 0 } else { 4 * (128 << 10) };
        check_copies(fetched.report(), further, by_reference || is_near);
        // A slice, into rows of another tensor, of which the memory has another element type.
        let into = client.allocate(DType::U8, [1 << 20]).expect("room");
        let view = MemoryView::strided(DType::U32, &[32, 1024], 4096, &[8192, 4]).expect("a view");
        let fetched = client.fetch("w").slice(s![16..48]).into(into).at_view(view).call().expect("it comes");
        let words =
            fetched.tensor().as_bytes().chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
        let words: Vec<u32> = words.collect();
        let landed: Vec<u32> = words.chunks(2048).take(32).flat_map(|row| row[1024..].iter().copied()).collect();
        assert!(landed == (16 * 1024..48 * 1024).collect::<Vec<u32>>());
        // What does not fit is not written.
        for (slice, says) in
            [(s![.., 0..1023], "u32[64, 1023]"), (s![.., 0..4000], "[64, 3072]"), (s![0..1], "u32[1, 3072]")]
        {
            let failed = client.fetch("w").into(filled(client, rows.into(), 3 * WIDTH)).at(slice).call();
            let (error, tensor) = failed.expect_err("it does not fit").into_parts();
            assert!(error.to_string().contains(says) && error.failure_code() == Some(FailureCode::Invalid), "{error}");
            let tensor = tensor.expect("it is the caller's");
            assert!(tensor.as_slice::<u32>().expect("u32").iter().all(|element| *element == u32::MAX));
        }
        let view = MemoryView::strided(DType::U32, &[64, 1024], 1, &[4096, 4]).expect("a view");
        let failed = client.fetch("w").into(empty(client, 64)).at_view(view).call();
        let (error, tensor) = failed.expect_err("it leaves the tensor").into_parts();
        assert!(error.to_string().contains("262145") && tensor.is_some(), "{error}");
    }
    for strides in [[4, 4096], [2, 4], [4096, 0]] {
        let error = MemoryView::strided(DType::U32, &[64, 1024], 0, &strides).expect_err("elements do not rise");
        assert!(error.to_string().contains(&format!("{strides:?}")), "{error}");
    }
    assert!(MemoryView::strided(DType::U32, &[64, 1024], 0, &[4]).is_err());
    drop((pusher, near, far));
    scene.end();
}

fn landings(fetched: &FetchedInto<BundleMut>) -> Vec<(&str, Landing)> {
    let mut landings: Vec<_> = fetched.landings().collect();
    landings.sort_unstable_by_key(|(name, _)| *name);
    landings
}

// Promise: into-views, seen to fail
#[test]
fn tensors_and_slices_of_a_bundle_land_in_parts_of_tensors() {
    let scene = Scene::two();
    let (pusher, near, far) = (
        connect(scene.a().socket(), "pusher"),
        connect(scene.a().socket(), "near"),
        connect(scene.b().socket(), "far"),
    );
    let tensors = [
        ("q", numbers(&pusher, 64, 1 << 20)),
        ("k", numbers(&pusher, 32, 2 << 20)),
        ("b", numbers(&pusher, 1, 3 << 20)),
        ("v", numbers(&pusher, 32, 4 << 20)),
    ];
    pusher.push_bundle("state", tensors).call().expect("pushed");
    let plain = *far.fetch_bundle("state").call().expect("fetched").report();
    let by_reference = plain.fabric.name() == "shm" && plain.copied == 0;
    let in_place = from_afar() == Landing::InPlace;
    let rows = |first: u32, rows: std::ops::Range<u32>| {
        (first + rows.start * 1024..first + rows.end * 1024).collect::<Vec<u32>>()
    };
    for (client, is_near) in [(&near, true), (&far, false)] {
        let expected = |landing| match landing {
            _ if is_near || by_reference => Landing::OnThisHost,
            landing if in_place => landing,
            _ => from_afar(),
        };
        for round in 0..2 {
            // A fused parameter.
            let into = named([("qkv", filled(client, 128, WIDTH)), ("b", filled(client, 1, WIDTH))]);
            let fetch = client.fetch_bundle("state").into(into).at("q", "qkv", s![0..64]).at("v", "qkv", s![96..]);
            let fetched = fetch.at("k", "qkv", s![64..96]).call().expect("it lands");
            let names =
                [("b", Landing::Short), ("k", Landing::InPlace), ("q", Landing::InPlace), ("v", Landing::InPlace)];
            assert_eq!(landings(&fetched), names.map(|(name, landing)| (name, expected(landing))), "{round}");
            let all = [rows(1 << 20, 0..64), rows(2 << 20, 0..32), rows(4 << 20, 0..32)].concat();
            let tensors = fetched.into_tensors();
            assert!(tensors.get("qkv").expect("qkv").as_slice::<u32>().expect("u32") == all);
            assert!(tensors.get("b").expect("b").as_slice::<u32>().expect("u32") == rows(3 << 20, 0..1));
        }
        // One tensor for all, in the order of the bundle: also the short one is a part of the run.
        let fetch = client.fetch_bundle("state").into(named([("all", filled(client, 129, WIDTH))]));
        let fetch = fetch.at("q", "all", s![0..64]).at("k", "all", s![64..96]);
        let fetched = fetch.at("b", "all", s![96..97]).at("v", "all", s![97..]).call().expect("it lands");
        assert!(fetched.landings().all(|(_, landing)| landing == expected(Landing::InPlace)));
        let all = [rows(1 << 20, 0..64), rows(2 << 20, 0..32), rows(3 << 20, 0..1), rows(4 << 20, 0..32)].concat();
        assert!(fetched.tensors().get("all").expect("all").as_slice::<u32>().expect("u32") == all);
        drop(fetched);
        // Slices, one of which has short runs at the owner and one at the reader. Only they move.
        let before: u64 = scene.b().status().links.iter().map(|link| link.bytes_in).sum();
        let into = named([("two", filled(client, 32, 2 * WIDTH)), ("left", filled(client, 64, 512))]);
        let slices = [("q", Some(s![.., 0..512])), ("k", None), ("v", Some(s![16..32]))];
        let fetch = client.fetch_bundle("state").slices(slices).into(into).at("q", "left", s![..]);
        let fetched = fetch.at("k", "two", s![.., 0..1024]).at("v", "two", s![0..16, 1024..]).call().expect("it lands");
        let names = [("k", Landing::Short), ("q", Landing::InPlace), ("v", Landing::Short)];
        assert_eq!(landings(&fetched), names.map(|(name, landing)| (name, expected(landing))));
        let after: u64 = scene.b().status().links.iter().map(|link| link.bytes_in).sum();
        let (bytes, moved) = ((128 + 128 + 64) << 10, fetched.report().bytes);
        assert!((bytes..bytes + 4096).contains(&moved) && after - before < bytes + 8192, "{moved} {}", after - before);
        let tensors = fetched.into_tensors();
        let (two, left) = (tensors.get("two").expect("two"), tensors.get("left").expect("left"));
        assert!(columns(two, 2048, 0..1024) == rows(2 << 20, 0..32));
        assert!(columns(two, 2048, 1024..2048)[..16 * 1024] == rows(4 << 20, 16..32));
        assert!(columns(two, 2048, 1024..2048)[16 * 1024..].iter().all(|element| *element == u32::MAX));
        let halves: Vec<u32> = (0..64).flat_map(|row| rows(1 << 20, row..row + 1)[..512].to_vec()).collect();
        assert!(left.as_slice::<u32>().expect("u32") == halves);
        // More slices than one request names.
        let names: Vec<String> = (0..60).map(|n| format!("t{n}")).collect();
        if is_near {
            let pushed = names.iter().zip(0..).map(|(name, n)| (name.clone(), numbers(&pusher, 32, n)));
            pusher.push_bundle("many", pushed.collect::<Vec<_>>()).call().expect("pushed");
        }
        let into: BundleMut = names.iter().map(|name| (name.clone(), filled(client, 16, WIDTH))).collect();
        let slices = names.iter().map(|name| (name, s![0..16]));
        let fetched = client.fetch_bundle("many").slices(slices).into(into).call().expect("it comes");
        assert_eq!(fetched.landing(), expected(Landing::InPlace));
        let is_right = |(n, name): (u32, &String)| {
            fetched.tensors().get(name).expect("a tensor").as_slice::<u32>().expect("u32") == rows(n, 0..16)
        };
        assert!((0..).zip(&names).all(is_right));
        // What is wrong is found before anything is written.
        let qkv = || named([("qkv", filled(client, 128, WIDTH))]);
        let fetch = || client.fetch_bundle("state").into(qkv());
        let wrong = [
            (fetch().at("q", "qkv", s![0..64]).at("k", "qkv", s![63..95]), "the same bytes"),
            (fetch().at("q", "qkv", s![0..64]).at("q", "qkv", s![64..]), "two parts"),
            (fetch().at("q", "other", s![0..64]), "\"other\""),
            (fetch().at("q", "qkv", s![0..63]), "u32[63, 1024]"),
            (fetch().at("x", "qkv", s![0..64]), "no tensor \"x\""),
            (fetch().at("q", "qkv", s![0..640]), "[128, 1024]"),
            (client.fetch_bundle("state").slices([("q", s![0..1])]).into(qkv()), "no slice"),
            (client.fetch_bundle("state").slices([("q", s![0..65])]).into(qkv()).at("q", "qkv", s![0..65]), "65"),
            (
                client.fetch_bundle("state").slices([("q", None), ("b", None)]).into(qkv()).at("q", "qkv", s![0..64]),
                "no tensor to fetch it into",
            ),
        ];
        for (fetch, says) in wrong {
            let (error, tensors) = fetch.call().expect_err(says).into_parts();
            assert!(error.to_string().contains(says), "{error}: {says}");
            let tensors = tensors.expect("they are the caller's");
            let is_old = tensors.iter().all(|(_, tensor)| tensor.as_bytes().iter().all(|byte| *byte == 0xff));
            assert!(is_old && !matches!(error, Error::DestinationTorn(_)), "{error}");
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").arena_bytes(4 << 20).await.expect("a worker");
        let into = named([("kv", client.allocate(DType::U32, [64, WIDTH]).expect("room"))]);
        let fetch = client.fetch_bundle("state").slices([("k", None), ("v", Some(s![0..32]))]).into(into);
        let fetched = fetch.at("k", "kv", s![32..]).at("v", "kv", s![..32]).await.expect("fetched");
        let all = [rows(4 << 20, 0..32), rows(2 << 20, 0..32)].concat();
        assert!(fetched.tensors().get("kv").expect("kv").as_slice::<u32>().expect("u32") == all);
        client.close().await;
    });
    drop((pusher, near, far));
    scene.end();
}
