//! Copies between sidecars that prove who they are: who may copy, and what goes in the clear.

use super::World;
use transfer_tests::{Authority, Carrier, Ctl, Identity, Scene};

struct Certificates {
    _folder: tempfile::TempDir,
    a: Identity,
    b: Identity,
    ops: Identity,
    other: Identity,
}

impl Certificates {
    fn new() -> Certificates {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new(folder.path(), "ca");
        let [a, b] = ["a", "b"].map(|name| authority.identity(&[name, "127.0.0.1"]));
        let [ops, other] = ["ops", "other"].map(|name| authority.identity(&[name]));
        Certificates { _folder: folder, a, b, ops, other }
    }

    /// Starts two sidecars over a fabric, with a folder for copies at b.
    fn world(&self, carrier: Carrier) -> World {
        let (folder, files) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let common = ["--pool-bytes", "8MiB", "--listen", "127.0.0.1:0", "--admins", "ops"];
        let a = [&common[..], &self.a.arguments()[..]].concat();
        let b = ["--copy-folder", folder.path().to_str().expect("a path")];
        let b = [&common[..], &self.b.arguments()[..], &b[..]].concat();
        let scene = Scene::over(carrier, &[&a, &b]);
        World { scene, folder, files }
    }
}

fn with(mut ctl: Ctl, identity: &Identity) -> Ctl {
    for word in identity.arguments() {
        ctl = ctl.arg(word);
    }
    ctl
}

// Promise: copy-callers, seen to fail
#[test]
fn with_certificates_the_role_is_that_of_the_certificate() {
    let certificates = Certificates::new();
    let world = certificates.world(Carrier::Tcp);
    let file = world.file("f", 100_000);
    with(world.copy(&file, "b:f"), &certificates.other).ends(1, &["may not administer here"]);
    with(world.copy(&file, "b:f"), &certificates.ops).ends(0, &["fabric=tcp"]);
    world.same(&file, "f");
    world.ends_with(&["f"]);
}

// Promise: copy-callers
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn over_rdma_bytes_go_in_the_clear_only_if_asked() {
    let certificates = Certificates::new();
    let world = certificates.world(Carrier::Verbs);
    let file = world.file("f", 100_000);
    let words = ["over verbs, which is not encrypted", "--unencrypted"];
    with(world.copy(&file, "b:f"), &certificates.ops).ends(1, &words);
    assert_eq!(world.names(), [""; 0]);
    with(world.copy(&file, "b:f").arg("--unencrypted"), &certificates.ops).ends(0, &["fabric=verbs"]);
    world.same(&file, "f");
    world.ends_with(&["f"]);
}
