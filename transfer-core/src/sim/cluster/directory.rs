//! A small model of the directory, with delays. The messages of each node arrive in order, and so do the answers to it.

use super::{Cluster, Happening};
use crate::protocol::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest, SessionId};
use crate::tensor::{Key, Name};
use crate::time::Time;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// A message of a node to the directory.
#[derive(Debug)]
pub(super) enum Said {
    Claim(Claim),
    Request(DirectoryRequest),
    /// A worker wants to connect: its name, and its number in the cluster.
    WorkerUp(Name, usize),
    /// A worker of that name is connected as this session. It is repeated to a directory that forgot.
    WorkerStays(Name, SessionId),
    WorkerDown(Name),
}

/// A message of the directory to a node.
#[derive(Debug)]
pub(super) enum Heard {
    News(DirectoryNews),
    Admitted(usize, bool),
    /// The name of this session belongs to a worker of that node.
    NameLost(SessionId, Name),
}

impl Heard {
    fn claimed(key: Key, result: Result<u64, ClaimRefused>) -> Heard {
        Heard::News(DirectoryNews::Claimed { key, result })
    }

    fn located(key: Key, node: Name, sequence: u64) -> Heard {
        Heard::News(DirectoryNews::Located { key, node, sequence })
    }
}

/// A message in flight.
#[derive(Debug)]
pub(super) enum Letter {
    To(usize, Said),
    From(usize, Heard),
}

/// An entered key.
#[derive(Debug)]
struct Entered {
    owner: Name,
    /// Two tenants may have workers of one name. None for keys that nodes own.
    tenant: Option<Name>,
    node: usize,
    sequence: u64,
    /// The number by which it had been entered for this owner and node before, or 0.
    earlier: u64,
}

impl Entered {
    fn is_of(&self, key: &Key, owner: &Name, tenant: &Name) -> bool {
        self.owner == *owner && (key.reserved_for().is_some() || self.tenant.as_ref() == Some(tenant))
    }

    /// Returns the number by which it was first entered for this owner and node.
    fn first_entered(&self) -> u64 {
        if self.earlier > 0 { self.earlier } else { self.sequence }
    }
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    sequence: u64,
    /// The last number of the directory before this one.
    before_first: u64,
    entries: BTreeMap<String, Entered>,
    workers: BTreeMap<String, usize>,
    watches: BTreeMap<String, Vec<usize>>,
    /// The resolutions that each node still waits for. Other answers are dropped on arrival.
    asked: BTreeMap<(usize, String), u64>,
    last_to: BTreeMap<usize, Time>,
    last_from: BTreeMap<usize, Time>,
    /// The nodes that are cut off from the directory.
    pub(super) cut: BTreeSet<usize>,
    /// Workers that nodes have asked for without an answer. The nodes ask again.
    questions: BTreeSet<(usize, Name, Name)>,
    /// Whether a node has received something since the owners were last compared.
    pub(super) is_news: bool,
}

impl Directory {
    pub(super) fn watch(&mut self, node: usize, key: &Key, newer_than: u64) {
        self.asked.insert((node, key.to_string()), newer_than);
    }

    pub(super) fn unwatch(&mut self, node: usize, key: &Key) {
        self.asked.remove(&(node, key.to_string()));
    }

    /// Returns whether only counters and barriers are left. Watches are not checked, because one may be left whose
    /// question an earlier answer has settled. Its own answer would be dropped.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() as u64 == self.reserved() && self.workers.is_empty() && self.asked.is_empty()
    }

    /// Returns the number of counters and barriers, which stay.
    pub(super) fn reserved(&self) -> u64 {
        self.entries.keys().filter(|key| Key::new(key).is_err()).count() as u64
    }

    /// Forgets a node that is gone, and what it has entered.
    pub(super) fn forget_node(&mut self, node: usize) {
        self.detach(node);
        self.asked.retain(|(n, _), _| *n != node);
        self.questions.retain(|(n, ..)| *n != node);
    }

    /// Removes the entries, names and watches of a node that the directory does not hear.
    fn detach(&mut self, node: usize) {
        self.entries.retain(|_, entry| entry.node != node);
        self.workers.retain(|_, at| *at != node);
        self.watches.retain(|_, waiting| {
            waiting.retain(|n| *n != node);
            !waiting.is_empty()
        });
    }

    /// Forgets all keys and watches, like a new directory.
    pub(super) fn forget_keys(&mut self) {
        self.before_first = self.sequence;
        self.entries.clear();
        self.watches.clear();
    }

    /// Returns the number by which an earlier directory has entered a key, if this one is of an earlier directory, or 0.
    fn earlier(&self, entered: u64) -> u64 {
        if entered <= self.before_first { entered } else { 0 }
    }

    fn apply(&mut self, from: usize, said: Said, names: &[Name], answer: &mut Vec<(usize, Heard)>) {
        match said {
            // Two workers have the same name. The key belongs to the worker that holds the name.
            Said::Claim(Claim { key, owner, resident: true, .. })
                if self.workers.get(owner.as_str()).is_some_and(|at| *at != from) =>
            {
                let node = names[self.workers[owner.as_str()]].clone();
                answer.push((from, Heard::claimed(key, Err(ClaimRefused::Owned { owner, node }))));
            }
            Said::Claim(Claim { key, owner, tenant, entered, .. }) => match self.entries.get(key.as_str()) {
                Some(other)
                    if !other.is_of(&key, &owner, &tenant) && !(1..self.earlier(entered)).contains(&other.earlier) =>
                {
                    let refused = ClaimRefused::Owned { owner: other.owner.clone(), node: names[other.node].clone() };
                    answer.push((from, Heard::claimed(key, Err(refused))));
                }
                // The same worker has pushed it to another node since.
                Some(other)
                    if other.node != from
                        && other.is_of(&key, &owner, &tenant)
                        && (1..other.first_entered()).contains(&entered) =>
                {
                    answer.push((from, Heard::claimed(key.clone(), Ok(entered))));
                    answer.push((from, Heard::News(DirectoryNews::KeyLost { key, owner })));
                }
                other => {
                    if let Some(other) = other.filter(|other| other.node != from) {
                        let (key, owner) = (key.clone(), owner.clone());
                        answer.push((other.node, Heard::News(DirectoryNews::KeyLost { key, owner })));
                    }
                    self.sequence += 1;
                    let tenant = key.reserved_for().is_none().then_some(tenant);
                    let entry = Entered { owner, tenant, node: from, sequence: self.sequence, earlier: entered };
                    self.entries.insert(key.to_string(), entry);
                    answer.push((from, Heard::claimed(key.clone(), Ok(self.sequence))));
                    for node in self.watches.remove(key.as_str()).unwrap_or_default() {
                        answer.push((node, Heard::located(key.clone(), names[from].clone(), self.sequence)));
                    }
                }
            },
            Said::Request(request) => self.answer_request(from, request, names, answer),
            Said::WorkerUp(name, worker) => {
                let free = self.workers.get(name.as_str()).is_none_or(|n| *n == from);
                if free {
                    self.workers.insert(name.to_string(), from);
                }
                answer.push((from, Heard::Admitted(worker, free)));
            }
            Said::WorkerStays(name, session) => match self.workers.get(name.as_str()) {
                Some(node) if *node != from => answer.push((from, Heard::NameLost(session, names[*node].clone()))),
                _ => drop(self.workers.insert(name.to_string(), from)),
            },
            Said::WorkerDown(name) => {
                if self.workers.get(name.as_str()) == Some(&from) {
                    self.workers.remove(name.as_str());
                }
            }
        }
    }

    fn answer_request(
        &mut self,
        from: usize,
        request: DirectoryRequest,
        names: &[Name],
        answer: &mut Vec<(usize, Heard)>,
    ) {
        match request {
            DirectoryRequest::Unclaim { key } => {
                if self.entries.get(key.as_str()).is_some_and(|entry| entry.node == from) {
                    self.entries.remove(key.as_str());
                }
            }
            DirectoryRequest::Resolve { key, newer_than } => match self.entries.get(key.as_str()) {
                Some(entry) if entry.sequence > newer_than => {
                    answer.push((from, Heard::located(key, names[entry.node].clone(), entry.sequence)));
                }
                _ => {
                    let waiting = self.watches.entry(key.to_string()).or_default();
                    if !waiting.contains(&from) {
                        waiting.push(from);
                    }
                }
            },
            DirectoryRequest::Recited => {}
            DirectoryRequest::StopResolve { key } => {
                if let Some(waiting) = self.watches.get_mut(key.as_str()) {
                    waiting.retain(|n| *n != from);
                    if waiting.is_empty() {
                        self.watches.remove(key.as_str());
                    }
                }
            }
            DirectoryRequest::ResolveWorker { worker, tenant } => {
                let node = self.workers.get(worker.as_str()).map(|n| names[*n].clone());
                answer.push((from, Heard::News(DirectoryNews::WorkerLocated { worker, tenant, node })));
            }
        }
    }
}

impl Cluster {
    pub(super) fn tell_directory(&mut self, node: usize, said: Said) {
        if self.directory.cut.contains(&node) {
            return self.go_on_alone(node, said);
        }
        let at = self.soon().max(self.directory.last_to.get(&node).copied().unwrap_or_default());
        self.directory.last_to.insert(node, at);
        self.later(at, Happening::Directory(Letter::To(node, said)));
    }

    pub(super) fn letter(&mut self, letter: Letter) -> Result<(), String> {
        match letter {
            Letter::To(from, said) => {
                self.world.note(|| format!("the directory hears {from}: {said:?}"));
                if let Said::Claim(Claim { key, .. }) = &said
                    && !self.play.calm
                    // A restarting cluster claims keys again, and such a claim needs an answer.
                    && !self.play.restarts
                    && self.rng.random_range(0..50) == 0
                {
                    let refused = ClaimRefused::Unreachable("it is asleep".into());
                    let heard = Heard::claimed(key.clone(), Err(refused));
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
                self.directory.is_news = true;
                let now = self.clock(node);
                let n = &mut self.nodes[node].driver.node;
                match heard {
                    Heard::News(DirectoryNews::Located { key, node: at, sequence }) => {
                        let asked = self.directory.asked.get(&(node, key.to_string())).copied();
                        if asked.is_some_and(|newer_than| sequence > newer_than) {
                            self.directory.asked.remove(&(node, key.to_string()));
                            n.directory_news(now, DirectoryNews::Located { key, node: at, sequence });
                        }
                    }
                    Heard::News(news) => n.directory_news(now, news),
                    Heard::Admitted(worker, yes) => self.admitted(node, worker, yes),
                    Heard::NameLost(session, at) => n.name_lost(now, session, &at),
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

    /// Handles a message that a node cannot send because it is cut off: the node grants its own workers what no worker
    /// of the node has.
    fn go_on_alone(&mut self, node: usize, said: Said) {
        match said {
            Said::Claim(Claim { key, .. }) if key.reserved_for().is_some() => {
                let refused = ClaimRefused::Unreachable("it is down".into());
                self.answer(node, Heard::claimed(key, Err(refused)));
            }
            // Otherwise the claim waits. The directory is back before the node stops waiting.
            Said::Claim(Claim { key, .. }) if self.chance(80) => self.answer(node, Heard::claimed(key, Ok(0))),
            Said::WorkerUp(_, worker) => self.answer(node, Heard::Admitted(worker, true)),
            Said::Request(DirectoryRequest::ResolveWorker { worker, tenant }) => {
                self.directory.questions.insert((node, worker, tenant));
            }
            _ => {}
        }
    }

    /// Handles news that was lost in flight when the node was cut off.
    fn unheard(&mut self, node: usize, news: DirectoryNews) {
        match news {
            DirectoryNews::Claimed { key, .. } => {
                let owner = self.nodes[node].name.clone();
                let claim = Claim { key, tenant: owner.clone(), owner, resident: true, takeover: false, entered: 0 };
                self.go_on_alone(node, Said::Claim(claim));
            }
            DirectoryNews::WorkerLocated { worker, tenant, .. } => {
                self.go_on_alone(node, Said::Request(DirectoryRequest::ResolveWorker { worker, tenant }));
            }
            DirectoryNews::Attached | DirectoryNews::KeyLost { .. } | DirectoryNews::Located { .. } => {}
        }
    }

    /// Cuts the connection between a node and the directory.
    pub(super) fn cut_off(&mut self, node: usize) {
        if self.ending || !self.directory.cut.insert(node) {
            return;
        }
        self.world.note(|| format!("{node} is cut off from the directory"));
        self.directory.detach(node);
        for (at, what) in std::mem::take(&mut self.agenda) {
            match what {
                Happening::Directory(Letter::To(n, said)) if n == node => self.go_on_alone(node, said),
                Happening::Directory(Letter::From(n, heard)) if n == node => match heard {
                    Heard::News(news) => self.unheard(node, news),
                    Heard::Admitted(worker, _) => self.answer(node, Heard::Admitted(worker, true)),
                    Heard::NameLost(..) => {}
                },
                what => drop(self.agenda.insert(at, what)),
            }
        }
        let at = self.soon() + self.delay * self.rng.random_range(0..200);
        self.later(at, Happening::Attach(node));
    }

    /// Restores the connection between a node and the directory. The node repeats its workers, the answers it waits
    /// for, and its keys.
    pub(super) fn attach(&mut self, node: usize) {
        self.world.note(|| format!("{node} is attached to the directory"));
        self.directory.cut.remove(&node);
        let here = |w: &super::Worker| (w.node == node).then_some(w.session.map(|s| (w.name.clone(), s))).flatten();
        let stay: Vec<_> = self.workers.iter().filter_map(here).collect();
        for (name, session) in stay {
            self.tell_directory(node, Said::WorkerStays(name, session));
        }
        // Repeat the requests of workers that were given their names and have not been told yet.
        for (at, what) in std::mem::take(&mut self.agenda) {
            match what {
                Happening::Directory(Letter::From(n, Heard::Admitted(worker, _))) if n == node => {
                    let name = self.workers[worker].name.clone();
                    self.tell_directory(node, Said::WorkerUp(name, worker));
                }
                what => drop(self.agenda.insert(at, what)),
            }
        }
        let asked: Vec<_> = self.directory.asked.iter().filter(|((n, _), _)| *n == node).collect();
        let asked: Vec<_> = asked.into_iter().map(|((_, key), newer)| (key.clone(), *newer)).collect();
        for (key, newer_than) in asked {
            let key = Key::of_directory(&key).unwrap();
            self.tell_directory(node, Said::Request(DirectoryRequest::Resolve { key, newer_than }));
        }
        let (again, rest) = std::mem::take(&mut self.directory.questions).into_iter().partition(|(n, ..)| *n == node);
        self.directory.questions = rest;
        let again: BTreeSet<(usize, Name, Name)> = again;
        for (_, worker, tenant) in again {
            self.tell_directory(node, Said::Request(DirectoryRequest::ResolveWorker { worker, tenant }));
        }
        let now = self.clock(node);
        self.nodes[node].driver.node.directory_news(now, DirectoryNews::Attached);
    }

    /// Once all messages have arrived, checks that each key has one owner and each name one worker.
    pub(super) fn check_owners(&mut self) -> Result<(), String> {
        let letters = |what: &Happening| matches!(what, Happening::Directory(_));
        let asleep = self.nodes.iter().any(|n| n.asleep_until > self.now);
        if asleep || !self.directory.cut.is_empty() || self.agenda.values().any(letters) {
            return Ok(());
        }
        self.directory.is_news = false;
        let (mut owners, mut names) = (BTreeMap::new(), BTreeMap::new());
        for n in &self.nodes {
            for (key, owner) in n.driver.node.owners().into_iter().filter(|(key, _)| self.stays_at_home(key)) {
                let text = key.to_string();
                let before = owners.entry(text).or_insert_with(|| (owner.clone(), n.name.clone()));
                if before.0 != owner {
                    let (owner_there, there) = before;
                    return Err(format!("{key} is {owner_there}'s at {there} and {owner}'s at {}", n.name));
                }
            }
            for worker in n.driver.node.worker_names() {
                if let Some(there) = names.insert(worker.to_string(), n.name.clone()) {
                    return Err(format!("{worker} is at {there} and at {}", n.name));
                }
            }
        }
        Ok(())
    }
}
