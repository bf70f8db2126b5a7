//! The directory at its host: the registry behind a lock, and an outbox for each attached node.

use super::entries::NodeNo;
use super::item::{Answer, Hello, KeyAt, NodeAt, NodeItem};
use super::leading::Election;
use super::lost::Lost;
use super::registry::{AttachRefused, Counts, Registry, Taken};
use super::settling::{Deferred, MAX_DEFERRED, Settling};
use super::standing::Standing;
use crate::events::unix_nanos;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use transfer_core::protocol::{DirectoryRequest, Tenants, Vouches};
use transfer_core::tensor::{Key, Name};

/// The most items of one batch, in both directions.
pub const MAX_BATCH: usize = 1024;

/// The directory reads nothing from a node whose outbox is longer than this, until the node has received some of it.
const FULL_OUTBOX: usize = 8 * MAX_BATCH;

/// A node that has been silent for this long loses its name to another sidecar that claims it.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// The reason why an attachment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Detached {
    /// Another attachment of the same name replaced this one.
    #[error("another attachment of this node replaced this one: a sidecar of the same --node has attached")]
    Replaced,
    /// The node has announced its end.
    #[error("the node has left")]
    Left,
    /// The host is stopping.
    #[error("the node that hosts the directory is stopping")]
    Closed,
    /// Another host may take its place, because this one was asked to let it, or cannot reach more than half of the hosts.
    #[error("this host leads the directory no longer")]
    StandsBy,
}

/// The directory, in memory. Cheap to clone; all clones share one directory.
#[derive(Debug, Clone)]
pub struct Directory(pub(super) Arc<HostShared>);

#[derive(Debug)]
pub(super) struct HostShared {
    host: Name,
    /// The path of a Unix socket at which nodes of this host may attach, to prove their user. Empty: none.
    local: Arc<str>,
    /// See [`SILENCE_LIMIT`].
    silence: Duration,
    pub(super) state: Mutex<State>,
    /// If there are several hosts.
    pub(super) election: Option<Election>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) registry: Registry,
    pub(super) outboxes: HashMap<NodeNo, Arc<Outbox>>,
    pub(super) lost: Lost,
    /// The number of the last ping.
    pings: u64,
    pub(super) closed: bool,
    pub(super) standing: Standing,
    /// How often a node was attached or detached.
    pub(super) changes: u64,
}

/// The liveness of an attached node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Life {
    /// The number of the last ping that the node has answered.
    answered: u64,
    /// Whether the node has detached.
    is_over: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    life: watch::Sender<Life>,
    queue: Mutex<Queue>,
    /// Notified when an item was put in, or the attachment ended.
    filled: Notify,
    /// Notified when an item was taken out.
    pub(super) drained: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    answers: VecDeque<Answer>,
    end: Option<Detached>,
}

/// Sends an answer to a node, if it is attached.
pub(super) fn put(outboxes: &HashMap<NodeNo, Arc<Outbox>>, to: NodeNo, answer: Answer) {
    if let Some(outbox) = outboxes.get(&to) {
        outbox.put(answer);
    }
}

impl Outbox {
    pub(super) fn put(&self, answer: Answer) {
        self.queue.lock().answers.push_back(answer);
        self.filled.notify_one();
    }

    pub(super) fn end(&self, why: Detached) {
        self.queue.lock().end = Some(why);
        self.filled.notify_one();
        self.drained.notify_one();
    }
}

impl Directory {
    /// Makes an empty directory, hosted by this node. Its entries are numbered from the time of day on, so that the
    /// numbers rise across restarts.
    #[must_use]
    pub fn new(host: Name) -> Directory {
        Directory::with(host, "".into(), Tenants::default())
    }

    /// Makes a directory like [`Directory::new`], with a Unix socket for nodes of the same host, and with the rules of
    /// tenants.
    pub(crate) fn with(host: Name, local: Arc<str>, tenants: Tenants) -> Directory {
        Directory::patient(host, local, tenants, SILENCE_LIMIT)
    }

    /// Limits the keys of one node. The default is no limit.
    pub fn limit_keys(&self, keys_per_node: u64) {
        self.0.state.lock().registry.limit_keys(keys_per_node);
    }

    fn patient(host: Name, local: Arc<str>, tenants: Tenants, silence: Duration) -> Directory {
        Directory::made(host, local, tenants, silence, None)
    }

    pub(super) fn made(
        host: Name,
        local: Arc<str>,
        tenants: Tenants,
        silence: Duration,
        election: Option<Election>,
    ) -> Directory {
        let first_sequence = unix_nanos(SystemTime::now());
        let state = State {
            registry: Registry::new(first_sequence, tenants),
            outboxes: HashMap::new(),
            lost: Lost::default(),
            pings: 0,
            closed: false,
            standing: if election.is_some() { Standing::StandsBy } else { Standing::Only },
            changes: 0,
        };
        Directory(Arc::new(HostShared { host, local, silence, state: Mutex::new(state), election }))
    }

    /// Returns the path of the Unix socket at which nodes of this host may attach.
    pub(crate) fn local(&self) -> &str {
        &self.0.local
    }

    /// Returns the name of the node that hosts the directory.
    #[must_use]
    pub fn host(&self) -> &Name {
        &self.0.host
    }

    /// Attaches a node until the [`Attachment`] is dropped. Removes the entries of an earlier attachment of that node.
    /// If another sidecar has the name, the directory pings it, and waits until it answers, ends, or has been silent
    /// for 5 s.
    ///
    /// # Errors
    /// [`AttachRefused`] if the other sidecar has answered, or has proved more.
    pub async fn attach(&self, hello: &Hello, word: Vouches) -> Result<Attachment, AttachRefused> {
        let silent_at = Instant::now() + self.0.silence;
        loop {
            self.answers()?;
            self.0.state.lock().registry.may_attach(hello, &word)?;
            let Taken { by, refused } = match self.try_attach(hello, word.clone()) {
                Ok(attachment) => {
                    self.make_known().await?;
                    return Ok(attachment);
                }
                Err(taken) => taken,
            };
            let Some((ping, mut life)) = self.ping(by) else { continue };
            let sign = life.wait_for(|life| life.is_over || life.answered >= ping);
            match tokio::time::timeout_at(silent_at, sign).await {
                Ok(Ok(life)) if !life.is_over => return Err(refused),
                // The other sidecar has ended.
                Ok(_) => {}
                Err(_) => self.evict(by),
            }
        }
    }

    /// Pings a node. Its answer appears in its liveness.
    fn ping(&self, node: NodeNo) -> Option<(u64, watch::Receiver<Life>)> {
        let mut state = self.0.state.lock();
        state.pings += 1;
        let ping = state.pings;
        let outbox = state.outboxes.get(&node)?;
        outbox.put(Answer::Ping { ping });
        Some((ping, outbox.life.subscribe()))
    }

    /// Detaches a silent node.
    fn evict(&self, node: NodeNo) {
        let mut state = self.0.state.lock();
        state.registry.detach(node);
        if let Some(outbox) = state.outboxes.remove(&node) {
            tracing::warn!(silence = ?self.0.silence, "a node that does not answer has lost its name to another sidecar");
            outbox.end(Detached::Replaced);
        }
    }

    fn try_attach(&self, hello: &Hello, word: Vouches) -> Result<Attachment, Taken> {
        let mut state = self.0.state.lock();
        let (node, earlier) = state.registry.attach(hello, word)?;
        if let Some(outbox) = earlier.and_then(|e| state.outboxes.remove(&e)) {
            outbox.end(Detached::Replaced);
        }
        state.lost.found(&hello.node);
        state.changes += 1;
        let outbox = Arc::new(Outbox::default());
        if state.closed {
            outbox.end(Detached::Closed);
        }
        state.outboxes.insert(node, outbox.clone());
        self.changes();
        Ok(Attachment { directory: self.clone(), node, outbox, left: AtomicBool::new(false) })
    }

    /// Returns the entry for a key.
    #[must_use]
    pub fn key(&self, key: &Key) -> Option<KeyAt> {
        self.0.state.lock().registry.key(key)
    }

    /// Returns the node of a worker.
    #[must_use]
    pub fn worker(&self, worker: &Name) -> Option<NodeAt> {
        self.0.state.lock().registry.worker(worker).cloned()
    }

    /// Returns a node by its name.
    #[must_use]
    pub fn node(&self, node: &Name) -> Option<NodeAt> {
        self.0.state.lock().registry.node(node).cloned()
    }

    /// Returns at most `most` nodes whose names come after `after`, in the order of names. A lost node has the time
    /// since it was lost.
    pub(crate) fn nodes(&self, after: &str, most: usize) -> Vec<(NodeAt, Option<Duration>)> {
        let mut state = self.0.state.lock();
        let State { registry, lost, .. } = &mut *state;
        let attached = registry.nodes().map(|at| (at, None));
        let mut nodes: Vec<_> =
            attached.chain(lost.now(Instant::now())).filter(|(at, _)| at.node.as_str() > after).collect();
        nodes.sort_unstable_by(|(a, _), (b, _)| a.node.as_str().cmp(b.node.as_str()));
        nodes.into_iter().take(most).map(|(at, since)| (at.clone(), since)).collect()
    }

    /// Returns the numbers of entries.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.state.lock().registry.counts()
    }

    /// Ends every attachment, and every later one as soon as it begins.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        for outbox in state.outboxes.values() {
            outbox.end(Detached::Closed);
        }
        self.changes();
    }
}

/// A node's attachment to the directory. The node's entries live as long as this value.
#[derive(Debug)]
pub struct Attachment {
    directory: Directory,
    node: NodeNo,
    outbox: Arc<Outbox>,
    /// Whether the node has announced its end.
    left: AtomicBool,
}

impl Attachment {
    /// Waits until the node has received enough of its outbox to send more. Cancel-safe.
    pub async fn ready(&self) {
        loop {
            let drained = self.outbox.drained.notified();
            let deferred = match self.directory.0.state.lock().standing.settling() {
                Some(settling) => settling.of_node(self.node),
                None => 0,
            };
            {
                let queue = self.outbox.queue.lock();
                if queue.answers.len() < FULL_OUTBOX && deferred < MAX_DEFERRED || queue.end.is_some() {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Handles the items of the node, in order. Items after the end of the attachment are ignored.
    pub fn say(&self, items: impl IntoIterator<Item = NodeItem>) {
        let mut state = self.directory.0.state.lock();
        let now = Instant::now();
        if !state.standing.leads(now) {
            // Only this one: the lease may be renewed yet, by an answer that is on its way.
            return self.outbox.end(Detached::StandsBy);
        }
        let State { registry, outboxes, standing, .. } = &mut *state;
        for item in items {
            if let Some(settling) = standing.settling() {
                match &item {
                    NodeItem::Leave | NodeItem::Request(DirectoryRequest::Recited) => {
                        registry.name_of(self.node).inspect(|node| settling.recited(node));
                    }
                    item if Settling::defers(item) => {
                        settling.defer(self.node, Deferred::Item(item.clone()));
                        continue;
                    }
                    _ => {}
                }
            }
            if let NodeItem::Pong { ping } = item {
                self.outbox.life.send_modify(|life| life.answered = ping);
            } else if item == NodeItem::Leave {
                self.left.store(true, Ordering::Relaxed);
                self.outbox.end(Detached::Left);
            }
            registry.apply(self.node, item, &mut |to, answer| match standing.settling() {
                Some(settling) if settling.of_node(to) > 0 => {
                    settling.defer(to, Deferred::Answer(answer));
                }
                _ => put(outboxes, to, answer),
            });
        }
        state.settle();
    }

    /// Waits for answers, at most [`MAX_BATCH`] at a time. Cancel-safe.
    ///
    /// # Errors
    /// [`Detached`] once the attachment has ended.
    pub async fn hear(&self) -> Result<Vec<Answer>, Detached> {
        loop {
            let filled = self.outbox.filled.notified();
            {
                let mut queue = self.outbox.queue.lock();
                if let Some(why) = queue.end {
                    return Err(why);
                }
                let len = queue.answers.len().min(MAX_BATCH);
                if len > 0 {
                    let batch = queue.answers.drain(..len).collect();
                    if queue.answers.is_empty() {
                        queue.answers.shrink_to(MAX_BATCH);
                    }
                    drop(queue);
                    self.outbox.drained.notify_one();
                    return Ok(batch);
                }
            }
            filled.await;
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.directory.0.state.lock();
        state.outboxes.remove(&self.node);
        if let Some(settling) = state.standing.settling() {
            settling.forget(self.node);
        }
        if let Some(at) = state.registry.detach(self.node)
            && !self.left.load(Ordering::Relaxed)
        {
            state.lost.lose(at, Instant::now());
        }
        state.changes += 1;
        self.directory.changes();
        self.outbox.life.send_modify(|life| life.is_over = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::protocol::{Claim, DirectoryRequest};

    fn hello(node: &str, incarnation: u64) -> Hello {
        Hello { node: Name::new(node).unwrap(), address: "h:1".into(), incarnation, local: "".into(), replace: false }
    }

    fn claim(claim: u64, key: &str) -> NodeItem {
        let (key, owner) = (Key::new(key).unwrap(), Name::new("w").unwrap());
        NodeItem::Claim {
            number: claim,
            claim: Claim { key, owner, tenant: Name::of_number(0), resident: true, takeover: false, entered: 0 },
        }
    }

    #[tokio::test]
    async fn a_watch_at_one_node_is_answered_by_a_claim_at_another() {
        let directory = Directory::new(Name::new("a").unwrap());
        let a = directory.attach(&hello("a", 1), Vouches::ForAll).await.unwrap();
        let b = directory.attach(&hello("b", 1), Vouches::ForAll).await.unwrap();
        b.say([NodeItem::Request(DirectoryRequest::Resolve { key: Key::new("k").unwrap(), newer_than: 0 })]);
        let (heard, ()) = tokio::join!(b.hear(), async { a.say([claim(1, "k")]) });
        assert!(matches!(&heard.unwrap()[..], [Answer::Located { .. }]));
        drop(a);
        assert_eq!(directory.counts(), Counts { keys: 0, workers: 0, nodes: 1, watches: 0 });
    }

    // Promise: lists-of-all-nodes
    #[tokio::test]
    async fn lost_node_is_remembered_and_leaving_node_is_not() {
        let directory = Directory::new(Name::new("a").unwrap());
        let attach = async |node: &str| directory.attach(&hello(node, 1), Vouches::ForAll).await.unwrap();
        let listed = |after: &str, most: usize| {
            let nodes = directory.nodes(after, most).into_iter();
            nodes.map(|(at, since)| (at.node.to_string(), since.is_some())).collect::<Vec<_>>()
        };
        let named = |names: &[(&str, bool)]| names.iter().map(|(n, lost)| ((*n).to_owned(), *lost)).collect::<Vec<_>>();
        let (_a, b, c) = (attach("a").await, attach("b").await, attach("c").await);
        drop(b);
        c.say([NodeItem::Leave]);
        assert_eq!(c.hear().await, Err(Detached::Left));
        drop(c);
        assert_eq!(listed("", 10), named(&[("a", false), ("b", true)]));
        // The node comes back, and replaces itself.
        let b = attach("b").await;
        let new = attach("b").await;
        drop(b);
        assert_eq!(listed("", 10), named(&[("a", false), ("b", false)]));
        drop(new);
        assert_eq!(listed("", 1), named(&[("a", false)]));
        assert_eq!(listed("a", 1), named(&[("b", true)]));
        assert_eq!(listed("b", 1), []);
    }

    #[tokio::test]
    async fn attachment_is_told_that_it_was_replaced_or_closed() {
        let directory = Directory::new(Name::new("a").unwrap());
        let old = directory.attach(&hello("a", 1), Vouches::ForAll).await.unwrap();
        let new = directory.attach(&hello("a", 1), Vouches::ForAll).await.unwrap();
        assert_eq!(old.hear().await, Err(Detached::Replaced));
        old.say([claim(1, "k")]);
        drop(old);
        assert_eq!(directory.counts(), Counts { keys: 0, workers: 0, nodes: 1, watches: 0 });
        directory.close();
        assert_eq!(new.hear().await, Err(Detached::Closed));
        assert_eq!(
            directory.attach(&hello("b", 2), Vouches::ForAll).await.unwrap().hear().await,
            Err(Detached::Closed)
        );
    }

    #[tokio::test]
    async fn node_that_reads_no_answers_is_not_read() {
        let directory = Directory::new(Name::new("a").unwrap());
        let a = directory.attach(&hello("a", 1), Vouches::ForAll).await.unwrap();
        let mut said = 0;
        while tokio::time::timeout(std::time::Duration::from_millis(20), a.ready()).await.is_ok() {
            a.say((said..said + 1000).map(|i| claim(i, "k")));
            said += 1000;
            assert!(said < 100_000);
        }
        let mut heard = 0;
        while heard < said {
            heard += a.hear().await.unwrap().len() as u64;
        }
        a.ready().await;
    }

    /// Answers every ping until the attachment ends. Returns the reason of the end.
    async fn answer_for_ever(attachment: &Attachment) -> Detached {
        loop {
            match attachment.hear().await {
                Ok(answers) => {
                    let pong = |answer: &Answer| match answer {
                        Answer::Ping { ping } => Some(NodeItem::Pong { ping: *ping }),
                        _ => None,
                    };
                    attachment.say(answers.iter().filter_map(pong));
                }
                Err(why) => return why,
            }
        }
    }

    // Promise: item-pong
    #[tokio::test]
    async fn name_stays_with_its_holder_while_the_holder_answers() {
        let directory = Directory::new(Name::new("a").unwrap());
        let old = directory.attach(&hello("b", 5), Vouches::ForAll).await.unwrap();
        old.say([claim(1, "k")]);
        for incarnation in [4, 6] {
            let second = hello("b", incarnation);
            let refused = tokio::select! {
                refused = directory.attach(&second, Vouches::ForAll) => refused.unwrap_err(),
                why = answer_for_ever(&old) => panic!("{why}"),
            };
            let text = refused.to_string();
            assert!(
                ["\"b\"", "incarnation 5", "h:1", "--node", "--replace"].iter().all(|part| text.contains(part)),
                "{text}"
            );
        }
        assert_eq!(directory.counts(), Counts { keys: 1, workers: 0, nodes: 1, watches: 0 });
    }

    #[tokio::test]
    async fn a_name_is_free_when_its_holder_is_silent() {
        let silence = Duration::from_millis(50);
        let directory = Directory::patient(Name::new("a").unwrap(), "".into(), Tenants::default(), silence);
        let old = directory.attach(&hello("b", 5), Vouches::ForAll).await.unwrap();
        old.say([claim(1, "k")]);
        let before = Instant::now();
        let new = directory.attach(&hello("b", 6), Vouches::ForAll).await.unwrap();
        assert!(before.elapsed() >= silence);
        // A late answer is ignored.
        assert_eq!(answer_for_ever(&old).await, Detached::Replaced);
        old.say([claim(2, "k")]);
        assert_eq!(directory.counts(), Counts { keys: 0, workers: 0, nodes: 1, watches: 0 });
        drop(old);
        assert_eq!(directory.node(&Name::new("b").unwrap()).unwrap().incarnation, 6);
        drop(new);
    }

    // Promise: name-of-a-node, seen to fail
    #[tokio::test]
    async fn a_name_is_free_when_its_holder_has_ended_or_is_replaced() {
        // No node is silent for this long.
        let directory =
            Directory::patient(Name::new("a").unwrap(), "".into(), Tenants::default(), Duration::from_secs(1_000_000));
        let old = directory.attach(&hello("b", 5), Vouches::ForAll).await.unwrap();
        let next = hello("b", 6);
        let (new, ()) = tokio::join!(directory.attach(&next, Vouches::ForAll), async {
            // The ping comes first, and the end of the old node is noticed while the ping is open.
            assert!(matches!(old.hear().await.unwrap()[..], [Answer::Ping { .. }]));
            drop(old);
        });
        let new = new.unwrap();
        let replaces = Hello { replace: true, ..hello("b", 7) };
        let last = directory.attach(&replaces, Vouches::ForAll).await.unwrap();
        assert_eq!(answer_for_ever(&new).await, Detached::Replaced);
        drop((new, last));
        assert_eq!(directory.counts().nodes, 0);
    }
}
