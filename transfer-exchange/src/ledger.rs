//! What this process has published for an exchange, and what becomes of it.

use crate::bell::Bell;
use crate::calls::delete;
use crate::error::{End, Error, ExchangeError};
use parking_lot::Mutex;
use std::sync::Arc;
use transfer_client::Key;
use transfer_client::flow::Io;
use transfer_memory::forked::ForkGuard;

/// See the [module](self).
pub(super) struct Ledger {
    pub(super) name: String,
    held: Mutex<Held>,
    pub(super) bell: Bell,
    guard: ForkGuard,
}

#[derive(Default)]
struct Held {
    list: Vec<Published>,
    next: u64,
    end: Option<End>,
}

/// What an attempt has published.
#[derive(Debug, Clone)]
pub(super) struct Published {
    number: u64,
    pub(super) task: u32,
    pub(super) attempt: u32,
    pub(super) keys: Vec<Key>,
    pub(super) fate: Fate,
}

/// What becomes of what an attempt has published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The attempt is being written, and no call is under way. The end of the exchange takes it.
    Writing,
    /// A call publishes it, or decides about it, at this moment.
    Deciding,
    /// The call was given up. The word of the task says it.
    Unknown,
    /// It has committed.
    Committed,
}

impl Ledger {
    pub(super) fn new(name: String, guard: ForkGuard) -> Arc<Ledger> {
        Arc::new(Ledger { name, held: Mutex::default(), bell: Bell::default(), guard })
    }

    /// Whether this process is a forked child of the one that has opened or joined the exchange.
    pub(super) fn is_forked(&self) -> bool {
        self.guard.is_forked()
    }

    // ---- its end ----

    /// The error of calls after the end.
    pub(super) fn over(&self, why: End) -> Error {
        ExchangeError::Over { name: self.name.clone(), why }.into()
    }

    /// # Errors
    /// [`ExchangeError::Over`].
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.held.lock().end {
            Some(why) => Err(self.over(why)),
            None => Ok(()),
        }
    }

    /// Notes that the exchange is over. The first reason stays. Returns it.
    pub(super) fn end(&self, why: End) -> End {
        let why = *self.held.lock().end.get_or_insert(why);
        self.bell.ring();
        why
    }

    pub(super) fn ended(&self) -> Option<End> {
        self.held.lock().end
    }

    // ---- what this process has published ----

    /// Notes keys that an attempt is about to publish.
    ///
    /// # Errors
    /// [`ExchangeError::Over`].
    pub(super) fn hold(self: &Arc<Self>, task: u32, attempt: u32, keys: Vec<Key>) -> Result<Holding, Error> {
        let mut held = self.held.lock();
        if let Some(why) = held.end {
            return Err(self.over(why));
        }
        if held.list.iter().any(|p| (p.task, p.attempt) == (task, attempt)) {
            return Err(ExchangeError::AttemptUsed { name: self.name.clone(), task, attempt }.into());
        }
        let number = held.next;
        held.next += 1;
        held.list.push(Published { number, task, attempt, keys, fate: Fate::Deciding });
        Ok(Holding { ledger: self.clone(), number })
    }

    /// Takes what was published under this number, to delete it.
    pub(super) fn take(&self, number: u64) -> Option<Published> {
        let list = &mut self.held.lock().list;
        let at = list.iter().position(|p| p.number == number)?;
        Some(list.swap_remove(at))
    }

    fn keys_of(&self, number: u64) -> Vec<Key> {
        let list = &self.held.lock().list;
        list.iter().find(|p| p.number == number).map_or_else(Vec::new, |p| p.keys.clone())
    }

    /// Takes everything that no call decides about, after the end.
    pub(super) fn take_all(&self) -> Vec<Published> {
        let list = &mut self.held.lock().list;
        let (deciding, taken) = std::mem::take(list).into_iter().partition(|p| p.fate == Fate::Deciding);
        *list = deciding;
        taken
    }

    /// Whether this process has published something that is not deleted yet.
    pub(super) fn holds(&self) -> bool {
        !self.held.lock().list.is_empty()
    }

    /// What no call decides about: numbers, tasks and attempts.
    pub(super) fn undecided(&self, fate: Fate) -> Vec<(u64, u32, u32)> {
        let held = self.held.lock();
        held.list.iter().filter(|p| p.fate == fate).map(|p| (p.number, p.task, p.attempt)).collect()
    }

    pub(super) fn decide(&self, number: u64, fate: Fate) {
        if let Some(published) = self.held.lock().list.iter_mut().find(|p| p.number == number) {
            published.fate = fate;
        }
    }
}

/// The right to decide about what an attempt has published. When it is dropped, the keeper looks at the word of the
/// task, and deletes what has not won.
pub(super) struct Holding {
    ledger: Arc<Ledger>,
    number: u64,
}

impl Holding {
    /// Notes a key that the attempt is about to publish.
    ///
    /// # Errors
    /// [`ExchangeError::Over`].
    pub(super) fn add(&self, key: Key) -> Result<(), Error> {
        let mut held = self.ledger.held.lock();
        if let Some(why) = held.end {
            return Err(self.ledger.over(why));
        }
        if let Some(published) = held.list.iter_mut().find(|p| p.number == self.number) {
            published.fate = Fate::Deciding;
            published.keys.push(key);
        }
        Ok(())
    }

    /// No call is under way: the end of the exchange may take what the attempt has published.
    pub(super) fn rest(&self) {
        self.ledger.decide(self.number, Fate::Writing);
        if self.ledger.ended().is_some() {
            self.ledger.bell.ring();
        }
    }

    /// Keeps what the attempt has published, and the mark and the note that it is about to publish, until the exchange
    /// is over.
    pub(super) fn committed(self, more: [Key; 2]) {
        if let Some(published) = self.ledger.held.lock().list.iter_mut().find(|p| p.number == self.number) {
            published.fate = Fate::Committed;
            published.keys.extend(more);
        }
    }

    /// Deletes what the attempt has published. If this is given up, the keeper does it.
    pub(super) async fn delete(self, io: &Io) {
        let keys = self.ledger.keys_of(self.number);
        delete(io, &self.ledger.name, keys).await;
        self.ledger.take(self.number);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.ledger.is_forked() {
            return;
        }
        let mut held = self.ledger.held.lock();
        let number = self.number;
        if let Some(published) = held.list.iter_mut().find(|p| p.number == number) {
            if matches!(published.fate, Fate::Deciding | Fate::Writing) {
                published.fate = Fate::Unknown;
            }
            drop(held);
            self.ledger.bell.ring();
        }
    }
}
