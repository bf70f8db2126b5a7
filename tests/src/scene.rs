//! Sidecars, and bystanders that must not be affected by a test.

use crate::calls::{done, number};
use crate::container::Container;
use crate::order::{ExchangeOrder, Order};
use crate::status::Counts;
use crate::{Carrier, Sidecar, Worker, poll};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// The number of further rounds that shows that the bystanders continue.
const ROUNDS: u64 = 5;

/// The size of a bystander's tensor.
const LEN: u64 = 20_000;

/// One sidecar, or several that are joined by a [`Carrier`]; and, on request, two workers that exchange tensors during
/// the test.
#[derive(Debug)]
pub struct Scene {
    /// The fields are dropped in this order: workers first.
    bystanders: Option<Bystanders>,
    /// The sidecars: the first hosts the directory.
    pub nodes: Vec<Sidecar>,
    /// The counts of each sidecar without a worker.
    idle: BTreeMap<usize, Counts>,
    folder: TempDir,
}

#[derive(Debug)]
struct Bystanders {
    leader: Worker,
    follower: Worker,
    /// The version of the next exchange's first round.
    next: u64,
    /// The indexes of the bystanders' sidecars. `still` holds the counts of these sidecars while the bystanders pause.
    nodes: [usize; 2],
    still: Vec<Counts>,
}

impl Scene {
    /// Starts one sidecar.
    #[must_use]
    pub fn one() -> Scene {
        Scene::with(&[&[]])
    }

    /// Starts two sidecars, a and b, with landing pools of 64 MiB.
    #[must_use]
    pub fn two() -> Scene {
        Scene::two_with(&["--pool-bytes", "64MiB"])
    }

    /// Starts two sidecars, a and b, with these arguments.
    #[must_use]
    pub fn two_with(arguments: &[&str]) -> Scene {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--listen", "127.0.0.1:0"]);
        Scene::with(&[&arguments, &arguments])
    }

    /// Starts one sidecar for each list of arguments, named a, b, c and so on. The directory is at the first one. The fabric
    /// between them is [`Carrier::chosen`].
    #[must_use]
    pub fn with(arguments: &[&[&str]]) -> Scene {
        Scene::over(Carrier::chosen(), arguments)
    }

    /// Starts one sidecar for each list of arguments, as [`Scene::with`] does, joined by this carrier.
    #[must_use]
    pub fn over(carrier: Carrier, arguments: &[&[&str]]) -> Scene {
        let mut all: Vec<Vec<&str>> = arguments.iter().map(|own| own.to_vec()).collect();
        for own in all.iter_mut().filter(|own| own.contains(&"--listen")) {
            own.extend(carrier.arguments());
        }
        Scene::exactly(&all.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Starts a further sidecar, of another user, in a folder of its own. It uses the first sidecar's directory.
    /// [`Scene::end`] does not check it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn sidecar_of(&self, uid: u32, name: &str, arguments: &[&str]) -> Sidecar {
        let folder = self.folder.path().join(format!("{name}-of-{uid}"));
        std::fs::create_dir(&folder).expect("a folder can be made");
        std::os::unix::fs::chown(&folder, Some(uid), Some(uid)).expect("root can give it away");
        let url = format!("http://{}", self.a().address());
        let more = ["--listen", "127.0.0.1:0", "--pool-bytes", "4MiB", "--directory", &url];
        Sidecar::start_as(uid, &folder, name, &[arguments, &more].concat())
    }

    /// Starts one sidecar in a container.
    #[must_use]
    pub fn contained(arguments: &[&str]) -> Scene {
        Scene::start(Some(Container::new()), &[arguments])
    }

    /// Starts one sidecar for each list of arguments, without further arguments that choose a fabric: the sidecars
    /// choose it.
    ///
    /// # Panics
    /// If they do not start.
    #[must_use]
    pub fn exactly(arguments: &[&[&str]]) -> Scene {
        Scene::start(None, arguments)
    }

    fn start(container: Option<Container>, arguments: &[&[&str]]) -> Scene {
        let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
        // Workers of other users connect, too.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("the folder can be opened to others");
        let mut nodes: Vec<Sidecar> = Vec::new();
        for (arguments, name) in arguments.iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
            let mut arguments = arguments.to_vec();
            let scheme = if arguments.contains(&"--tls-cert") { "https" } else { "http" };
            let url = nodes.first().map(|host| format!("{scheme}://{}", host.address()));
            if let Some(url) = &url {
                arguments.extend(["--directory", url]);
            }
            nodes.push(Sidecar::start_in(container, folder.path(), name, &arguments));
        }
        let mut scene = Scene { bystanders: None, nodes, idle: BTreeMap::new(), folder };
        (0..scene.nodes.len()).for_each(|node| scene.note_idle_of(node));
        scene
    }

    /// Notes what a sidecar without workers counts, for [`Scene::end`]: at the start of a scene, and after a restart. A
    /// restarted sidecar has no pools until its first worker connects.
    ///
    /// # Panics
    /// If the sidecar still holds something when no worker is connected.
    pub fn note_idle_of(&mut self, node: usize) {
        let sidecar = &self.nodes[node];
        // Its arena is small, so that its memory is returned before its session is gone.
        assert!(Worker::of(sidecar, "first").arena_bytes(1 << 20).start().close().success());
        // Arenas of workers that were here before, or have just come back, are returned a little later.
        let has_arenas = |s: &crate::status::Seen| {
            Counts::of(s).pinned_bytes >= s.status.pools.iter().map(|p| p.bytes).sum::<u64>() + (16 << 20)
        };
        sidecar.until("nobody is connected, and all arenas are returned", |s| s.sessions.is_empty() && !has_arenas(s));
        let mut idle = Counts::of(&sidecar.status());
        // The directory may learn a little later that this worker has ended.
        (idle.workers, idle.keys, idle.watches) = (0, 0, 0);
        let Counts { sessions, tensors, blobs, leases, operations, slots, pool_used_bytes, .. } = idle;
        assert_eq!((sessions, tensors, blobs, leases, operations, slots, pool_used_bytes), (0, 0, 0, 0, 0, 0, 0));
        self.idle.insert(node, idle);
    }

    /// Returns the folder of all sockets and logs.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Returns the first sidecar.
    #[must_use]
    pub fn a(&self) -> &Sidecar {
        &self.nodes[0]
    }

    /// Returns the last sidecar: the second one of two, or the only one.
    #[must_use]
    pub fn b(&self) -> &Sidecar {
        &self.nodes[self.nodes.len() - 1]
    }

    /// Adds bystanders, one at the first and one at the last sidecar. Tensors are pushed to the last sidecar, and
    /// fetched from it.
    #[must_use]
    pub fn with_bystanders(self) -> Scene {
        let last = self.nodes.len() - 1;
        self.with_bystanders_at([0, last])
    }

    /// Adds bystanders at these sidecars.
    #[must_use]
    pub fn with_bystanders_at(mut self, nodes: [usize; 2]) -> Scene {
        let start = |node: usize, name| Worker::of(&self.nodes[node], name).arena_bytes(1 << 20);
        let leader = start(nodes[0], "bystander-1").start();
        let follower = start(nodes[1], "bystander-2").with_async_client().start();
        let mut bystanders = Bystanders { leader, follower, next: 1, nodes, still: Vec::new() };
        bystanders.begin();
        bystanders.go_on();
        bystanders.stop();
        bystanders.still = bystanders.nodes.iter().map(|node| settled(&self.nodes[*node])).collect();
        bystanders.begin();
        self.bystanders = Some(bystanders);
        self
    }

    /// Waits until the bystanders have done some further rounds. They check every byte.
    ///
    /// # Panics
    /// If they fail, or make no progress.
    #[track_caller]
    pub fn others_go_on(&mut self) {
        self.bystanders.as_mut().expect("a scene with bystanders").go_on();
    }

    /// Checks that nothing is left, once all other workers of the test have ended or are about to. Then ends the
    /// bystanders and checks again. Then ends the sidecars with SIGTERM, and checks that they leave no file behind.
    ///
    /// # Panics
    /// If something is left.
    #[track_caller]
    pub fn end(mut self) {
        // Counters and barriers stay, and so do their names in the directory.
        let named: u64 = self.nodes.iter().map(|node| node.status().status.counters.unwrap_or_default().named).sum();
        if let Some(idle) = self.idle.get_mut(&0) {
            idle.keys += named;
        }
        if let Some(mut bystanders) = self.bystanders.take() {
            bystanders.go_on();
            bystanders.stop();
            for (node, still) in bystanders.nodes.iter().zip(&mut bystanders.still) {
                if *node == 0 {
                    still.keys += named;
                }
                self.nodes[*node].until_counts(still);
            }
            assert!(bystanders.leader.close().success());
            assert!(bystanders.follower.close().success());
        }
        for (node, idle) in &self.idle {
            self.nodes[*node].until_counts(idle);
        }
        // The directory's host ends last, because the others sign off at the directory.
        for node in self.nodes.iter_mut().rev() {
            assert_eq!(node.terminate().code(), Some(0), "{}", node.name());
        }
        let files = std::fs::read_dir(self.folder.path()).expect("the folder can be read");
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let left: Vec<_> = paths.filter(|path| path.extension() != Some("log".as_ref())).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Returns the counts of a sidecar once they no longer change: a client does not wait for the end of a release, for
/// instance.
fn settled(sidecar: &Sidecar) -> Counts {
    let (mut last, mut times) = (None, 0);
    let settled = poll(|| {
        let counts = Counts::of(&sidecar.status());
        times = if last.as_ref() == Some(&counts) { times + 1 } else { 0 };
        last = Some(counts.clone());
        if times >= 5 && counts.operations == 0 && counts.leases == 0 { Ok(counts) } else { Err(Box::new(counts)) }
    });
    settled.unwrap_or_else(|counts| panic!("{} does not settle: {counts:#?}", sidecar.name()))
}

impl Bystanders {
    fn begin(&mut self) {
        // The leader's tensors land at the follower's sidecar. The follower's tensors stay there, and the leader
        // fetches them.
        let apart = self.nodes[0] != self.nodes[1];
        let to = apart.then(|| self.follower.name().to_owned());
        let order = ExchangeOrder { leads: true, key: "bystander".into(), to, first: self.next, len: LEN };
        let follows = ExchangeOrder { leads: false, to: None, ..order.clone() };
        self.follower.order(Order::Exchange(follows), done).get();
        self.leader.order(Order::Exchange(order), done).get();
    }

    #[track_caller]
    fn rounds(&mut self) -> u64 {
        // A bystander that has failed reports it here.
        self.follower.order(Order::Rounds, number).get();
        self.leader.order(Order::Rounds, number).get()
    }

    #[track_caller]
    fn go_on(&mut self) {
        let wanted = self.rounds() + ROUNDS;
        let seen = poll(|| match self.rounds() {
            rounds if rounds >= wanted => Ok(()),
            rounds => Err(rounds),
        });
        if let Err(rounds) = seen {
            panic!("the bystanders are stuck after {rounds} rounds, {wanted} are wanted");
        }
    }

    /// Ends the exchange after the leader's next round, because the follower already waits for that version.
    fn stop(&mut self) {
        let last = self.leader.order(Order::Hold, number).get() + 1;
        for worker in [&mut self.follower, &mut self.leader] {
            worker.order(Order::FinishWith(last), done).get();
        }
        for worker in [&mut self.follower, &mut self.leader] {
            assert_eq!(worker.order(Order::Finished, number).get(), last);
        }
        self.next = last + 1;
    }
}
