//! What a node has told the directory and still waits for, so that it can say it again to a directory that forgot. No I/O.

use super::item::{Answer, NodeAt, NodeItem};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use transfer_core::tensor::{Key, Name};

/// What the rest of the sidecar wants of the directory.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Enter a key. One [`News::Claimed`].
    Claim { key: Key, owner: Name, takeover: bool },
    /// Remove a key.
    Unclaim { key: Key },
    /// Watch a key. One [`News::Located`].
    Resolve { key: Key, newer_than: u64 },
    /// Stop watching.
    StopResolve { key: Key },
    /// One [`News::WorkerLocated`].
    ResolveWorker { worker: Name },
    /// Where is that node? `None`: not attached.
    ResolveNode { node: Name, answer: oneshot::Sender<Option<NodeAt>> },
    /// Enter a worker. The error is the node where one of that name is connected.
    WorkerUp { worker: Name, answer: oneshot::Sender<Result<(), Name>> },
    /// Remove a worker.
    WorkerDown { worker: Name },
}

/// What the rest of the sidecar hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// This node is attached, and none of its keys is entered: claim them all again.
    Attached,
    /// Answers [`Ask::Claim`].
    Claimed { key: Key, result: Result<(), Refused> },
    /// The directory has given a key of this node to another owner, or to another node of the same.
    Lost { key: Key, owner: Name },
    /// Answers [`Ask::Resolve`].
    Located { key: Key, node: Name, sequence: u64 },
    /// Answers [`Ask::ResolveWorker`].
    WorkerLocated { worker: Name, node: Option<Name> },
}

/// Why a key was not entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another worker owns it.
    Owned { owner: Name, node: Name },
    /// The directory cannot be reached.
    Unreachable(String),
}

#[derive(Debug)]
enum Logged {
    Claim { claim: u64, key: Key, owner: Name, takeover: bool, since: Instant },
    Unclaim { key: Key },
}

/// See the module.
///
/// Claims are answered in their order. The log holds those without an answer, and the unclaims behind them: were these forgotten, a
/// directory that hears the claims again would keep keys that have ended.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    next_claim: u64,
    log: VecDeque<Logged>,
    watches: HashMap<Key, u64>,
    worker_questions: HashSet<Name>,
    node_questions: HashMap<Name, Vec<oneshot::Sender<Option<NodeAt>>>>,
    workers: HashMap<Name, Option<oneshot::Sender<Result<(), Name>>>>,
}

impl Ledger {
    /// Notes a wish. Answers what to say to the directory, where this node is attached.
    pub(crate) fn ask(&mut self, ask: Ask, now: Instant) -> Option<NodeItem> {
        Some(match ask {
            Ask::Claim { key, owner, takeover } => {
                self.next_claim += 1;
                let claim = self.next_claim;
                let (logged, owned) = (key.clone(), owner.clone());
                self.log.push_back(Logged::Claim { claim, key: logged, owner: owned, takeover, since: now });
                NodeItem::Claim { claim, key, owner, takeover }
            }
            Ask::Unclaim { key } => {
                if !self.log.is_empty() {
                    self.log.push_back(Logged::Unclaim { key: key.clone() });
                }
                NodeItem::Unclaim { key }
            }
            Ask::Resolve { key, newer_than } => {
                self.watches.insert(key.clone(), newer_than);
                NodeItem::Resolve { key, newer_than }
            }
            Ask::StopResolve { key } => {
                self.watches.remove(&key)?;
                NodeItem::StopResolve { key }
            }
            Ask::ResolveWorker { worker } => {
                self.worker_questions.insert(worker.clone()).then_some(NodeItem::ResolveWorker { worker })?
            }
            Ask::ResolveNode { node, answer } => {
                self.node_questions.entry(node.clone()).or_default().push(answer);
                NodeItem::ResolveNode { node }
            }
            Ask::WorkerUp { worker, answer } => {
                self.workers.insert(worker.clone(), Some(answer));
                NodeItem::WorkerUp { worker }
            }
            Ask::WorkerDown { worker } => {
                self.workers.remove(&worker);
                NodeItem::WorkerDown { worker }
            }
        })
    }

    /// What to say first after attaching: workers, then what has no answer yet, in its order.
    pub(crate) fn replay(&self) -> Vec<NodeItem> {
        let workers = self.workers.keys().map(|worker| NodeItem::WorkerUp { worker: worker.clone() });
        let log = self.log.iter().map(|logged| match logged {
            Logged::Claim { claim, key, owner, takeover, .. } => {
                NodeItem::Claim { claim: *claim, key: key.clone(), owner: owner.clone(), takeover: *takeover }
            }
            Logged::Unclaim { key } => NodeItem::Unclaim { key: key.clone() },
        });
        let watches =
            self.watches.iter().map(|(key, newer)| NodeItem::Resolve { key: key.clone(), newer_than: *newer });
        let worker_questions =
            self.worker_questions.iter().map(|worker| NodeItem::ResolveWorker { worker: worker.clone() });
        let node_questions = self.node_questions.keys().map(|node| NodeItem::ResolveNode { node: node.clone() });
        workers.chain(log).chain(watches).chain(worker_questions).chain(node_questions).collect()
    }

    /// What the directory answered. Answers to questions that nobody asks any more are dropped.
    pub(crate) fn answer(&mut self, answer: Answer) -> Option<News> {
        match answer {
            Answer::Claimed { claim, .. } => {
                let key = self.answered(claim)?;
                Some(News::Claimed { key, result: Ok(()) })
            }
            Answer::ClaimRefused { claim, owner, node } => {
                let key = self.answered(claim)?;
                Some(News::Claimed { key, result: Err(Refused::Owned { owner, node }) })
            }
            Answer::Lost { key, owner } => Some(News::Lost { key, owner }),
            Answer::WorkerAdmitted { worker } => {
                if let Some(answer) = self.workers.get_mut(&worker)?.take() {
                    // Who asked may have given up.
                    let _ = answer.send(Ok(()));
                }
                None
            }
            Answer::WorkerRefused { worker, node } => {
                match self.workers.remove(&worker)? {
                    Some(answer) => drop(answer.send(Err(node))),
                    None => tracing::error!(
                        %worker, other_node = %node,
                        "the directory is a new one, and another node entered a worker of the same name first: pushes to that \
                         name go there; end one of the two"
                    ),
                }
                None
            }
            Answer::Located { key, at, sequence } => {
                let newer_than = self.watches.get(&key)?;
                if sequence <= *newer_than {
                    return None;
                }
                self.watches.remove(&key);
                Some(News::Located { key, node: at.node, sequence })
            }
            Answer::WorkerLocated { worker, node } => {
                self.worker_questions.take(&worker).map(|worker| News::WorkerLocated { worker, node })
            }
            Answer::NodeLocated { node, at } => {
                for answer in self.node_questions.remove(&node)? {
                    let _ = answer.send(at.clone());
                }
                None
            }
        }
    }

    fn answered(&mut self, answered: u64) -> Option<Key> {
        match self.log.front()? {
            Logged::Claim { claim, .. } if *claim == answered => self.pop_claim(),
            // Given up before the answer came.
            _ => None,
        }
    }

    /// Takes the first claim out of the log, and the unclaims that follow it: nothing is left that they could end.
    fn pop_claim(&mut self) -> Option<Key> {
        let first = self.log.pop_front();
        while let Some(Logged::Unclaim { .. }) = self.log.front() {
            self.log.pop_front();
        }
        match first {
            Some(Logged::Claim { key, .. }) => Some(key),
            _ => None,
        }
    }

    /// Gives up claims that have waited for `patience` or longer while this node was not attached, and why.
    pub(crate) fn give_up(&mut self, now: Instant, patience: Duration, why: &str) -> Vec<News> {
        let mut news = Vec::new();
        while let Some(Logged::Claim { since, .. }) = self.log.front()
            && now.duration_since(*since) >= patience
            && let Some(key) = self.pop_claim()
        {
            news.push(News::Claimed { key, result: Err(Refused::Unreachable(why.to_owned())) });
        }
        news
    }
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

    fn claim(k: &str) -> Ask {
        Ask::Claim { key: key(k), owner: name("w"), takeover: false }
    }

    fn claimed(k: &str) -> Option<News> {
        Some(News::Claimed { key: key(k), result: Ok(()) })
    }

    #[test]
    fn what_has_no_answer_is_said_again_in_its_order() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        // No claim waits: an unclaim need not be kept, the entries go with the attachment.
        ledger.ask(Ask::Unclaim { key: key("z") }, now);
        let said = ["a", "b"].map(|k| ledger.ask(claim(k), now).unwrap());
        ledger.ask(Ask::Unclaim { key: key("a") }, now);
        let again = ledger.replay();
        assert_eq!(again, [said[0].clone(), said[1].clone(), NodeItem::Unclaim { key: key("a") }]);
        assert_eq!(ledger.answer(Answer::Claimed { claim: 1, sequence: 1 }), claimed("a"));
        assert_eq!(ledger.replay().len(), 2);
        assert_eq!(ledger.answer(Answer::Claimed { claim: 2, sequence: 2 }), claimed("b"));
        assert_eq!(ledger.replay(), []);
        assert_eq!(ledger.answer(Answer::Claimed { claim: 2, sequence: 2 }), None);
    }

    #[test]
    fn a_claim_waits_for_the_directory_only_so_long() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        ledger.ask(claim("a"), start);
        ledger.ask(Ask::Unclaim { key: key("a") }, start);
        ledger.ask(claim("b"), start + Duration::from_secs(2));
        let news = ledger.give_up(start + Duration::from_secs(3), Duration::from_secs(3), "gone");
        let refused = Err(Refused::Unreachable("gone".into()));
        assert_eq!(news, [News::Claimed { key: key("a"), result: refused }]);
        assert_eq!(ledger.replay().len(), 1);
    }

    #[test]
    fn watches_end_when_found_or_stopped() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        ledger.ask(Ask::Resolve { key: key("a"), newer_than: 5 }, now);
        ledger.ask(Ask::Resolve { key: key("b"), newer_than: 0 }, now);
        assert_eq!(ledger.ask(Ask::StopResolve { key: key("c") }, now), None);
        assert!(ledger.ask(Ask::StopResolve { key: key("b") }, now).is_some());
        assert_eq!(ledger.replay(), [NodeItem::Resolve { key: key("a"), newer_than: 5 }]);
        let at = NodeAt { node: name("n"), address: "".into(), incarnation: 1 };
        let located = |k: &str, sequence| Answer::Located { key: key(k), at: at.clone(), sequence };
        assert_eq!(ledger.answer(located("b", 9)), None);
        assert_eq!(ledger.answer(located("a", 5)), None);
        let news = News::Located { key: key("a"), node: name("n"), sequence: 6 };
        assert_eq!(ledger.answer(located("a", 6)), Some(news));
        assert_eq!(ledger.replay(), []);
    }

    #[test]
    fn workers_are_announced_again() {
        let now = Instant::now();
        let mut ledger = Ledger::default();
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(Ask::WorkerUp { worker: name("w"), answer }, now);
        ledger.answer(Answer::WorkerAdmitted { worker: name("w") });
        assert_eq!(heard.try_recv(), Ok(Ok(())));
        assert_eq!(ledger.replay(), [NodeItem::WorkerUp { worker: name("w") }]);
        ledger.ask(Ask::WorkerDown { worker: name("w") }, now);
        assert_eq!(ledger.replay(), []);
        let (answer, mut heard) = oneshot::channel();
        ledger.ask(Ask::WorkerUp { worker: name("w"), answer }, now);
        ledger.answer(Answer::WorkerRefused { worker: name("w"), node: name("b") });
        assert_eq!(heard.try_recv(), Ok(Err(name("b"))));
        assert_eq!(ledger.replay(), []);
    }
}
