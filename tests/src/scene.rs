//! Sidecars, and bystanders who must notice nothing.

use crate::calls::{done, number};
use crate::container::Container;
use crate::order::{ExchangeOrder, Order};
use crate::status::Counts;
use crate::{Carrier, Sidecar, Worker, poll};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// How many rounds the bystanders must get through for it to count as going on.
const ROUNDS: u64 = 5;

/// The size of a bystander's tensor.
const LEN: u64 = 20_000;

/// One sidecar, or several that are joined by a [`Carrier`]; and, where asked for, two workers who exchange tensors all the while.
#[derive(Debug)]
pub struct Scene {
    /// Dropped in this order: workers first.
    bystanders: Option<Bystanders>,
    /// The sidecars: the first hosts the directory.
    pub nodes: Vec<Sidecar>,
    /// Each sidecar with nobody connected.
    idle: BTreeMap<usize, Counts>,
    folder: TempDir,
}

#[derive(Debug)]
struct Bystanders {
    leader: Worker,
    follower: Worker,
    /// The version that the next round begins with.
    next: u64,
    /// Their sidecars, and what those count while the two hold still.
    nodes: [usize; 2],
    still: Vec<Counts>,
}

impl Scene {
    /// One sidecar.
    #[must_use]
    pub fn one() -> Scene {
        Scene::with(&[&[]])
    }

    /// Two sidecars, a and b, with landing pools of 64 MiB.
    #[must_use]
    pub fn two() -> Scene {
        Scene::two_with(&["--pool-bytes", "64MiB"])
    }

    /// Two sidecars, a and b, with these arguments.
    #[must_use]
    pub fn two_with(arguments: &[&str]) -> Scene {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--listen", "127.0.0.1:0"]);
        Scene::with(&[&arguments, &arguments])
    }

    /// One sidecar for each list of arguments, called a, b and so on. The directory is at the first one. Between them carries what
    /// [`Carrier::chosen`] says.
    #[must_use]
    pub fn with(arguments: &[&[&str]]) -> Scene {
        Scene::over(Carrier::chosen(), arguments)
    }

    /// The same, and this carries.
    #[must_use]
    pub fn over(carrier: Carrier, arguments: &[&[&str]]) -> Scene {
        let mut all: Vec<Vec<&str>> = arguments.iter().map(|own| own.to_vec()).collect();
        for own in all.iter_mut().filter(|own| own.contains(&"--listen")) {
            own.extend(carrier.arguments());
        }
        Scene::exactly(&all.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// One more sidecar, of another user, in a folder of its own. The directory is at the first one's. Not of those that [`Scene::end`] looks at.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn sidecar_of(&self, uid: u32, name: &str, arguments: &[&str]) -> Sidecar {
        let folder = self.folder.path().join(format!("{name}-of-{uid}"));
        std::fs::create_dir(&folder).expect("a folder can be made");
        std::os::unix::fs::chown(&folder, Some(uid), Some(uid)).expect("root can give it away");
        let url = format!("http://{}", self.a().address());
        let more = ["--listen", "127.0.0.1:0", "--pool-bytes", "4MiB", "--directory", &url];
        Sidecar::start_as(uid, &folder, name, &[arguments, &more].concat())
    }

    /// One sidecar in a container.
    #[must_use]
    pub fn contained(arguments: &[&str]) -> Scene {
        Scene::start(Some(Container::new()), &[arguments])
    }

    /// Those of [`Scene::over`] with these arguments and no others: what carries is for the sidecars to find out.
    ///
    /// # Panics
    /// Where they do not start.
    #[must_use]
    pub fn exactly(arguments: &[&[&str]]) -> Scene {
        Scene::start(None, arguments)
    }

    fn start(container: Option<Container>, arguments: &[&[&str]]) -> Scene {
        let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
        // Workers of other users come in, too.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("the folder can be opened to others");
        let mut nodes: Vec<Sidecar> = Vec::new();
        for (arguments, name) in arguments.iter().zip(["a", "b", "c"]) {
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

    /// Notes what a sidecar counts with nobody connected, for [`Scene::end`]: at the start of a scene, and after a restart, which takes
    /// its pools away until the first worker comes.
    ///
    /// # Panics
    /// Where somebody is left.
    pub fn note_idle_of(&mut self, node: usize) {
        let sidecar = &self.nodes[node];
        assert!(sidecar.worker("first").close().success());
        sidecar.until("nobody is connected", |s| s.sessions.is_empty());
        let mut idle = Counts::of(&sidecar.status());
        // The directory may hear of that worker's end a little later.
        (idle.workers, idle.keys, idle.watches) = (0, 0, 0);
        let Counts { sessions, tensors, blobs, leases, operations, slots, pool_used_bytes, .. } = idle;
        assert_eq!((sessions, tensors, blobs, leases, operations, slots, pool_used_bytes), (0, 0, 0, 0, 0, 0, 0));
        self.idle.insert(node, idle);
    }

    /// The folder of all sockets and logs.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The first sidecar.
    #[must_use]
    pub fn a(&self) -> &Sidecar {
        &self.nodes[0]
    }

    /// The second one; where there is only one, that.
    #[must_use]
    pub fn b(&self) -> &Sidecar {
        &self.nodes[self.nodes.len() - 1]
    }

    /// With bystanders, one at the first and one at the last sidecar. One way their tensors are pushed over, the other way they are
    /// fetched.
    #[must_use]
    pub fn with_bystanders(self) -> Scene {
        let last = self.nodes.len() - 1;
        self.with_bystanders_at([0, last])
    }

    /// With bystanders at these sidecars.
    #[must_use]
    pub fn with_bystanders_at(mut self, nodes: [usize; 2]) -> Scene {
        let start = |node: usize, name| Worker::of(&self.nodes[node], name).arena_bytes(1 << 20);
        let leader = start(nodes[0], "bystander-1").start();
        let follower = start(nodes[1], "bystander-2").with_async_face().start();
        let mut bystanders = Bystanders { leader, follower, next: 1, nodes, still: Vec::new() };
        bystanders.begin();
        bystanders.go_on();
        bystanders.stop();
        bystanders.still = bystanders.nodes.iter().map(|node| settled(&self.nodes[*node])).collect();
        bystanders.begin();
        self.bystanders = Some(bystanders);
        self
    }

    /// The bystanders get through some more rounds, and every byte of them is right.
    ///
    /// # Panics
    /// Where they do not.
    #[track_caller]
    pub fn others_go_on(&mut self) {
        self.bystanders.as_mut().expect("a scene with bystanders").go_on();
    }

    /// All workers of the test but the bystanders are gone, or about to: nothing of them is left. Then the bystanders go, and nothing is
    /// left at all. Then the sidecars end on SIGTERM, and leave no file behind.
    ///
    /// # Panics
    /// Where something is left.
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
        // Not the directory's host first: the others take their leave of it.
        for node in self.nodes.iter_mut().rev() {
            assert_eq!(node.terminate().code(), Some(0), "{}", node.name());
        }
        let files = std::fs::read_dir(self.folder.path()).expect("the folder can be read");
        let paths = files.filter_map(|file| Some(file.ok()?.path()));
        let left: Vec<_> = paths.filter(|path| path.extension() != Some("log".as_ref())).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The counts of a sidecar once they do not change any more: a release, for instance, is said and not awaited.
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
        // What the leader pushes lands at the follower's sidecar; what the follower pushes is fetched from there.
        let apart = self.nodes[0] != self.nodes[1];
        let to = apart.then(|| self.follower.name().to_owned());
        let order = ExchangeOrder { leads: true, key: "bystander".into(), to, first: self.next, len: LEN };
        let follows = ExchangeOrder { leads: false, to: None, ..order.clone() };
        self.follower.order(Order::Exchange(follows), done).get();
        self.leader.order(Order::Exchange(order), done).get();
    }

    #[track_caller]
    fn rounds(&mut self) -> u64 {
        // Whoever has trouble says so here.
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

    /// The follower waits for the leader's next version already, so that round is the last one.
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
