//! The ledger of a node: its unanswered requests to the directory, which are repeated to a directory that has lost its
//! state, and the node's decisions while no directory answers. No I/O.
//!
//! **Without the directory** a node grants its workers every name and key that no other worker of this node has. When
//! the directory answers again, it decides about them, so its refusals may come late. A counter exists once in the job,
//! so only the directory grants the name of a counter.

use super::item::{Answer, NodeAt, NodeItem};
use super::log::Log;
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use transfer_core::protocol::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest};
use transfer_core::tensor::{Key, Name};

/// A request of the sidecar to the directory.
#[derive(Debug)]
pub(crate) enum DirectoryCommand {
    /// Enters a key. [`DirectoryNews::Claimed`] answers it; a refusal may follow if the key was granted without the
    /// directory.
    Claim(Claim),
    /// Sends another request of the engine.
    Request(DirectoryRequest),
    /// Asks for the place of a node. `None`: the node is not attached.
    ResolveNode { node: Name, answer: oneshot::Sender<Option<NodeAt>> },
    /// Enters a worker. The error is the node where a worker of that name is connected. If the name was granted without
    /// the directory, [`DirectoryEvent::NameLost`] reports a late refusal.
    WorkerUp { worker: Name, tenant: Name, answer: oneshot::Sender<Result<(), Name>> },
    /// Removes a worker.
    WorkerDown { worker: Name },
}

/// News for the sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirectoryEvent {
    /// News for the engine.
    Directory(DirectoryNews),
    /// The directory has given the name of a worker of this node to a worker of another node.
    NameLost { worker: Name, node: Name },
}

impl From<DirectoryNews> for DirectoryEvent {
    fn from(news: DirectoryNews) -> DirectoryEvent {
        DirectoryEvent::Directory(news)
    }
}

/// The consequence of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send this to the directory, if this node is attached.
    Send(NodeItem),
    /// The request is answered already, with this news.
    Notify(DirectoryEvent),
    /// Nothing to do: no caller waits for an answer, or the request is pending already.
    Nothing,
}

/// The ledger; see the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    next_claim: u64,
    keys: Log,
    /// The claims of counters and barriers.
    counters: Log,
    /// Claims of the current attachment that were granted here because no answer came in time. The answer may still
    /// come.
    overdue: VecDeque<(u64, Key)>,
    /// The reason why this node works without the directory; `None`: it does not.
    alone: Option<String>,
    watches: HashMap<Key, u64>,
    /// Workers whose nodes were asked for, and the tenants that ask.
    worker_questions: HashSet<(Name, Name)>,
    node_questions: HashMap<Name, Vec<oneshot::Sender<Option<NodeAt>>>>,
    workers: HashMap<Name, Worker>,
}

/// A worker of this node.
#[derive(Debug)]
struct Worker {
    tenant: Name,
    /// The number of its last entry in the directory, or 0.
    entered: u64,
    /// Told once whether the worker gets its name.
    answer: Option<oneshot::Sender<Result<(), Name>>>,
}

impl Ledger {
    /// Records a request.
    pub(crate) fn ask(&mut self, ask: DirectoryCommand, now: Instant) -> Next {
        let item = match ask {
            DirectoryCommand::Claim(claim) if self.alone.is_some() => return Next::Notify(self.without_it(claim.key)),
            DirectoryCommand::Claim(claim) => {
                self.next_claim += 1;
                let number = self.next_claim;
                Some(self.log_of(&claim.key).claim(number, claim, now))
            }
            DirectoryCommand::Request(request) => self.request(request).map(NodeItem::Request),
            DirectoryCommand::ResolveNode { node, answer } => {
                self.node_questions.entry(node.clone()).or_default().push(answer);
                Some(NodeItem::ResolveNode { node })
            }
            DirectoryCommand::WorkerUp { worker, tenant, answer } => {
                let answer = match self.alone {
                    // The caller may have given up.
                    Some(_) => answer.send(Ok(())).map_or(None, |()| None),
                    None => Some(answer),
                };
                self.workers.insert(worker.clone(), Worker { tenant: tenant.clone(), entered: 0, answer });
                Some(NodeItem::WorkerUp { worker, tenant, entered: 0 })
            }
            DirectoryCommand::WorkerDown { worker } => {
                self.workers.remove(&worker);
                Some(NodeItem::WorkerDown { worker })
            }
        };
        item.map_or(Next::Nothing, Next::Send)
    }

    /// Records a request. Returns `None` if it need not be sent.
    fn request(&mut self, request: DirectoryRequest) -> Option<DirectoryRequest> {
        let is_new = match &request {
            DirectoryRequest::Unclaim { key } => {
                self.log_of(key).unclaim(key);
                true
            }
            DirectoryRequest::Resolve { key, newer_than } => {
                self.watches.insert(key.clone(), *newer_than);
                true
            }
            DirectoryRequest::Recited => true,
            DirectoryRequest::StopResolve { key } => self.watches.remove(key).is_some(),
            DirectoryRequest::ResolveWorker { worker, tenant } => {
                self.worker_questions.insert((worker.clone(), tenant.clone()))
            }
        };
        is_new.then_some(request)
    }

    fn log_of(&mut self, key: &Key) -> &mut Log {
        if key.reserved_for().is_some() { &mut self.counters } else { &mut self.keys }
    }

    /// Returns the answer to a claim that is decided without the directory.
    fn without_it(&self, key: Key) -> DirectoryEvent {
        let result = match (key.reserved_for(), &self.alone) {
            (Some(_), Some(why)) => Err(ClaimRefused::Unreachable(why.clone())),
            _ => Ok(0),
        };
        claimed(key, result)
    }

    /// Handles an attachment to a directory that knows nothing of this node. Returns the items to send first: the
    /// workers, then the unanswered requests in their order.
    pub(crate) fn attached(&mut self, now: Instant) -> Vec<NodeItem> {
        self.alone = None;
        // The numbers came from another directory, whose clock may have been ahead.
        self.watches.values_mut().for_each(|newer_than| *newer_than = 0);
        let workers = self.workers.iter().map(|(name, worker)| NodeItem::WorkerUp {
            worker: name.clone(),
            tenant: worker.tenant.clone(),
            entered: worker.entered,
        });
        let log = self.keys.replay(now).chain(self.counters.replay(now));
        let watches =
            self.watches.iter().map(|(key, newer)| DirectoryRequest::Resolve { key: key.clone(), newer_than: *newer });
        let worker_questions = self
            .worker_questions
            .iter()
            .map(|(worker, tenant)| DirectoryRequest::ResolveWorker { worker: worker.clone(), tenant: tenant.clone() });
        let questions = watches.chain(worker_questions).map(NodeItem::Request);
        let node_questions = self.node_questions.keys().map(|node| NodeItem::ResolveNode { node: node.clone() });
        workers.chain(log).chain(questions).chain(node_questions).collect()
    }

    /// Handles the end of the attachment. At the next attachment the owners repeat the claims that were granted without
    /// an answer.
    pub(crate) fn detached(&mut self) {
        self.overdue.clear();
    }

    /// Handles that the directory has been silent for too long, for the reason `why`. This node then works without it.
    pub(crate) fn go_on_alone(&mut self, why: &str) -> Vec<DirectoryEvent> {
        self.alone = Some(why.to_owned());
        for answer in self.workers.values_mut().filter_map(|worker| worker.answer.take()) {
            // The caller may have given up.
            let _ = answer.send(Ok(()));
        }
        let given_up = std::iter::from_fn(|| self.keys.pop().or_else(|| self.counters.pop())).collect::<Vec<_>>();
        given_up.into_iter().map(|(_, key)| self.without_it(key)).collect()
    }

    /// Grants the keys whose claims have had no answer for `patience`, although this node is attached.
    pub(crate) fn grant_overdue(&mut self, now: Instant, patience: Duration) -> Vec<DirectoryEvent> {
        let mut news = Vec::new();
        while let Some((claim, key)) = self.keys.pop_overdue(now, patience) {
            self.overdue.push_back((claim, key.clone()));
            news.push(claimed(key, Ok(0)));
        }
        news
    }

    /// Returns the time since which the first key waits.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.keys.since()
    }

    /// Handles an answer of the directory. An answer without a request is dropped.
    pub(crate) fn answer(&mut self, answer: Answer) -> Option<DirectoryEvent> {
        match answer {
            // The client answers the ping.
            Answer::Ping { .. } | Answer::Alive => None,
            // Where the grant was reported before, the entry's number is news.
            Answer::Claimed { number, sequence } => Some(claimed(self.answered(number)?, Ok(sequence))),
            Answer::ClaimRefused { number, owner, node } => {
                let key = self.answered(number)?;
                Some(claimed(key, Err(ClaimRefused::Owned { owner, node })))
            }
            Answer::ClaimDenied { number, why } => {
                let key = self.answered(number)?;
                Some(claimed(key, Err(ClaimRefused::Denied(why.to_string()))))
            }
            Answer::ClaimFull { number, why } => {
                let key = self.answered(number)?;
                Some(claimed(key, Err(ClaimRefused::Full(why.to_string()))))
            }
            Answer::Lost { key, owner } => Some(DirectoryNews::KeyLost { key, owner }.into()),
            Answer::WorkerAdmitted { worker, entered } => {
                self.workers.get_mut(&worker)?.entered = entered;
                self.admit(&worker)
            }
            // This node keeps the worker and announces it again at the next attachment.
            Answer::WorkerDenied { worker, .. } => self.admit(&worker),
            Answer::WorkerRefused { worker, node } => match self.workers.remove(&worker)?.answer {
                Some(answer) => match answer.send(Err(node)) {
                    // The caller has admitted the worker in the meantime.
                    Err(Err(node)) => Some(DirectoryEvent::NameLost { worker, node }),
                    _ => None,
                },
                None => Some(DirectoryEvent::NameLost { worker, node }),
            },
            Answer::Located { key, at, sequence } => {
                let newer_than = self.watches.get(&key)?;
                if sequence <= *newer_than {
                    return None;
                }
                self.watches.remove(&key);
                Some(DirectoryNews::Located { key, node: at.node, sequence }.into())
            }
            Answer::WorkerLocated { worker, tenant, node } => {
                let asked = self.worker_questions.take(&(worker, tenant));
                asked.map(|(worker, tenant)| DirectoryNews::WorkerLocated { worker, tenant, node }.into())
            }
            Answer::NodeLocated { node, at } => {
                for answer in self.node_questions.remove(&node)? {
                    let _ = answer.send(at.clone());
                }
                None
            }
        }
    }

    /// Tells the caller, if there is one, that its worker may connect.
    fn admit(&mut self, worker: &Name) -> Option<DirectoryEvent> {
        if let Some(answer) = self.workers.get_mut(worker)?.answer.take() {
            // The caller may have given up.
            let _ = answer.send(Ok(()));
        }
        None
    }

    /// Returns the key of an answered claim.
    fn answered(&mut self, claim: u64) -> Option<Key> {
        if let Some((_, key)) = self.overdue.pop_front_if(|(overdue, _)| *overdue == claim) {
            return Some(key);
        }
        // A claim in neither log was given up before the answer came.
        self.keys.answered(claim).or_else(|| self.counters.answered(claim))
    }
}

fn claimed(key: Key, result: Result<u64, ClaimRefused>) -> DirectoryEvent {
    DirectoryNews::Claimed { key, result }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn claim(k: &str) -> DirectoryCommand {
        DirectoryCommand::Claim(Claim {
            key: key(k),
            owner: name("w"),
            tenant: Name::of_number(0),
            resident: true,
            takeover: false,
            entered: 0,
        })
    }

    fn claimed(k: &str, entered: u64) -> Option<DirectoryEvent> {
        Some(DirectoryEvent::Directory(DirectoryNews::Claimed { key: key(k), result: Ok(entered) }))
    }

    /// A key that is granted without the directory.
    fn granted(k: &str) -> DirectoryEvent {
        claimed(k, 0).unwrap()
    }

    /// Returns the name of a counter.
    fn counter() -> Key {
        Key::of_directory("\0csteps").unwrap()
    }

    fn said(next: Next) -> NodeItem {
        let Next::Send(item) = next else { panic!("{next:?}") };
        item
    }

    fn unreachable(k: Key) -> DirectoryEvent {
        DirectoryEvent::Directory(DirectoryNews::Claimed {
            key: k,
            result: Err(ClaimRefused::Unreachable("gone".into())),
        })
    }

    #[test]
    fn unanswered_requests_are_repeated_in_order() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        // No claim waits, so the unclaim need not be kept: the entries end with the attachment.
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Unclaim { key: key("z") }), now);
        let first = ["a", "b"].map(|k| said(ledger.ask(claim(k), now)));
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Unclaim { key: key("a") }), now);
        let again = ledger.attached(now);
        assert_eq!(
            again,
            [first[0].clone(), first[1].clone(), NodeItem::Request(DirectoryRequest::Unclaim { key: key("a") })]
        );
        assert_eq!(ledger.answer(Answer::Claimed { number: 1, sequence: 1 }), claimed("a", 1));
        assert_eq!(ledger.attached(now).len(), 2);
        assert_eq!(ledger.answer(Answer::Claimed { number: 2, sequence: 2 }), claimed("b", 2));
        assert_eq!(ledger.attached(now), []);
        assert_eq!(ledger.answer(Answer::Claimed { number: 2, sequence: 2 }), None);
    }

    #[test]
    fn keys_and_names_are_granted_without_the_directory_and_counters_are_not() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let count = || {
            DirectoryCommand::Claim(Claim {
                key: counter(),
                owner: name("a"),
                tenant: Name::of_number(0),
                resident: false,
                takeover: false,
                entered: 0,
            })
        };
        ledger.ask(claim("a"), now);
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Unclaim { key: key("a") }), now);
        ledger.ask(count(), now);
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(DirectoryCommand::WorkerUp { worker: name("w"), tenant: Name::of_number(0), answer }, now);
        assert_eq!(ledger.go_on_alone("gone"), [granted("a"), unreachable(counter())]);
        assert_eq!(heard.try_recv(), Ok(Ok(())));
        // From then on the node answers at once.
        assert_eq!(ledger.ask(claim("b"), now), Next::Notify(granted("b")));
        assert_eq!(ledger.ask(count(), now), Next::Notify(unreachable(counter())));
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(DirectoryCommand::WorkerUp { worker: name("v"), tenant: Name::of_number(0), answer }, now);
        assert_eq!(heard.try_recv(), Ok(Ok(())));
        // The owners claim their keys again. The node announces its workers.
        assert_eq!(ledger.attached(now).len(), 2);
        assert!(matches!(ledger.ask(claim("c"), now), Next::Send(NodeItem::Claim { number: 3, .. })));
        let refused = |worker: &str| Answer::WorkerRefused { worker: name(worker), node: name("b") };
        assert_eq!(ledger.answer(Answer::WorkerAdmitted { worker: name("w"), entered: 1 }), None);
        let lost = DirectoryEvent::NameLost { worker: name("v"), node: name("b") };
        assert_eq!(ledger.answer(refused("v")), Some(lost));
        assert_eq!(ledger.answer(refused("v")), None);
    }

    #[test]
    fn overdue_claim_is_granted_and_a_late_refusal_still_counts() {
        let (start, patience) = (Instant::now(), Duration::from_secs(3));
        let mut ledger = Ledger::default();
        ledger.attached(start);
        for (at, k) in [(0, "a"), (0, "b"), (2, "c")] {
            ledger.ask(claim(k), start + Duration::from_secs(at));
        }
        let count = DirectoryCommand::Claim(Claim {
            key: counter(),
            owner: name("a"),
            tenant: Name::of_number(0),
            resident: false,
            takeover: false,
            entered: 0,
        });
        ledger.ask(count, start);
        assert_eq!(ledger.waits_since(), Some(start));
        let news = ledger.grant_overdue(start + patience, patience);
        assert_eq!(news, [granted("a"), granted("b")]);
        assert_eq!(ledger.waits_since(), Some(start + Duration::from_secs(2)));
        // The grant was reported, the entry's number was not.
        assert_eq!(ledger.answer(Answer::Claimed { number: 1, sequence: 1 }), claimed("a", 1));
        let (owner, node) = (name("x"), name("n"));
        let refused = Answer::ClaimRefused { number: 2, owner: owner.clone(), node: node.clone() };
        let late = DirectoryEvent::Directory(DirectoryNews::Claimed {
            key: key("b"),
            result: Err(ClaimRefused::Owned { owner, node }),
        });
        assert_eq!(ledger.answer(refused.clone()), Some(late));
        assert_eq!(ledger.answer(refused), None);
        assert_eq!(ledger.answer(Answer::Claimed { number: 3, sequence: 3 }), claimed("c", 3));
        let made = DirectoryEvent::Directory(DirectoryNews::Claimed { key: counter(), result: Ok(4) });
        assert_eq!(ledger.answer(Answer::Claimed { number: 4, sequence: 4 }), Some(made));
        // The worker's name was granted because no answer came.
        let (answer, heard) = oneshot::channel();
        ledger.ask(DirectoryCommand::WorkerUp { worker: name("w"), tenant: Name::of_number(0), answer }, start);
        drop(heard);
        let lost = DirectoryEvent::NameLost { worker: name("w"), node: name("b") };
        assert_eq!(ledger.answer(Answer::WorkerRefused { worker: name("w"), node: name("b") }), Some(lost));
    }

    #[test]
    fn watches_end_when_found_or_stopped() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Resolve { key: key("a"), newer_than: 5 }), now);
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Resolve { key: key("b"), newer_than: 0 }), now);
        assert_eq!(
            ledger.ask(DirectoryCommand::Request(DirectoryRequest::StopResolve { key: key("c") }), now),
            Next::Nothing
        );
        said(ledger.ask(DirectoryCommand::Request(DirectoryRequest::StopResolve { key: key("b") }), now));
        let at = NodeAt { node: name("n"), address: "".into(), local: "".into(), incarnation: 1 };
        let located = |k: &str, sequence| Answer::Located { key: key(k), at: at.clone(), sequence };
        assert_eq!(ledger.answer(located("b", 9)), None);
        assert_eq!(ledger.answer(located("a", 5)), None);
        let news =
            |sequence| DirectoryEvent::Directory(DirectoryNews::Located { key: key("a"), node: name("n"), sequence });
        assert_eq!(ledger.answer(located("a", 6)), Some(news(6)));
        assert_eq!(ledger.attached(now), []);
        // Another directory starts with lower numbers if its clock was set back. They count as new.
        ledger.ask(DirectoryCommand::Request(DirectoryRequest::Resolve { key: key("a"), newer_than: 6 }), now);
        assert_eq!(
            ledger.attached(now),
            [NodeItem::Request(DirectoryRequest::Resolve { key: key("a"), newer_than: 0 })]
        );
        assert_eq!(ledger.answer(located("a", 1)), Some(news(1)));
    }

    #[test]
    fn workers_are_announced_again_after_reattaching() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(DirectoryCommand::WorkerUp { worker: name("w"), tenant: Name::of_number(0), answer }, now);
        let up = |entered| NodeItem::WorkerUp { worker: name("w"), tenant: Name::of_number(0), entered };
        // The directory does not enter it, and this node keeps it.
        ledger.answer(Answer::WorkerDenied { worker: name("w"), why: "it is a test".into() });
        assert_eq!(heard.try_recv(), Ok(Ok(())));
        assert_eq!(ledger.attached(now), [up(0)]);
        // The next directory is told the number of the last entry.
        ledger.answer(Answer::WorkerAdmitted { worker: name("w"), entered: 9 });
        assert_eq!(ledger.attached(now), [up(9)]);
        ledger.ask(DirectoryCommand::WorkerDown { worker: name("w") }, now);
        assert_eq!(ledger.attached(now), []);
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(DirectoryCommand::WorkerUp { worker: name("w"), tenant: Name::of_number(0), answer }, now);
        ledger.answer(Answer::WorkerRefused { worker: name("w"), node: name("b") });
        assert_eq!(heard.try_recv(), Ok(Err(name("b"))));
        assert_eq!(ledger.attached(now), []);
    }
}
