//! The sidecars and workers of a soak, and their restarts.

use super::leaks::Holdings;
use super::stops::{Member, Stops};
use crate::order::Spec;
use crate::status::Counts;
use crate::{Carrier, Scene, Worker, poll};
use std::time::Duration;

/// The number of workers on each node.
pub(super) const WORKERS: usize = 2;
/// The number of nodes.
pub(super) const NODES: usize = 2;

/// The size of a worker's arena: it has room for several versions of each of its tensors.
const ARENA_BYTES: u64 = 48 << 20;

#[derive(Debug)]
pub(super) struct Crew {
    /// The workers, which are dropped before the sidecars.
    workers: Vec<Option<Worker>>,
    /// How often each worker was started.
    pub(super) starts: Vec<u64>,
    /// How often each sidecar was restarted.
    pub(super) restarts: [u64; NODES],
    young: [Option<Holdings>; NODES],
    /// The number of greetings. It is also the version of the last one.
    greetings: u64,
    /// The processes that are stopped now.
    pub(super) stops: Stops,
    scene: Scene,
}

impl Crew {
    pub(super) fn new(carrier: Carrier) -> Crew {
        // The pool has room for two slots of each key of each worker of the other node, and for some fetches at a
        // time.
        let arguments = ["--pool-bytes", "112MiB", "--listen", "127.0.0.1:0"];
        let scene = Scene::over(carrier, &[&arguments, &arguments]);
        let workers = (0..NODES * WORKERS).map(|_| None).collect();
        let starts = vec![0; NODES * WORKERS];
        let mut crew = Crew {
            workers,
            starts,
            restarts: [0; NODES],
            young: [None; NODES],
            greetings: 0,
            stops: Stops::default(),
            scene,
        };
        (0..NODES * WORKERS).for_each(|i| crew.start(i));
        crew.settle();
        crew.note_young();
        crew
    }

    /// Returns the number of workers.
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the node of a worker.
    pub(super) fn node_of(worker: usize) -> usize {
        worker / WORKERS
    }

    /// Returns the name of a worker.
    pub(super) fn name_of(worker: usize) -> String {
        format!("w{worker}")
    }

    pub(super) fn worker(&mut self, worker: usize) -> &mut Worker {
        self.workers[worker].as_mut().expect("it was started")
    }

    /// Stops a member with SIGSTOP, in the middle of its work.
    pub(super) fn stop(&mut self, member: Member, lasts: Duration) {
        if self.stops.add(member, lasts) {
            match member {
                Member::Worker(worker) => self.worker(worker).freeze(),
                Member::Sidecar(node) => self.scene.nodes[node].freeze(),
            }
        }
    }

    /// Resumes the members whose stop is over. After a sidecar's long stop, all workers must reach each other again.
    pub(super) fn let_go_on(&mut self) {
        let (due, was_long) = self.stops.take_due();
        self.wake(due);
        if was_long {
            // A stopped member reaches no other.
            self.let_all_go_on();
            self.settle();
        }
    }

    /// Resumes all members.
    pub(super) fn let_all_go_on(&mut self) {
        let all = self.stops.take_all();
        self.wake(all);
    }

    fn wake(&mut self, members: Vec<Member>) {
        for member in members {
            match member {
                Member::Worker(worker) => self.worker(worker).go_on(),
                Member::Sidecar(node) => self.scene.nodes[node].go_on(),
            }
        }
    }

    fn start(&mut self, worker: usize) {
        let node = &self.scene.nodes[Crew::node_of(worker)];
        let start =
            || Worker::of(node, &Crew::name_of(worker)).arena_bytes(ARENA_BYTES).with_async_client().try_start();
        // The sidecar may not know yet that the worker's previous process has ended.
        let started = poll(start).unwrap_or_else(|trouble| panic!("worker {worker} does not come back: {trouble}"));
        self.workers[worker] = Some(started);
        self.starts[worker] += 1;
    }

    /// Ends a worker in the middle of its work, by SIGKILL or in order, and starts it again.
    pub(super) fn restart_worker(&mut self, worker: usize, kill: bool) {
        if !kill {
            self.let_all_go_on();
        }
        self.stops.take_if(Member::Worker(worker));
        let old = self.workers[worker].take().expect("it was started");
        if kill {
            // SIGKILL also ends a process that is stopped.
            old.kill();
            self.let_all_go_on();
        } else {
            assert!(old.close().success(), "worker {worker} ends in order");
        }
        self.start(worker);
        self.greet(worker);
    }

    /// Kills a sidecar in the middle of its work, and starts it again with its workers.
    pub(super) fn restart_sidecar(&mut self, node: usize) {
        // A stopped sidecar is killed without this check, because it cannot release anything.
        if !self.stops.take_if(Member::Sidecar(node)) {
            self.let_all_go_on();
            self.hold_against_young(node);
        }
        self.young[node] = None;
        self.scene.nodes[node].kill();
        let mine = node * WORKERS..(node + 1) * WORKERS;
        for worker in mine.clone() {
            self.stops.take_if(Member::Worker(worker));
            self.workers[worker] = None;
        }
        self.let_all_go_on();
        self.scene.nodes[node].restart();
        self.restarts[node] += 1;
        mine.for_each(|worker| self.start(worker));
        self.settle();
        self.note_young();
    }

    /// Checks that the workers of the other node can push to this worker and fetch from it, and the reverse.
    fn greet(&mut self, worker: usize) {
        for other in 0..self.len() {
            if Crew::node_of(other) == Crew::node_of(worker) {
                continue;
            }
            self.greetings += 1;
            let (version, spec) = (self.greetings + 1, Spec::bytes(1000, self.greetings));
            for (from, to) in [(other, worker), (worker, other)] {
                let key = format!("greeting/{from}/{to}");
                let target = Crew::name_of(to);
                // An attempt may have published its version and not arrived, so each has a version of its own.
                let pushed = poll(|| {
                    self.greetings += 1;
                    let version = self.greetings;
                    self.worker(from).push(&key, spec.clone()).version(version).to(&target).start().wait()
                });
                let fetched =
                    pushed.and_then(|_| poll(|| self.worker(to).fetch(&key).at_least(version).start().wait()));
                // The sender fetches it back, out of the memory where it has landed. So two sidecars on one host pass
                // each other what they need for that before their resources are noted.
                let fetched = fetched
                    .and_then(|there| poll(|| self.worker(from).fetch(&key).start().wait()).map(|back| [there, back]));
                match fetched {
                    Ok(both) => assert!(both.iter().all(|fetched| fetched.sum == spec.sum()), "{key}"),
                    Err(trouble) => panic!("worker {from} does not reach worker {to} again: {trouble}"),
                }
            }
        }
    }

    /// Checks that each worker reaches the workers of the other node.
    fn settle(&mut self) {
        (0..WORKERS).for_each(|worker| self.greet(worker));
    }

    fn note_young(&mut self) {
        for (node, young) in self.young.iter_mut().enumerate() {
            young.get_or_insert_with(|| Holdings::of(&self.scene.nodes[node]));
        }
    }

    /// Checks that a sidecar has no more system resources than at its start, with the same workers and links.
    fn hold_against_young(&mut self, node: usize) {
        // The value is taken, because the next sidecar is another process.
        let Some(young) = self.young[node].take() else { return };
        let sidecar = &self.scene.nodes[node];
        let now = young.until_again(sidecar);
        println!("soak: sidecar {}: {young} at its start, {now} now", sidecar.name());
    }

    /// Checks that all workers still reach each other. Then all processes end, and nothing may be left.
    pub(super) fn end(mut self) {
        self.let_all_go_on();
        self.settle();
        (0..NODES).for_each(|node| self.hold_against_young(node));
        for (number, worker) in self.workers.drain(..).enumerate() {
            assert!(worker.expect("it was started").close().success(), "worker {number} ends in order");
        }
        for node in 0..NODES {
            self.scene.nodes[node].until("nothing is left", |status| Counts::of(status).is_nothing());
            if self.restarts[node] > 0 {
                self.scene.note_idle_of(node);
            }
        }
        self.scene.end();
    }
}
