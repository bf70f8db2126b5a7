//! A small model of the directory, with delays: each node's words arrive in their order, and so do the answers.

use super::{Cluster, Happening};
use crate::protocol::ClaimRefused;
use crate::tensor::{Key, Name};
use crate::time::Time;
use rand::Rng;
use std::collections::BTreeMap;

/// What a node says.
#[derive(Debug)]
pub(super) enum Said {
    Claim(Key, Name),
    Unclaim(Key),
    Resolve(Key, u64),
    StopResolve(Key),
    ResolveWorker(Name),
    /// A worker of that name wants to connect: the name, and its number in the cluster.
    WorkerUp(Name, usize),
    WorkerDown(Name),
}

/// What a node hears.
#[derive(Debug)]
pub(super) enum Heard {
    Claimed(Key, Result<(), ClaimRefused>),
    Located(Key, Name, u64),
    WorkerLocated(Name, Option<Name>),
    Admitted(usize, bool),
}

/// On its way.
#[derive(Debug)]
pub(super) enum Letter {
    To(usize, Said),
    From(usize, Heard),
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    sequence: u64,
    entries: BTreeMap<String, (Name, usize, u64)>,
    workers: BTreeMap<String, usize>,
    watches: BTreeMap<String, Vec<usize>>,
    /// What each node itself knows to be waiting for; answers to others are dropped on arrival.
    asked: BTreeMap<(usize, String), u64>,
    last_to: BTreeMap<usize, Time>,
    last_from: BTreeMap<usize, Time>,
}

impl Directory {
    pub(super) fn watch(&mut self, node: usize, key: &Key, newer_than: u64) {
        self.asked.insert((node, key.to_string()), newer_than);
    }

    pub(super) fn unwatch(&mut self, node: usize, key: &Key) {
        self.asked.remove(&(node, key.to_string()));
    }

    /// A watch may be left here, of a question that the answer to an earlier one has settled; its answer would be dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() as u64 == self.reserved() && self.workers.is_empty() && self.asked.is_empty()
    }

    /// Counters and barriers, which stay.
    pub(super) fn reserved(&self) -> u64 {
        self.entries.keys().filter(|key| Key::new(key).is_err()).count() as u64
    }

    /// A node is gone, and with it what it said.
    pub(super) fn forget_node(&mut self, node: usize) {
        self.entries.retain(|_, (_, at, _)| *at != node);
        self.workers.retain(|_, at| *at != node);
        self.watches.retain(|_, waiting| {
            waiting.retain(|n| *n != node);
            !waiting.is_empty()
        });
        self.asked.retain(|(n, _), _| *n != node);
    }

    /// It is a new one: it knows of no key.
    pub(super) fn forget_keys(&mut self) {
        self.entries.clear();
        self.watches.clear();
    }

    fn apply(&mut self, from: usize, said: Said, names: &[Name], answer: &mut Vec<(usize, Heard)>) {
        match said {
            Said::Claim(key, owner) => match self.entries.get(key.as_str()) {
                Some((other, node, _)) if *other != owner => {
                    let refused = ClaimRefused::Owned { owner: other.clone(), node: names[*node].clone() };
                    answer.push((from, Heard::Claimed(key, Err(refused))));
                }
                _ => {
                    self.sequence += 1;
                    self.entries.insert(key.to_string(), (owner, from, self.sequence));
                    answer.push((from, Heard::Claimed(key.clone(), Ok(()))));
                    for node in self.watches.remove(key.as_str()).unwrap_or_default() {
                        answer.push((node, Heard::Located(key.clone(), names[from].clone(), self.sequence)));
                    }
                }
            },
            Said::Unclaim(key) => {
                if self.entries.get(key.as_str()).is_some_and(|(_, node, _)| *node == from) {
                    self.entries.remove(key.as_str());
                }
            }
            Said::Resolve(key, newer_than) => match self.entries.get(key.as_str()) {
                Some((_, node, sequence)) if *sequence > newer_than => {
                    answer.push((from, Heard::Located(key, names[*node].clone(), *sequence)));
                }
                _ => {
                    let waiting = self.watches.entry(key.to_string()).or_default();
                    if !waiting.contains(&from) {
                        waiting.push(from);
                    }
                }
            },
            Said::StopResolve(key) => {
                if let Some(waiting) = self.watches.get_mut(key.as_str()) {
                    waiting.retain(|n| *n != from);
                    if waiting.is_empty() {
                        self.watches.remove(key.as_str());
                    }
                }
            }
            Said::ResolveWorker(worker) => {
                let node = self.workers.get(worker.as_str()).map(|n| names[*n].clone());
                answer.push((from, Heard::WorkerLocated(worker, node)));
            }
            Said::WorkerUp(name, worker) => {
                let free = self.workers.get(name.as_str()).is_none_or(|n| *n == from);
                if free {
                    self.workers.insert(name.to_string(), from);
                }
                answer.push((from, Heard::Admitted(worker, free)));
            }
            Said::WorkerDown(name) => {
                if self.workers.get(name.as_str()) == Some(&from) {
                    self.workers.remove(name.as_str());
                }
            }
        }
    }
}

impl Cluster {
    pub(super) fn tell_directory(&mut self, node: usize, said: Said) {
        let at = self.soon().max(self.directory.last_to.get(&node).copied().unwrap_or_default());
        self.directory.last_to.insert(node, at);
        self.later(at, Happening::Directory(Letter::To(node, said)));
    }

    pub(super) fn letter(&mut self, letter: Letter) -> Result<(), String> {
        match letter {
            Letter::To(from, said) => {
                self.world.note(|| format!("the directory hears {from}: {said:?}"));
                if let Said::Claim(key, _) = &said
                    && !self.play.calm
                    && self.rng.random_range(0..50) == 0
                {
                    let refused = ClaimRefused::Unreachable("it is asleep".into());
                    let heard = Heard::Claimed(key.clone(), Err(refused));
                    self.answer(from, heard);
                    return Ok(());
                }
                let names: Vec<_> = self.nodes.iter().map(|n| n.name.clone()).collect();
                let mut answers = Vec::new();
                self.directory.apply(from, said, &names, &mut answers);
                for (node, heard) in answers {
                    self.answer(node, heard);
                }
            }
            Letter::From(node, heard) => {
                self.world.note(|| format!("{node} hears of the directory: {heard:?}"));
                let now = self.clock(node);
                let n = &mut self.nodes[node].driver.node;
                match heard {
                    Heard::Claimed(key, result) => n.claimed(now, &key, result),
                    Heard::Located(key, at, sequence) => {
                        let asked = self.directory.asked.get(&(node, key.to_string())).copied();
                        match asked {
                            Some(newer_than) if sequence > newer_than => {
                                self.directory.asked.remove(&(node, key.to_string()));
                                n.located(now, &key, &at, sequence);
                            }
                            _ => {}
                        }
                    }
                    Heard::WorkerLocated(worker, at) => n.worker_located(now, &worker, at.as_ref()),
                    Heard::Admitted(worker, yes) => self.admitted(node, worker, yes),
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, node: usize, heard: Heard) {
        let at = self.soon().max(self.directory.last_from.get(&node).copied().unwrap_or_default());
        self.directory.last_from.insert(node, at);
        self.later(at, Happening::Directory(Letter::From(node, heard)));
    }
}
