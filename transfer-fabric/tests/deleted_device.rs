//! A device that is deleted. In a program of its own: librdmacm, once used, keeps the device open until its process ends.

#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;
use std::time::{Duration, Instant};
use transfer_core::fabric::{Fabric, FabricEvent, LinkId};
use transfer_fabric::verbs::{VerbsConfig, VerbsFabric};

/// Two fabrics with a link that is up.
fn linked(device: Option<&str>) -> [VerbsFabric; 2] {
    let config = VerbsConfig { device: device.map(str::to_owned), ..VerbsConfig::default() };
    let mut fabrics = [0, 1].map(|_| VerbsFabric::open(config.clone()).unwrap());
    let link = LinkId(1);
    let offer = fabrics[0].offer(link).unwrap();
    let answer = fabrics[1].accept(link, &offer).unwrap();
    fabrics[0].connect(link, &answer).unwrap();
    let mut connected = [false; 2];
    let start = Instant::now();
    while connected != [true; 2] {
        for (fabric, connected) in fabrics.iter_mut().zip(&mut connected) {
            fabric.poll(&mut |event| match event {
                FabricEvent::Connected { .. } => *connected = true,
                other => panic!("{other:?}"),
            });
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{connected:?}");
    }
    fabrics
}

/// The kernel takes a software device from nobody who has it open: it is deleted only if fabrics that are dropped, with a link up, let go of
/// all that they had. Without a device, that is what opening one says; with a new one, it works.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn dropped_fabrics_let_go_of_it_and_a_new_one_works() {
    let fabrics = linked(None);
    let name = fabrics[0].device_name().to_owned();
    let mut deleting = Command::new("rdma").args(["link", "delete", &name]).spawn().unwrap();
    drop(fabrics);
    let start = Instant::now();
    let deleted = loop {
        if let Some(status) = deleting.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "somebody has the device open");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(deleted.success());
    let gone = VerbsConfig { device: Some(name.clone()), ..VerbsConfig::default() };
    let refused = VerbsFabric::open(gone).unwrap_err().to_string();
    assert!(refused.contains("no RDMA device"), "{refused}");
    let netdev = std::env::var("RDMA_NETDEV").unwrap_or_else(|_| "dummy0".to_owned());
    let added = Command::new("rdma").args(["link", "add", &name, "type", "rxe", "netdev", &netdev]).status();
    assert!(added.unwrap().success());
    linked(Some(&name));
}
