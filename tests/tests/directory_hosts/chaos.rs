//! Hosts of the directory and other nodes are killed, stopped, restarted and told to hand over at random, while the workers of two
//! nodes go on. `TRANSFER_TEST_NODES=29 TRANSFER_TEST_ROUNDS=20` makes it 32 sidecars and about a minute.

use super::{Cluster, DEADLINE, small};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use transfer_tests::Worker;
use transfer_tests::ctl::Ctl;

/// The hosts; the two nodes whose workers go on; and the other ones from here on.
const FIRST_VICTIM: usize = 5;

/// What happens to a sidecar.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Terminate,
    /// SIGSTOP, until the workers have gone on.
    Freeze,
    /// The directory moves to another host.
    Move,
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// What both workers do while something happens: new keys are found, and no key gets a second owner.
fn go_on(round: usize, [d, e]: &mut [Worker; 2]) {
    for i in 0..3 {
        let (mine, other) = (format!("d/{round}/{i}"), format!("e/{round}/{i}"));
        d.push(&mine, small(i)).timeout(2 * DEADLINE).get();
        e.push(&other, small(i + 7)).timeout(2 * DEADLINE).get();
        assert_eq!(e.fetch(&mine).timeout(2 * DEADLINE).get().sum, small(i).sum());
        assert_eq!(d.fetch(&other).timeout(2 * DEADLINE).get().sum, small(i + 7).sum());
        e.push(&mine, small(99)).timeout(2 * DEADLINE).trouble().expect("KeyOwned", &["worker-d"]);
    }
}

// Promise: directory-takeover
#[test]
fn nothing_fails_while_hosts_and_nodes_are_killed_stopped_and_restarted() {
    chaos(|others| Cluster::of(others, &[]), |_| ());
}

/// Before each round something happens to what says which host leads.
pub(super) fn chaos(start: impl FnOnce(usize) -> Cluster, mut round_begins: impl FnMut(&mut SmallRng)) {
    let seed = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (others, rounds) = (setting("TRANSFER_TEST_NODES", 3), setting("TRANSFER_TEST_ROUNDS", 3));
    let mut cluster = start(others);
    let mut steady = [cluster.worker(3), cluster.worker(4)];
    for round in 0..rounds {
        // One host at a time, so more than half of them live, and perhaps another node.
        let host = cluster.leader(None);
        let host = if random.random_bool(0.7) { host } else { (host + 1) % 3 };
        let fault = match random.random_range(0..5) {
            0 => Fault::Move,
            1 => Fault::Terminate,
            2 => Fault::Kill,
            _ => Fault::Freeze,
        };
        let victim = (others > 2 && random.random_bool(0.5)).then(|| random.random_range(FIRST_VICTIM..3 + others));
        round_begins(&mut random);
        println!("round {round}: {fault:?} of host {host}, and node {victim:?} is killed");
        if let Some(node) = victim {
            cluster.nodes[node].kill();
        }
        match fault {
            Fault::Kill => cluster.nodes[host].kill(),
            Fault::Terminate => assert!(cluster.nodes[host].terminate().success()),
            Fault::Freeze => cluster.nodes[host].freeze(),
            // Another host may lead meanwhile, which says so.
            Fault::Move => drop(Ctl::of(&cluster.nodes[host], &["directory", "move"]).run()),
        }
        go_on(round, &mut steady);
        match fault {
            Fault::Kill | Fault::Terminate => cluster.nodes[host].restart(),
            Fault::Freeze => cluster.nodes[host].go_on(),
            Fault::Move => {}
        }
        if let Some(node) = victim {
            cluster.nodes[node].restart();
        }
        cluster.all_attached();
        let node = victim.unwrap_or(host);
        let mut back = cluster.nodes[node].worker(&format!("back-{round}"));
        let key = format!("d/{round}/0");
        assert_eq!(back.fetch(&key).timeout(DEADLINE).get().sum, small(0).sum());
        assert!(back.close().success());
    }
    // What was entered first is known to the last host.
    assert_eq!(steady[1].fetch("d/0/1").timeout(DEADLINE).get().sum, small(1).sum());
}
