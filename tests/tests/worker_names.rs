//! Who may take a worker's name: a peer that speaks the gRPC contract and has proved nothing takes none, whether somebody
//! has the name or nobody, and also while the directory has lost its state.

use tonic::transport::{Channel, Endpoint};
use transfer_proto::v1::{self, directory_item::Item, node_item};
use transfer_tests::stranger::{Attached, worker_up};
use transfer_tests::{Scene, Spec};

fn small(seed: u64) -> Spec {
    Spec::bytes(1000, seed)
}

async fn reached(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("everybody on the host may call")
}

fn claim(key: &str, owner: &str, takeover: bool) -> node_item::Item {
    let (key, owner, tenant) = (key.into(), owner.into(), "0".into());
    node_item::Item::Claim(v1::Claim { claim: 1, key, owner, takeover, resident: true, tenant, entered: 0 })
}

/// The directory's host restarts, and the stranger attaches before the node whose worker has the name.
// Promise: worker-names
// Promise: item-claim
// Promise: item-worker-up
#[test]
fn stranger_takes_no_worker_s_name() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut scene = Scene::two();
    let mut trainer = scene.b().worker("trainer-0");
    trainer.push("weights", small(1)).get();
    let before = scene.b().status().directory.as_ref().map_or(0, |d| d.attachments);
    scene.b().freeze();
    scene.nodes[0].kill();
    scene.nodes[0].restart();
    let evil = runtime.block_on(async {
        let mut evil = Attached::to(reached(&scene.a().address()).await, "evil").await.expect("it may attach");
        for worker in ["trainer-0", "trainer-1"] {
            match evil.ask(worker_up(worker, 0)).await.expect("an answer") {
                Item::WorkerDenied(denied) => {
                    assert!(
                        ["\"evil\"", "tenant 0", "--tls-cert"].iter().all(|part| denied.why.contains(part)),
                        "{denied:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        for takeover in [false, true] {
            let refused = evil.ask(claim("weights", "trainer-0", takeover)).await.expect("an answer");
            assert!(
                matches!(&refused, Item::ClaimRefused(refused) if refused.denied.contains("tenant 0")),
                "{refused:?}"
            );
        }
        evil
    });
    scene.b().go_on();
    scene
        .b()
        .until("it has attached again", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.attachments > before));
    let mut far = scene.a().worker("far");
    assert_eq!(far.fetch("weights").get().sum, small(1).sum());
    trainer.push("weights", small(2)).get();
    far.push("to/0", small(3)).to("trainer-0").get();
    // A worker gets the name that nobody had, and is found.
    let mut next = scene.b().worker("trainer-1");
    next.push("more", small(4)).get();
    far.push("to/1", small(5)).to("trainer-1").get();
    assert_eq!(next.fetch("to/1").get().sum, small(5).sum());
    drop((evil, trainer, far, next));
    scene.end();
}
