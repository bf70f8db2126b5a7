//! A sidecar inside the process that uses it: it has the same sockets, sessions and rules, and leaves nothing behind
//! when it stops.

use std::time::Duration;
use transfer_client::{BlockingClient, DType, Error, FailureCode};
use transfer_core::tensor::Name;
use transfer_server::Sidecar;

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
