//! A node's client of the directory. It stays attached, reattaches with a back-off, and repeats unanswered requests.

use super::connection::{Connection, NotConnected, Place};
use super::host::{Directory, MAX_BATCH};
use super::item::{Answer, Hello, NodeAt, NodeItem};
use super::ledger::{DirectoryCommand, DirectoryEvent, Ledger, Next};
use super::places::Places;
use crate::events::Events;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use transfer_core::protocol::DirectoryNews;
use transfer_core::tensor::Name;
use transfer_proto::v1;
use v1::event::What;

/// The first and the longest pause before the next attempt to attach.
const ATTACH_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// With more unsent items than this, the node's requests wait in their channel.
const MAX_UNSENT: usize = 16 * MAX_BATCH;

/// The state of the directory, as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DirectoryState {
    /// Whether this node is attached.
    pub(crate) attached: bool,
    /// The reason why it is not attached.
    pub(crate) why_not: String,
    /// Whether the directory itself refused this node. Another attempt does not help.
    pub(crate) refused: bool,
    /// The number of times that this node has attached.
    pub(crate) attachments: u64,
    /// The number of failed attempts to attach.
    failures: u64,
}

/// The reason why a request to the directory has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DirectoryError {
    /// There was no answer in time.
    #[error("the directory at {place} cannot be reached: {why}")]
    Unreachable {
        /// "embedded", or its URL.
        place: String,
        /// The last error.
        why: String,
    },
}

/// A worker of the same name is connected at another node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a worker named {worker} is connected at node {node}; end it, or choose another name")]
pub(crate) struct WorkerElsewhere {
    /// The worker's name.
    worker: Name,
    /// The other node.
    node: Name,
}

/// This node's client of the directory. Cheap to clone. The node detaches when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryClient {
    asks: mpsc::UnboundedSender<DirectoryCommand>,
    state: watch::Receiver<DirectoryState>,
    places: Places,
    /// Notified when the node leaves.
    leaves: Arc<Notify>,
}

impl DirectoryClient {
    /// Starts attaching, on the current runtime. News for the engine goes to `news`.
    pub(crate) fn start(
        places: impl Into<Places>,
        hello: Hello,
        news: mpsc::UnboundedSender<DirectoryEvent>,
    ) -> DirectoryClient {
        let places = places.into();
        // Unbounded, because the engine's thread must not wait. Its requests are bounded by its published keys and its
        // waiters.
        let (asks, asked) = mpsc::unbounded_channel();
        let (report, state) =
            watch::channel(DirectoryState { why_not: "not attached yet".to_owned(), ..DirectoryState::default() });
        let (ledger, alone_at) = (Ledger::default(), Some(tokio::time::Instant::now() + places.patience()));
        let leaves = Arc::new(Notify::new());
        let left = leaves.clone();
        let actor =
            Actor { places: places.clone(), hello, asked, news, report, ledger, alone_at, silent: None, leaves: left };
        tokio::spawn(actor.run());
        DirectoryClient { asks, state, places, leaves }
    }

    /// Sends a request. Never blocks.
    pub(crate) fn ask(&self, ask: DirectoryCommand) {
        // The actor ends only with the last sender, or with the runtime.
        let _ = self.asks.send(ask);
    }

    /// Returns the current state of the directory.
    pub(crate) fn state(&self) -> DirectoryState {
        self.state.borrow().clone()
    }

    /// Reports each time that this node attaches or detaches, until the client ends.
    pub(crate) async fn tell_of(self, events: Events) {
        let DirectoryClient { asks, mut state, places, .. } = self;
        // The node detaches when the last sender is gone.
        drop(asks);
        let (mut location, mut attachments, mut was) = (places.present().describe(), 0, false);
        loop {
            let now = state.borrow_and_update().clone();
            if was && (!now.attached || now.attachments != attachments) {
                let (location, why) = (location.clone(), now.why_not.clone());
                events.tell(
                    format!("cut off from the directory at {location}: {why}"),
                    What::DirectoryLost(v1::DirectoryLost { location, why }),
                );
            }
            if now.attached && now.attachments != attachments {
                location = places.present().describe();
                let (location, text) = (location.clone(), format!("attached to the directory at {location}"));
                events.tell(text, What::DirectoryAttached(v1::DirectoryAttached { location }));
            }
            (was, attachments) = (now.attached, now.attachments);
            if state.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the hosts of the directory by name, if there are several, with their URLs.
    pub(crate) fn hosts(&self) -> Vec<(Name, String)> {
        self.places.hosts()
    }

    /// Returns whether the directory may have several hosts.
    pub(crate) fn may_move(&self) -> bool {
        self.places.are_several()
    }

    /// Returns what says which host leads, as in `--directory`, and why it does not answer, if it is an etcd or Kubernetes.
    pub(crate) fn coordinator(&self) -> Option<(&str, Option<String>)> {
        self.places.outlook().map(|outlook| (outlook.location(), outlook.why_not()))
    }

    /// Returns the directory, if this node is one of its hosts.
    pub(crate) fn hosted(&self) -> Option<&Directory> {
        self.places.hosted()
    }

    /// Returns the name of the host at which this node is attached, or tries to attach, if there are several.
    pub(crate) fn host(&self) -> Option<Name> {
        self.places.present_name()
    }

    /// Returns the place of the directory; of several hosts, of the one to which this node is attached, or tries to attach.
    pub(crate) fn place(&self) -> Place {
        self.places.present()
    }

    /// Waits until this node is attached, or its first attempt has failed and `patience` has passed, or the directory
    /// has refused it.
    pub(crate) async fn first_word(&self, patience: Duration) -> DirectoryState {
        let mut state = self.state.clone();
        let word = state.wait_for(|s| s.attached || s.refused);
        let _ = tokio::time::timeout(patience, word).await;
        // Each attempt has a deadline.
        let _ = state.wait_for(|s| s.attached || s.failures > 0).await;
        self.state()
    }

    /// Announces to the directory that this node leaves, if the node is attached. The node then does not count as lost,
    /// and does not attach again. Waits for the end of the stream, at most `patience`.
    pub(crate) async fn leave(&self, patience: Duration) {
        if !self.state().attached {
            return;
        }
        self.leaves.notify_one();
        let mut state = self.state.clone();
        // Without an answer the node counts as lost, like a killed node.
        let _ = tokio::time::timeout(patience, state.wait_for(|s| !s.attached)).await;
    }

    /// Returns the place of a node; `None`: the node is not attached.
    pub(crate) async fn node(&self, node: &Name, patience: Duration) -> Result<Option<NodeAt>, DirectoryError> {
        let (answer, heard) = oneshot::channel();
        self.ask(DirectoryCommand::ResolveNode { node: node.clone(), answer });
        self.within(patience, heard).await
    }

    /// Enters a worker that connected here. If the directory does not answer in time, the worker is admitted, and
    /// [`DirectoryEvent::NameLost`] follows if the directory has given the name to another worker.
    pub(crate) async fn worker_up(
        &self,
        worker: &Name,
        tenant: Name,
        patience: Duration,
    ) -> Result<(), WorkerElsewhere> {
        let (answer, heard) = oneshot::channel();
        self.ask(DirectoryCommand::WorkerUp { worker: worker.clone(), tenant, answer });
        match self.within(patience, heard).await {
            Ok(Err(node)) => Err(WorkerElsewhere { worker: worker.clone(), node }),
            Ok(Ok(())) | Err(DirectoryError::Unreachable { .. }) => Ok(()),
        }
    }

    async fn within<T>(&self, patience: Duration, heard: oneshot::Receiver<T>) -> Result<T, DirectoryError> {
        let why = match tokio::time::timeout(patience, heard).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(_)) => "this sidecar is stopping".to_owned(),
            Err(_) => match self.state() {
                DirectoryState { attached: false, why_not, .. } => why_not,
                _ => format!("no answer within {patience:?}"),
            },
        };
        Err(DirectoryError::Unreachable { place: self.place().describe(), why })
    }
}

struct Actor {
    places: Places,
    hello: Hello,
    asked: mpsc::UnboundedReceiver<DirectoryCommand>,
    news: mpsc::UnboundedSender<DirectoryEvent>,
    report: watch::Sender<DirectoryState>,
    ledger: Ledger,
    /// The moment from which this node works without the directory. `None`: it is attached, or works without it
    /// already.
    alone_at: Option<tokio::time::Instant>,
    /// The host that this node has given up because it said nothing, as [`Places::at`] has it, and when.
    silent: Option<(u64, Instant)>,
    leaves: Arc<Notify>,
}

/// No sender is left, or the node has left.
struct Done;

impl Actor {
    async fn run(mut self) {
        // `Done` means that the sidecar is stopping.
        let Err(Done) = self.attach_for_ever().await;
    }

    async fn attach_for_ever(&mut self) -> Result<std::convert::Infallible, Done> {
        let mut pause = ATTACH_BACKOFF.0;
        loop {
            let (places, hello, mut leader) = (self.places.clone(), self.hello.clone(), None);
            let silent = self.silent.map(|(host, since)| (host, since.elapsed()));
            let attempt = async move {
                let place = places.look(silent).await.map_err(NotConnected::Failed)?;
                Connection::open(&place, &hello).await
            };
            let (why, refused) = match self.meanwhile(attempt).await? {
                Ok(line) => {
                    pause = ATTACH_BACKOFF.0;
                    // Replaces only once. Otherwise two sidecars of one name would replace each other without end.
                    self.hello.replace = false;
                    (self.attached(line).await?, false)
                }
                Err(NotConnected::Refused(why)) => (why, true),
                Err(NotConnected::StandsBy(why, leads)) => {
                    leader = leads;
                    (why, false)
                }
                Err(NotConnected::Failed(why)) => (why, false),
            };
            let news = self.report.borrow().attached || self.report.borrow().why_not != why;
            match self.places.present() {
                // The embedded directory ends with the sidecar.
                Place::Local(_) => tracing::debug!(why, "not attached to the directory"),
                _ if !news => {}
                _ => tracing::warn!(
                    directory = self.places.present().describe(),
                    why,
                    "not attached to the directory; trying again"
                ),
            }
            self.report.send_modify(|s| {
                s.attached = false;
                s.refused = refused;
                s.failures += 1;
                s.why_not.clone_from(&why);
            });
            // Of several hosts one after the other is asked, and then after a pause again.
            let silent = self.silent.map(|(host, since)| (host, since.elapsed()));
            let was_last = self.places.go_on(leader.as_ref(), silent);
            let jitter = 0.5 + fastrand::f64() / 2.0;
            self.meanwhile(tokio::time::sleep(pause.mul_f64(jitter))).await?;
            // A host that has ended is named by the others until their promises to it end.
            if was_last || leader.is_some() {
                pause = (pause * 2).min(self.longest_pause());
            }
        }
    }

    /// Runs `what`, which needs no connection, and records requests until it completes.
    async fn meanwhile<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Done> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                done = &mut what => return Ok(done),
                ask = self.asked.recv() => {
                    if let Next::Notify(news) = self.ledger.ask(ask.ok_or(Done)?, Instant::now()) {
                        self.tell(news);
                    }
                }
                () = at(self.alone_at) => self.go_on_alone(),
            }
        }
    }

    /// The longest pause between two rounds of attempts: shorter where another host may have taken over.
    fn longest_pause(&self) -> Duration {
        if self.places.are_several() { ATTACH_BACKOFF.0 * 4 } else { ATTACH_BACKOFF.1 }
    }

    fn go_on_alone(&mut self) {
        self.alone_at = None;
        let (place, why) = (self.places.present().describe(), self.report.borrow().why_not.clone());
        tracing::warn!(
            directory = place,
            why,
            "going on without the directory: new workers and keys are this node's own until it is back, and it decides then"
        );
        for news in self.ledger.go_on_alone(&format!("the directory at {place} cannot be reached: {why}")) {
            self.tell(news);
        }
    }

    /// Sends and receives over a new connection until it ends. Returns the reason.
    async fn attached(&mut self, mut line: Connection) -> Result<String, Done> {
        self.report.send_modify(|s| {
            s.attached = true;
            s.refused = false;
            s.why_not.clear();
            s.attachments += 1;
        });
        tracing::info!(directory = self.places.present().describe(), "attached to the directory");
        self.alone_at = None;
        let why = self.speak(&mut line).await?;
        self.alone_at = Some(tokio::time::Instant::now() + self.places.patience());
        self.ledger.detached();
        Ok(why)
    }

    /// Sends and receives over `connection` until it ends. Returns the reason.
    async fn speak(&mut self, line: &mut Connection) -> Result<String, Done> {
        let mut unsaid = VecDeque::from(self.ledger.attached(Instant::now()));
        self.tell(DirectoryNews::Attached.into());
        let silence = line.silence();
        let (line_out, mut line_in) = line.split();
        let (mut asks, mut leaves) = (Vec::with_capacity(64), false);
        let (patience, mut heard_at) = (self.places.patience(), tokio::time::Instant::now());
        loop {
            let overdue = self.ledger.waits_since().map(|since| tokio::time::Instant::from_std(since + patience));
            tokio::select! {
                () = line_out.ready(), if !unsaid.is_empty() => {
                    let len = unsaid.len().min(MAX_BATCH);
                    line_out.say(unsaid.drain(..len).collect());
                    if unsaid.is_empty() {
                        unsaid.shrink_to(MAX_BATCH);
                    }
                }
                heard = line_in.hear() => match heard {
                    Ok(answers) => {
                        heard_at = tokio::time::Instant::now();
                        for answer in answers {
                            if let Answer::WorkerDenied { worker, why } = &answer {
                                tracing::warn!(%worker, %why, "a worker is not entered in the directory: other nodes do not find it");
                            }
                            if let Answer::Ping { ping } = answer {
                                // The answer goes out first: a node that does not answer soon loses its name.
                                unsaid.push_front(NodeItem::Pong { ping });
                            } else if let Some(news) = self.ledger.answer(answer) {
                                let _ = self.news.send(news);
                            }
                        }
                    }
                    Err(_) if leaves => {
                        self.report.send_modify(|s| s.attached = false);
                        return Err(Done);
                    }
                    Err(why) => return Ok(why),
                },
                () = self.leaves.notified(), if !leaves => {
                    leaves = true;
                    unsaid.push_back(NodeItem::Leave);
                }
                count = self.asked.recv_many(&mut asks, 64), if unsaid.len() < MAX_UNSENT => {
                    if count == 0 {
                        return Err(Done);
                    }
                    let now = Instant::now();
                    for ask in asks.drain(..) {
                        match self.ledger.ask(ask, now) {
                            Next::Send(item) => unsaid.push_back(item),
                            Next::Notify(news) => drop(self.news.send(news)),
                            Next::Nothing => {}
                        }
                    }
                }
                () = at(silence.map(|silence| heard_at + silence)) => {
                    self.silent = Some((self.places.at(), Instant::now()));
                    return Ok(format!("the host has said nothing for {:?}", silence.unwrap_or_default()));
                }
                () = at(overdue) => {
                    for news in self.ledger.grant_overdue(Instant::now(), patience) {
                        self.tell(news);
                    }
                }
            }
        }
    }

    fn tell(&self, news: DirectoryEvent) {
        // The receiver may have ended already.
        let _ = self.news.send(news);
    }
}

/// Waits until `time`, or without end if there is none.
async fn at(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
