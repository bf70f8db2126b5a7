use super::*;
use transfer_core::protocol::Tenant;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Makes the item that enters a worker of a tenant.
fn up(worker: &str, tenant: &str, entered: u64) -> NodeItem {
    NodeItem::WorkerUp { worker: name(worker), tenant: name(tenant), entered }
}

/// Makes a tenant's question for the node of a worker.
fn whereabouts(worker: &str, tenant: &str) -> NodeItem {
    NodeItem::Request(DirectoryRequest::ResolveWorker { worker: name(worker), tenant: name(tenant) })
}

/// A directory that collects its answers.
struct World {
    registry: Registry,
    heard: Vec<(NodeNo, Answer)>,
}

impl World {
    fn new() -> World {
        World { registry: Registry::new(1000, Tenants::default()), heard: Vec::new() }
    }

    fn attach(&mut self, node: &str, incarnation: u64) -> NodeNo {
        self.attach_as(node, incarnation, Vouches::ForAll)
    }

    fn attach_as(&mut self, node: &str, incarnation: u64, word: Vouches) -> NodeNo {
        let hello = Hello {
            node: name(node),
            address: format!("{node}:1").into(),
            incarnation,
            local: "".into(),
            replace: false,
        };
        self.registry.may_attach(&hello, &word).unwrap();
        self.registry.attach(&hello, word).unwrap().0
    }

    fn say(&mut self, from: NodeNo, item: NodeItem) -> Vec<(NodeNo, Answer)> {
        self.registry.apply(from, item, &mut |to, answer| self.heard.push((to, answer)));
        std::mem::take(&mut self.heard)
    }

    fn claim(&mut self, from: NodeNo, k: &str, owner: &str) -> Answer {
        let mut heard = self.say(
            from,
            NodeItem::Claim {
                number: 7,
                claim: Claim {
                    key: key(k),
                    owner: name(owner),
                    tenant: Name::of_number(0),
                    resident: false,
                    takeover: false,
                    entered: 0,
                },
            },
        );
        assert_eq!(heard[0].0, from);
        heard.remove(0).1
    }
}

/// The claim of a node that had the key before.
fn again(k: &str, owner: &str, tenant: &str, entered: u64) -> NodeItem {
    let (key, owner, tenant) = (key(k), name(owner), name(tenant));
    NodeItem::Claim { number: 8, claim: Claim { key, owner, tenant, resident: false, takeover: false, entered } }
}

// Promise: earlier-owner, seen to fail
#[test]
fn later_of_two_earlier_owners_gets_the_key_from_a_new_directory() {
    let mut w = World::new();
    let (a, b, c) = (w.attach("a", 1), w.attach("b", 1), w.attach("c", 1));
    // This directory's numbers begin at 1001, so these are of an earlier one. There b took the key over, of which a was not told.
    assert_eq!(w.say(a, again("k", "ps", "0", 40)), [(a, Answer::Claimed { number: 8, sequence: 1001 })]);
    let lost = Answer::Lost { key: key("k"), owner: name("heir") };
    assert_eq!(w.say(b, again("k", "heir", "0", 50)), [(b, Answer::Claimed { number: 8, sequence: 1002 }), (a, lost)]);
    let refused = |number| Answer::ClaimRefused { number, owner: name("heir"), node: name("b") };
    // A number that this directory has given, or nobody can have, proves nothing. Nobody gets another tenant's key.
    for entered in [0, 40, 1001, 1003, u64::MAX] {
        assert_eq!(w.say(a, again("k", "ps", "0", entered)), [(a, refused(8))], "{entered}");
    }
    assert_eq!(w.say(a, again("k", "ps", "5", 60)), [(a, refused(8))]);
    // What this directory has granted itself is newer than all of them.
    w.claim(c, "l", "new");
    let refused = Answer::ClaimRefused { number: 8, owner: name("new"), node: name("c") };
    assert_eq!(w.say(a, again("l", "ps", "0", 40)), [(a, refused)]);
}

// Promise: earlier-owner, seen to fail
#[test]
fn key_stays_where_its_owner_has_pushed_it_last() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    let at = |w: &World| w.registry.key(&key("k")).unwrap().at.node.to_string();
    let lost = Answer::Lost { key: key("k"), owner: name("ps") };
    w.say(b, again("k", "ps", "0", 50));
    let heard = w.say(a, again("k", "ps", "0", 40));
    assert_eq!(heard, [(a, Answer::Claimed { number: 8, sequence: 40 }), (a, lost.clone())]);
    assert_eq!(at(&w), "b");
    // What is pushed now is newer than all of that.
    w.claim(a, "k", "ps");
    let heard = w.say(b, again("k", "ps", "0", 50));
    assert_eq!(heard, [(b, Answer::Claimed { number: 8, sequence: 50 }), (b, lost)]);
    assert_eq!(at(&w), "a");
}

// Promise: item-unclaim
#[test]
fn a_key_has_one_owner() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    assert_eq!(w.claim(a, "k", "ps"), Answer::Claimed { number: 7, sequence: 1001 });
    let refused = Answer::ClaimRefused { number: 7, owner: name("ps"), node: name("a") };
    assert_eq!(w.claim(b, "k", "other"), refused);
    // Another owner at the same node is refused, too.
    assert_eq!(w.claim(a, "k", "other"), refused);
    // Only the node of the entry can remove it.
    w.say(b, NodeItem::Request(DirectoryRequest::Unclaim { key: key("k") }));
    assert_eq!(w.registry.counts().keys, 1);
    w.say(a, NodeItem::Request(DirectoryRequest::Unclaim { key: key("k") }));
    assert_eq!(w.claim(b, "k", "other"), Answer::Claimed { number: 7, sequence: 1002 });
}

#[test]
fn a_key_moves_with_its_owner() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    w.claim(a, "k", "ps");
    assert_eq!(w.claim(b, "k", "ps"), Answer::Claimed { number: 7, sequence: 1002 });
    let at = w.registry.key(&key("k")).unwrap();
    assert_eq!((at.at.node.as_str(), at.sequence), ("b", 1002));
    // A late Unclaim of the previous node changes nothing.
    w.say(a, NodeItem::Request(DirectoryRequest::Unclaim { key: key("k") }));
    assert_eq!(w.registry.counts().keys, 1);
    // A repeated claim of the same node makes a new entry, too.
    assert_eq!(w.claim(b, "k", "ps"), Answer::Claimed { number: 7, sequence: 1003 });
}

#[test]
fn a_watch_is_answered_once() {
    let mut w = World::new();
    let (a, b, c) = (w.attach("a", 1), w.attach("b", 1), w.attach("c", 1));
    let resolve = |newer_than| NodeItem::Request(DirectoryRequest::Resolve { key: key("k"), newer_than });
    assert_eq!(w.say(b, resolve(0)), []);
    assert_eq!(w.say(b, resolve(0)), []);
    assert_eq!(w.say(c, resolve(0)), []);
    w.say(c, NodeItem::Request(DirectoryRequest::StopResolve { key: key("k") }));
    assert_eq!(w.registry.counts().watches, 1);

    let heard = w.say(
        a,
        NodeItem::Claim {
            number: 1,
            claim: Claim {
                key: key("k"),
                owner: name("ps"),
                tenant: Name::of_number(0),
                resident: false,
                takeover: false,
                entered: 0,
            },
        },
    );
    let at = NodeAt { node: name("a"), address: "a:1".into(), local: "".into(), incarnation: 1 };
    let located = |sequence| Answer::Located { key: key("k"), at: at.clone(), sequence };
    assert_eq!(heard, [(a, Answer::Claimed { number: 1, sequence: 1001 }), (b, located(1001))]);

    // The watch is answered at once, unless the watcher has found this entry to be wrong.
    assert_eq!(w.say(c, resolve(1000)), [(c, located(1001))]);
    assert_eq!(w.say(c, resolve(1001)), []);
    let heard = w.say(
        a,
        NodeItem::Claim {
            number: 2,
            claim: Claim {
                key: key("k"),
                owner: name("ps"),
                tenant: Name::of_number(0),
                resident: false,
                takeover: false,
                entered: 0,
            },
        },
    );
    assert_eq!(heard, [(a, Answer::Claimed { number: 2, sequence: 1002 }), (c, located(1002))]);
    assert_eq!(w.registry.counts().watches, 0);
}

#[test]
fn entries_of_a_node_end_with_it() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    w.claim(a, "k", "ps");
    w.claim(b, "l", "worker");
    w.say(a, up("ps", "0", 0));
    w.say(a, NodeItem::Request(DirectoryRequest::Resolve { key: key("m"), newer_than: 0 }));
    w.registry.detach(a);
    assert_eq!(w.registry.counts(), Counts { keys: 1, workers: 0, nodes: 1, watches: 0 });
    assert_eq!(w.claim(b, "k", "other"), Answer::Claimed { number: 7, sequence: 1004 });
    // Late items of the dead node change nothing.
    assert_eq!(
        w.say(
            a,
            NodeItem::Claim {
                number: 1,
                claim: Claim {
                    key: key("z"),
                    owner: name("ps"),
                    tenant: Name::of_number(0),
                    resident: false,
                    takeover: false,
                    entered: 0
                }
            }
        ),
        []
    );
    w.registry.detach(a);
    assert_eq!(w.registry.counts().keys, 2);
}

#[test]
fn returning_node_replaces_itself() {
    let mut w = World::new();
    let a = w.attach("a", 5);
    w.claim(a, "k", "ps");
    let hello =
        |incarnation| Hello { node: name("a"), address: "a:2".into(), incarnation, local: "".into(), replace: false };
    let (again, earlier) = w.registry.attach(&hello(5), Vouches::ForAll).unwrap();
    assert_eq!(earlier, Some(a));
    assert_eq!(w.registry.counts(), Counts { keys: 0, workers: 0, nodes: 1, watches: 0 });
    // The end of the old stream, noticed late, changes nothing.
    w.claim(again, "k", "ps");
    w.registry.detach(a);
    assert_eq!(w.registry.counts().keys, 1);
    // A sidecar with another incarnation, lower or higher, takes the name only if it asks to replace the holder or the
    // name is free.
    for incarnation in [4, 6] {
        let taken = w.registry.attach(&hello(incarnation), Vouches::ForAll).unwrap_err();
        assert_eq!(taken.by, again);
        assert!(taken.refused.to_string().contains("incarnation 5"), "{}", taken.refused);
    }
    let (third, _) = w.registry.attach(&Hello { replace: true, ..hello(4) }, Vouches::ForAll).unwrap();
    w.registry.detach(third);
    assert!(w.registry.attach(&hello(6), Vouches::ForAll).is_ok());
}

/// Two workers have one name. A claim of one does not count for the other.
// Promise: name-at-two-nodes, seen to fail
#[test]
fn worker_cannot_claim_by_a_name_entered_at_another_node() {
    let mut w = World::new();
    let (a, b, c) = (w.attach("a", 1), w.attach("b", 1), w.attach("c", 1));
    w.say(a, up("ps", "0", 0));
    w.claim(a, "k", "ps");
    let claim = |resident, takeover| NodeItem::Claim {
        number: 7,
        claim: Claim { key: key("k"), owner: name("ps"), tenant: Name::of_number(0), resident, takeover, entered: 0 },
    };
    let refused = Answer::ClaimRefused { number: 7, owner: name("ps"), node: name("a") };
    assert_eq!(w.say(b, claim(true, false)), [(b, refused.clone())]);
    assert_eq!(w.say(b, claim(true, true)), [(b, refused)]);
    assert_eq!(w.registry.key(&key("k")).unwrap().at.node, name("a"));
    // c claims a key that landed there for the entered worker. Then the worker's own node claims it back.
    assert!(matches!(w.say(c, claim(false, false))[..], [(_, Answer::Claimed { .. }), (_, Answer::Lost { .. })]));
    assert!(matches!(w.say(a, claim(true, false))[..], [(_, Answer::Claimed { .. }), (_, Answer::Lost { .. })]));
}

// Promise: item-worker-down
#[test]
fn worker_is_connected_to_one_node() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    let admitted = |entered| Answer::WorkerAdmitted { worker: name("ps"), entered };
    assert_eq!(w.say(a, up("ps", "0", 0)), [(a, admitted(1001))]);
    assert_eq!(w.say(b, up("ps", "0", 0)), [(b, Answer::WorkerRefused { worker: name("ps"), node: name("a") })]);
    let ask = || whereabouts("ps", "0");
    let located =
        |node: Option<&str>| Answer::WorkerLocated { worker: name("ps"), tenant: name("0"), node: node.map(name) };
    assert_eq!(w.say(b, ask()), [(b, located(Some("a")))]);
    // Only the worker's own node can remove it.
    w.say(b, NodeItem::WorkerDown { worker: name("ps") });
    assert_eq!(w.say(b, ask()), [(b, located(Some("a")))]);
    w.say(a, NodeItem::WorkerDown { worker: name("ps") });
    assert_eq!(w.say(b, ask()), [(b, located(None))]);
    assert_eq!(w.say(b, up("ps", "0", 0)), [(b, admitted(1002))]);
    let at = NodeAt { node: name("b"), address: "b:1".into(), local: "".into(), incarnation: 1 };
    let found = Answer::NodeLocated { node: name("b"), at: Some(at) };
    assert_eq!(w.say(a, NodeItem::ResolveNode { node: name("b") }), [(a, found)]);
    let unknown = Answer::NodeLocated { node: name("z"), at: None };
    assert_eq!(w.say(a, NodeItem::ResolveNode { node: name("z") }), [(a, unknown)]);
}

/// Makes a claim of a worker `ps` of this tenant.
fn of_tenant(k: &str, tenant: &str, takeover: bool) -> NodeItem {
    let (key, owner, tenant) = (key(k), name("ps"), name(tenant));
    NodeItem::Claim { number: 7, claim: Claim { key, owner, tenant, resident: false, takeover, entered: 0 } }
}

fn denied(heard: &[(NodeNo, Answer)]) -> String {
    let [(_, Answer::ClaimDenied { number: 7, why })] = heard else { panic!("{heard:?}") };
    why.to_string()
}

// Promise: item-claim
#[test]
fn key_belongs_to_its_tenant() {
    let mut w = World::new();
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    assert!(matches!(w.say(a, of_tenant("k", "7", false))[..], [(_, Answer::Claimed { .. })]));
    // A worker of the same name and another tenant is a different worker.
    for node in [a, b] {
        let heard = w.say(node, of_tenant("k", "8", false));
        assert_eq!(heard, [(node, Answer::ClaimRefused { number: 7, owner: name("ps"), node: name("a") })]);
        let why = denied(&w.say(node, of_tenant("k", "8", true)));
        assert!(["\"k\"", "tenant 7", "tenant 8"].iter().all(|part| why.contains(part)), "{why}");
    }
    assert!(matches!(w.say(b, of_tenant("k", "7", true))[..], [(_, Answer::Claimed { .. }), (_, Answer::Lost { .. })]));
}

// Promise: tenants-of-a-sidecar, seen to fail
// Promise: item-claim
#[test]
fn node_claims_only_for_tenants_it_may_speak_for() {
    let mut tenants = Tenants::default();
    let train = tenants.enter("train").unwrap();
    tenants.reserve("prod/", vec![train]);
    let mut w = World { registry: Registry::new(1000, tenants), heard: Vec::new() };
    let hello = |node: &str| Hello {
        node: name(node),
        address: "h:1".into(),
        incarnation: 1,
        local: "".into(),
        replace: false,
    };
    let a = w.registry.attach(&hello("a"), Vouches::For([train].into(), "it is a test".into())).unwrap().0;
    let b = w.registry.attach(&hello("b"), Vouches::ForAll).unwrap().0;
    assert!(matches!(w.say(a, of_tenant("k", "train", false))[..], [(_, Answer::Claimed { .. })]));
    let why = denied(&w.say(a, of_tenant("l", "7", false)));
    assert!(["\"a\"", "tenant 7", "it is a test"].iter().all(|part| why.contains(part)), "{why}");
    assert!(denied(&w.say(b, of_tenant("l", "evil", false))).contains("\"evil\""));
    assert!(denied(&w.say(b, of_tenant("prod/k", "7", false))).contains("prod/k"));
    assert_eq!(w.registry.counts().keys, 1);
}

/// An entered key can be claimed again, and a removed key makes room.
// Promise: bounded-keys, seen to fail
#[test]
fn keys_of_a_node_are_bounded() {
    let mut directory = Registry::new(0, Tenants::default());
    directory.limit_keys(2);
    let hello = |text: &str| Hello {
        node: name(text),
        address: "h:1".into(),
        incarnation: 1,
        local: "".into(),
        replace: false,
    };
    let (a, _) = directory.attach(&hello("a"), Vouches::ForAll).unwrap();
    let (b, _) = directory.attach(&hello("b"), Vouches::ForAll).unwrap();
    let mut say = |from, item| {
        let mut heard = Vec::new();
        directory.apply(from, item, &mut |to, answer| heard.push((to, answer)));
        heard
    };
    let claim = |claim, text: &str, takeover| {
        let (key, owner) = (Key::new(text).unwrap(), name(if takeover { "v" } else { "w" }));
        NodeItem::Claim {
            number: claim,
            claim: Claim { key, owner, tenant: Name::of_number(0), resident: false, takeover, entered: 0 },
        }
    };
    let entered = |heard: &[(NodeNo, Answer)]| matches!(heard[0], (_, Answer::Claimed { .. }));
    assert!(entered(&say(a, claim(1, "k1", false))) && entered(&say(a, claim(2, "k2", false))));
    let heard = say(a, claim(3, "k3", false));
    let [(to, Answer::ClaimFull { number: 3, why })] = &heard[..] else { panic!("{heard:?}") };
    assert!(*to == a && why.contains("node a has 2 keys") && why.contains("directory_keys_per_node"), "{why}");
    assert!(entered(&say(a, claim(4, "k1", false))), "it has that one");
    assert!(entered(&say(b, claim(1, "k3", false))), "it is another node");
    assert!(matches!(say(a, claim(5, "k3", true))[0].1, Answer::ClaimFull { .. }), "taking over is no way around");
    say(a, NodeItem::Request(DirectoryRequest::Unclaim { key: Key::new("k2").unwrap() }));
    assert!(entered(&say(a, claim(6, "k3", true))));
}

/// Any caller can use any name. A sidecar with weaker proof does not get the name of a sidecar with stronger proof,
/// whatever incarnation it states, and also not with `replace`.
// Promise: weaker-proof, seen to fail
// Promise: attacker-as-another-user
// Promise: item-hello
#[test]
fn name_is_refused_to_a_node_with_weaker_proof() {
    let mut w = World::new();
    w.attach("b", 5);
    let one = Vouches::For([Tenant::User(1)].into(), "user id 1 runs it".into());
    let hello = |node, incarnation, replace| Hello {
        node: name(node),
        address: "x:1".into(),
        incarnation,
        local: "".into(),
        replace,
    };
    for (incarnation, replace) in [(5, false), (6, false), (6, true)] {
        let refused = w.registry.may_attach(&hello("b", incarnation, replace), &one).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("user id 1 runs it") && text.contains("\"b\""), "{text}");
    }
    assert_eq!(w.registry.may_attach(&hello("b", 6, true), &Vouches::ForAll), Ok(()));
    // A sidecar gets a free name, and its own name again. A sidecar with stronger proof gets the name, too.
    let free = hello("c", 1, false);
    assert_eq!(w.registry.may_attach(&free, &one), Ok(()));
    w.registry.attach(&free, one.clone()).unwrap();
    assert_eq!(w.registry.may_attach(&free, &one), Ok(()));
    assert_eq!(w.registry.may_attach(&free, &Vouches::ForAll), Ok(()));
    let nothing = || Vouches::for_nobody("it has shown nothing");
    assert!(w.registry.may_attach(&free, &nothing()).is_err());
    // A sidecar with stronger proof does not wait for the end of a holder with weaker proof, which may answer for ever.
    for (node, weaker, stronger) in
        [("d", nothing(), one.clone()), ("e", one.clone(), Vouches::ForAll), ("f", nothing(), Vouches::ForAll)]
    {
        let (holder, _) = w.registry.attach(&hello(node, 1, false), weaker).unwrap();
        let (_, earlier) = w.registry.attach(&hello(node, 2, false), stronger.clone()).unwrap();
        assert_eq!(earlier, Some(holder), "{node}");
        assert!(w.registry.attach(&hello(node, 3, false), stronger).is_err(), "{node}");
    }
}

// Promise: bounded-directory, seen to fail
// Promise: item-resolve
#[test]
fn watches_and_workers_of_a_node_are_bounded() {
    let mut w = World::new();
    w.registry.limit_keys(3);
    let (a, b) = (w.attach("a", 1), w.attach("b", 1));
    let watch = |n: u32| NodeItem::Request(DirectoryRequest::Resolve { key: key(&format!("k{n}")), newer_than: 0 });
    for n in (0..5).chain(0..5) {
        w.say(a, watch(n));
    }
    assert_eq!(w.registry.counts().watches, 3);
    w.say(b, watch(0));
    assert_eq!(w.registry.counts().watches, 4, "each node has its own");
    // One watch is stopped, and one is answered, so there is room for two.
    w.say(a, NodeItem::Request(DirectoryRequest::StopResolve { key: key("k1") }));
    w.say(a, NodeItem::Request(DirectoryRequest::StopResolve { key: key("k1") }));
    w.claim(b, "k2", "ps");
    (5..10).for_each(|n| drop(w.say(a, watch(n))));
    assert_eq!(w.registry.counts().watches, 4);

    let up = |n: u32| up(&format!("w{n}"), "0", 0);
    for n in (0..3).chain(0..3) {
        assert!(matches!(w.say(a, up(n))[..], [(_, Answer::WorkerAdmitted { .. })]), "{n}");
    }
    let heard = w.say(a, up(3));
    let [(_, Answer::WorkerDenied { why, .. })] = &heard[..] else { panic!("{heard:?}") };
    assert!(why.contains("\"a\" has entered 3 workers") && why.contains("directory_keys_per_node"), "{why}");
    assert!(matches!(w.say(b, up(3))[..], [(_, Answer::WorkerAdmitted { .. })]));
    w.say(a, NodeItem::WorkerDown { worker: name("w0") });
    assert!(matches!(w.say(a, up(4))[..], [(_, Answer::WorkerAdmitted { .. })]));
    w.registry.detach(a);
    assert_eq!(w.registry.counts(), Counts { keys: 1, workers: 1, nodes: 1, watches: 1 });
}

/// A name belongs to a tenant, as a key does, and a node enters workers of the tenants alone that it may speak for.
// Promise: worker-names, seen to fail
// Promise: item-worker-up
// Promise: item-lookups
#[test]
fn worker_s_name_is_its_tenant_s() {
    let mut w = World::new();
    let only = |user| Vouches::For([Tenant::User(user)].into(), "it is a test".into());
    let (ours, theirs) = (w.attach("a", 1), w.attach_as("b", 1, only(8)));
    let nobody_s = w.attach_as("c", 1, Vouches::for_nobody("it has shown nothing"));
    for (node, name_of, why) in [(theirs, "\"b\"", "it is a test"), (nobody_s, "\"c\"", "it has shown nothing")] {
        let heard = w.say(node, up("ps", "7", 0));
        let [(_, Answer::WorkerDenied { why: said, .. })] = &heard[..] else { panic!("{heard:?}") };
        assert!([name_of, "tenant 7", why].iter().all(|part| said.contains(part)), "{said}");
    }
    let heard = w.say(ours, up("ps", "evil", 0));
    assert!(matches!(&heard[..], [(_, Answer::WorkerDenied { why, .. })] if why.contains("\"evil\"")), "{heard:?}");
    // Each tenant has a worker of that name, and finds its own.
    for (node, tenant) in [(theirs, "8"), (ours, "7")] {
        assert!(matches!(w.say(node, up("ps", tenant, 0))[..], [(_, Answer::WorkerAdmitted { .. })]));
    }
    for (tenant, at) in [("7", "a"), ("8", "b"), ("9", "b")] {
        let node = Some(name(at));
        let located = Answer::WorkerLocated { worker: name("ps"), tenant: name(tenant), node };
        assert_eq!(w.say(nobody_s, whereabouts("ps", tenant)), [(nobody_s, located)]);
    }
    // The name of one tenant's worker keeps no other tenant's worker from its keys.
    let claim = NodeItem::Claim {
        number: 7,
        claim: Claim {
            key: key("k"),
            owner: name("ps"),
            tenant: name("7"),
            resident: true,
            takeover: false,
            entered: 0,
        },
    };
    assert!(matches!(w.say(ours, claim)[..], [(_, Answer::Claimed { .. })]));
    assert_eq!(w.registry.counts().workers, 2);
    w.registry.detach(theirs);
    assert_eq!(w.registry.counts().workers, 1);
}

/// The directory has restarted, and numbers its entries from 1001 on.
// Promise: name-at-two-nodes, seen to fail
// Promise: item-entered
#[test]
fn worker_that_was_entered_before_the_restart_keeps_its_name() {
    let mut w = World::new();
    let nodes = ["a", "b", "c"].map(|node| w.attach(node, 1));
    let [fresh, before, later] = nodes;
    let refused = |to, by: &str| (to, Answer::WorkerRefused { worker: name("ps"), node: name(by) });
    let admitted = |to, entered| (to, Answer::WorkerAdmitted { worker: name("ps"), entered });
    assert_eq!(w.say(fresh, up("ps", "0", 0)), [admitted(fresh, 1001)]);
    // No number of this directory is proof, and none that it has not given.
    for entered in [0, 1001, 1002, u64::MAX] {
        assert_eq!(w.say(before, up("ps", "0", entered)), [refused(before, "a")], "{entered}");
    }
    assert_eq!(w.say(before, up("ps", "0", 500)), [refused(fresh, "b"), admitted(before, 1002)]);
    // The one that was entered later of two is the one that the earlier directory had at last.
    assert_eq!(w.say(fresh, up("ps", "0", 499)), [refused(fresh, "b")]);
    assert_eq!(w.say(later, up("ps", "0", 501)), [refused(before, "c"), admitted(later, 1003)]);
    assert_eq!(w.registry.counts().workers, 1);
    // Another tenant's number counts for nothing here.
    assert!(matches!(w.say(fresh, up("ps", "9", 999))[..], [(_, Answer::WorkerAdmitted { .. })]));
    assert_eq!(w.say(before, up("ps", "0", 0)), [refused(before, "c")]);
}

// Promise: bounded-keys, seen to fail
// Promise: item-resolve
#[test]
fn nodes_that_have_proved_nothing_get_little() {
    let mut w = World::new();
    let nothing = || Vouches::for_nobody("it has shown nothing");
    let known = w.attach("known", 1);
    let nodes: Vec<_> = (0..MAX_UNPROVED_NODES).map(|n| w.attach_as(&format!("n{n}"), 1, nothing())).collect();
    let hello = |node: &str| Hello {
        node: name(node),
        address: "h:1".into(),
        incarnation: 1,
        local: "".into(),
        replace: false,
    };
    let text = w.registry.may_attach(&hello("one-more"), &nothing()).unwrap_err().to_string();
    assert!(["64", "\"one-more\"", "it has shown nothing"].iter().all(|part| text.contains(part)), "{text}");
    // Those that are attached may come again, and who has proved something comes in.
    assert_eq!(w.registry.may_attach(&hello("n0"), &nothing()), Ok(()));
    assert_eq!(w.registry.may_attach(&hello("one-more"), &Vouches::ForAll), Ok(()));
    for n in 0..2 * MAX_UNPROVED_WATCHES {
        for node in [known, nodes[0], nodes[1]] {
            w.say(node, NodeItem::Request(DirectoryRequest::Resolve { key: key(&format!("k{n}")), newer_than: 0 }));
            w.say(node, up(&format!("w{n}"), "0", 0));
        }
    }
    let counts = w.registry.counts();
    assert_eq!((counts.watches, counts.workers), (4 * MAX_UNPROVED_WATCHES, 2 * MAX_UNPROVED_WATCHES));
    assert_eq!(counts.keys, 0);
    w.registry.detach(nodes[2]);
    assert_eq!(w.registry.may_attach(&hello("one-more"), &nothing()), Ok(()));
}
