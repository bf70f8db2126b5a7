//! A sidecar inside the process that uses it: it has the same sockets, sessions and rules, and leaves nothing behind
//! when it stops.

use std::time::Duration;
use transfer_client::{BlockingClient, DType, Error, FabricKind, FailureCode, NodeConfig, embedded_addresses};
use transfer_core::tensor::Name;
use transfer_server::Sidecar;
use transfer_tests::{Carrier, Scene, Spec};

#[test]
fn embedded_sidecar_serves_its_own_process_and_leaves_nothing() {
    let sidecar = Sidecar::embedded(Name::new("here").expect("a name")).expect("a sidecar");
    let socket = sidecar.addresses().socket.clone();
    let connect =
        |name: &str| BlockingClient::connect(&socket).name(name).arena_bytes(1 << 20).call().expect("a session");
    let (giver, taker) = (connect("giver"), connect("taker"));
    let mut w = giver.allocate(DType::F32, [100, 10]).expect("room");
    w.as_mut_slice::<f32>().expect("f32").fill(0.5);
    giver.push_tensor("w", w).version(3).call().expect("a push");
    let w = taker.fetch("w").at_least(3).call().expect("a fetch");
    assert!(w.as_slice::<f32>().expect("f32").iter().all(|x| *x == 0.5));
    assert_eq!((w.version(), w.report().copied), (3, 0));
    let nowhere = taker.fetch("nowhere").timeout(Duration::from_secs(2)).call().map(|_| ());
    assert_eq!(nowhere.expect_err("nobody pushes it").failure_code(), Some(FailureCode::UnknownKey));
    sidecar.stop();
    assert!(!socket.exists() && !socket.parent().is_some_and(std::path::Path::exists), "the folder is removed");
    // Calls fail as with any sidecar that has ended.
    let gone = giver.fetch("w").call().map(|_| ()).expect_err("it is gone");
    assert!(matches!(gone, Error::SidecarGone(_)), "{gone}");
    assert!(w.as_slice::<f32>().expect("f32").iter().all(|x| *x == 0.5), "what was fetched stays readable");
}

/// The configuration of a node inside this process that joins the scene's directory, with the scene's fabric.
fn node_of(scene: &Scene, carrier: Carrier) -> NodeConfig {
    let mut config = NodeConfig::new("inside").set("listen", "127.0.0.1:0").set("pool_bytes", "16MiB");
    // Where the others meet.
    config = config.set("shm_dir", scene.a().folder().display());
    config = config.set("directory", format!("http://{}", scene.a().address()));
    for pair in carrier.arguments().chunks_exact(2) {
        config = config.set(pair[0].trim_start_matches("--").replace('-', "_"), pair[1]);
    }
    config
}

/// One test for all of it, because a process has one such sidecar.
#[test]
fn sidecar_of_a_process_is_a_node_beside_others() {
    for (carrier, fabric) in [(Carrier::Tcp, FabricKind::Tcp), (Carrier::Shm, FabricKind::Shm)] {
        let scene = Scene::over(carrier, &[&["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"]]);
        let mut outside = scene.a().worker("outside");
        let config = node_of(&scene, carrier);
        let inside = BlockingClient::embedded_with(config.clone()).name("inside").arena_bytes(1 << 20);
        let inside = inside.call().expect("a session");
        assert_eq!(inside.node(), "inside");

        // Both ways, fetched and pushed.
        let spec = Spec::bytes(100_000, 7);
        outside.push("out", spec.clone()).get();
        let fetched = inside.fetch("out").call().expect("a fetch");
        assert_eq!((fetched.report().fabric, fetched.as_bytes().len()), (fabric, 100_000));
        inside.push_slice("in", [4], &[1.0_f32, 2.0, 3.0, 4.0]).call().expect("a push");
        assert_eq!(outside.fetch("in").get().report.fabric, carrier.name());
        let pushed = inside.push_slice("to", [4], &[1.0_f32; 4]).to("outside").call().expect("a push to a worker");
        assert_eq!(pushed.report.fabric, fabric);
        outside.push("to-inside", spec.clone()).to("inside").get();
        assert_eq!(inside.fetch("to-inside").call().expect("a fetch").report().fabric, FabricKind::Local);

        // Everyone of this process shares it, with the same configuration or with none; and nobody has another one.
        let again = BlockingClient::embedded_with(config.clone()).name("again").call().expect("the same");
        let any = BlockingClient::embedded().name("any").call().expect("whichever runs");
        assert_eq!((again.node(), any.node()), ("inside", "inside"));
        let other = BlockingClient::embedded_with(config.set("pool_bytes", "32MiB")).call().map(|_| ());
        let other = other.expect_err("it runs with another one").to_string();
        assert!(other.contains(r#"its pool_bytes is "16MiB", not "16MiB, 32MiB""#), "{other}");

        let address = embedded_addresses().and_then(|addresses| addresses.grpc).expect("it listens");
        assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
        drop((fetched, inside, again, any));
        assert_eq!(embedded_addresses(), None);
        drop(outside);
        scene.end();
    }
    let wrong =
        BlockingClient::embedded_with(NodeConfig::new("inside").set("listne", "127.0.0.1:0")).call().map(|_| ());
    let wrong = wrong.expect_err("there is no such key").to_string();
    assert!(wrong.contains(r#"the key "listne" is none that transferd knows; "listen" is one"#), "{wrong}");
    assert_eq!(embedded_addresses(), None);
}
