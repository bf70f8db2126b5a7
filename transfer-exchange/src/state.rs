//! What all handles of one exchange in a process share.

use crate::attempt::Attempt;
use crate::error::{End, Error, ExchangeError};
use crate::free_words::FreeWords;
use crate::ledger::Ledger;
use crate::names::{ExchangeId, anchor_key, bundle_key, mark_key, note_key, record_key, stamp, word_name};
use crate::record::Record;
use crate::threshold::PublishThreshold;
use crate::word::{MAX_ATTEMPT, Word, WordLocation};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::flow::Io;
use transfer_client::{BlockingClient, FailureCode, Key};
use transfer_memory::forked::ForkGuard;

/// See the [module](self).
pub(super) struct ExchangeState {
    pub(super) name: String,
    pub(super) record: Record,
    pub(super) client: BlockingClient,
    /// Whether this handle has opened the exchange.
    pub(super) is_opener: bool,
    /// When the exchange ends by itself; only its opener knows.
    pub(super) deadline: Option<Instant>,
    /// The counters of the words that were found so far.
    words: Vec<Mutex<Option<WordLocation>>>,
    /// The attempts that have committed, as far as they are known, and where their blocks are.
    known: Vec<Mutex<Option<Arc<Attempt>>>>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) threshold: PublishThreshold,
}

impl ExchangeState {
    pub(super) fn new(
        name: String,
        record: Record,
        client: BlockingClient,
        words: Vec<WordLocation>,
        deadline: Option<Instant>,
        guard: ForkGuard,
    ) -> ExchangeState {
        let (tasks, is_opener) = (record.words.len(), !words.is_empty());
        let mut words: Vec<_> = words.into_iter().map(|word| Mutex::new(Some(word))).collect();
        words.resize_with(tasks, Mutex::default);
        let known = (0..tasks).map(|_| Mutex::default()).collect();
        let (ledger, threshold) = (Ledger::new(name.clone(), guard), PublishThreshold::default());
        ExchangeState { name, record, client, is_opener, deadline, words, known, ledger, threshold }
    }

    pub(super) fn id(&self) -> ExchangeId {
        self.record.id
    }

    /// What stands in the words of its tasks.
    pub(super) fn stamp(&self) -> u32 {
        stamp(self.record.id)
    }

    pub(super) fn tasks(&self) -> u32 {
        self.record.words.len() as u32
    }

    pub(super) fn partitions(&self) -> u32 {
        self.record.partitions
    }

    // ---- words ----

    /// # Errors
    /// [`ExchangeError::NoSuchTask`].
    pub(super) fn check_task(&self, task: u32) -> Result<(), ExchangeError> {
        let (name, tasks) = (self.name.clone(), self.tasks());
        if task < tasks { Ok(()) } else { Err(ExchangeError::NoSuchTask { name, task, tasks }) }
    }

    /// # Errors
    /// [`ExchangeError::NoSuchAttempt`].
    pub(super) fn check_attempt(&self, task: u32, attempt: u32) -> Result<(), ExchangeError> {
        let (name, most) = (self.name.clone(), MAX_ATTEMPT);
        if attempt <= most { Ok(()) } else { Err(ExchangeError::NoSuchAttempt { name, task, attempt, most }) }
    }

    /// The counter of a task's word.
    pub(super) async fn word(&self, io: &Io, task: u32) -> Result<WordLocation, Error> {
        let at = task as usize;
        let known = self.words.get(at).and_then(|word| word.lock().clone());
        if let Some(location) = known {
            return Ok(location);
        }
        let number = self.record.words.get(at).copied().unwrap_or(0);
        let location = WordLocation::find(io, word_name(&self.record.opener, number)?).await?;
        if let Some(word) = self.words.get(at) {
            *word.lock() = Some(location.clone());
        }
        Ok(location)
    }

    /// Reads the word of a task: `Open`, or `Committed`.
    ///
    /// # Errors
    /// [`ExchangeError::Over`]; any other [`Error`] if the home does not answer.
    pub(super) async fn look(&self, io: &Io, task: u32) -> Result<Word, Error> {
        let read = self.word(io, task).await?.read(io).await;
        self.read(read)
    }

    /// What the value of a word says.
    ///
    /// # Errors
    /// See [`ExchangeState::look`].
    pub(super) fn read(&self, value: Result<u64, Error>) -> Result<Word, Error> {
        let word = match value {
            Ok(value) => Word::of(value, self.stamp()),
            Err(e) if e.failure_code() == Some(FailureCode::CounterLost) => Word::Lost,
            Err(e) => return Err(e),
        };
        match word {
            Word::Open | Word::Committed(_) => Ok(word),
            Word::Over(why) => Err(self.ledger.over(self.ledger.end(why))),
            Word::OfAnother => Err(self.ledger.over(self.ledger.end(End::Released))),
            Word::Lost => Err(self.ledger.over(self.ledger.end(End::HomeLost))),
        }
    }

    /// Closes the words of all tasks, so that no attempt commits any more. Words that were closed can be used again.
    pub(super) async fn close_words(&self, io: &Io, why: End) {
        let value = Word::Over(why).value(self.stamp());
        let closed = io
            .all(0..self.tasks(), async |task| {
                let at = task as usize;
                let number = self.record.words.get(at).copied();
                let location = self.words.get(at).and_then(|word| word.lock().take());
                match location?.set(io, value).await {
                    Ok(()) => number,
                    // The words end with their home.
                    Err(e) => {
                        tracing::debug!(exchange = self.name, task, "its word is not closed: {e}");
                        None
                    }
                }
            })
            .await;
        let closed: Vec<_> = closed.into_iter().flatten().collect();
        self.client.extension::<FreeWords>().give_back(&closed);
    }

    // ---- keys ----

    pub(super) fn record_key(&self) -> Result<Key, Error> {
        record_key(&self.name)
    }

    pub(super) fn note_key(&self, task: u32) -> Result<Key, Error> {
        Ok(note_key(&self.name, self.id(), task)?)
    }

    pub(super) fn anchor_key(&self) -> Result<Key, Error> {
        Ok(anchor_key(&self.name, self.id())?)
    }

    pub(super) fn mark_key(&self, of: (u32, u32)) -> Result<Key, Error> {
        Ok(mark_key(&self.name, self.id(), of)?)
    }

    pub(super) fn bundle_key(&self, of: (u32, u32), bundle: u32) -> Result<Key, Error> {
        Ok(bundle_key(&self.name, self.id(), of, bundle)?)
    }

    /// The committed attempt of a task, if this process knows it.
    pub(super) fn known(&self, task: u32) -> Option<Arc<Attempt>> {
        self.known.get(task as usize)?.lock().clone()
    }

    pub(super) fn know(&self, task: u32, attempt: Option<Arc<Attempt>>) {
        if let Some(known) = self.known.get(task as usize) {
            *known.lock() = attempt;
        }
    }
}

impl std::fmt::Debug for ExchangeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExchangeState { name, record, .. } = self;
        f.debug_struct("Exchange").field("name", name).field("id", &record.id).finish_non_exhaustive()
    }
}

/// The handles of an exchange in this process.
#[derive(Debug)]
pub(super) struct Handles(pub(super) Arc<ExchangeState>);

impl Drop for Handles {
    fn drop(&mut self) {
        // A thread of the parent may have held the lock, and a child does not have that thread.
        if self.0.ledger.is_forked() {
            return;
        }
        self.0.ledger.bell.leave();
    }
}
