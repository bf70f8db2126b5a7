//! What all handles of one exchange in a process share.

use super::keeper::Bell;
use super::names::{ExchangeId, anchor_key, bundle_key, mark_key, note_key, record_key, stamp, word_name};
use super::part::{Attempt, fetch_part, is_slow};
use super::pieces::PublishThreshold;
use super::record::Record;
use super::word::{MAX_ATTEMPT, Word, WordLocation};
use super::{End, ExchangeError};
use crate::error::Error;
use crate::push::{Order, Push, Source};
use crate::request::BlockingClient;
use crate::request::Io;
use crate::session::{Connection, Home};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::op::{Command, FailureCode};
use transfer_core::tensor::{DType, Excerpt, Key, Life, Name, Spill, TensorMeta};

/// The time after which what nobody publishes counts as lost. A directory that starts anew knows all keys again within
/// less.
pub(super) const ABSENT: Duration = Duration::from_secs(5);

/// See the [module](self).
pub(super) struct ExchangeState {
    pub(super) name: String,
    pub(super) record: Record,
    pub(super) connection: Arc<Connection>,
    /// The node of this process.
    pub(super) node: Name,
    home: Arc<Home>,
    /// Whether this handle has opened the exchange.
    pub(super) is_opener: bool,
    /// When the exchange ends by itself; only its opener knows.
    pub(super) deadline: Option<Instant>,
    /// The counters of the words that were found so far.
    words: Vec<Mutex<Option<WordLocation>>>,
    /// The attempts that have committed, as far as they are known, and where their blocks are.
    known: Vec<Mutex<Option<Arc<Attempt>>>>,
    /// What this process has published for the exchange.
    held: Mutex<Held>,
    pub(super) enough: PublishThreshold,
    pub(super) bell: Bell,
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

impl ExchangeState {
    pub(super) fn new(
        name: String,
        record: Record,
        (connection, node): (Arc<Connection>, Name),
        places: Vec<WordLocation>,
        deadline: Option<Instant>,
    ) -> ExchangeState {
        let (tasks, home) = (record.words.len(), connection.session().home().clone());
        let is_opener = !places.is_empty();
        let mut words: Vec<_> = places.into_iter().map(|place| Mutex::new(Some(place))).collect();
        words.resize_with(tasks, Mutex::default);
        let known = (0..tasks).map(|_| Mutex::default()).collect();
        let (held, bell) = (Mutex::default(), Bell::default());
        let enough = PublishThreshold::default();
        ExchangeState { name, record, connection, node, home, is_opener, deadline, words, known, held, enough, bell }
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

    /// Whether this process is a forked child of the one that has opened or joined the exchange.
    pub(super) fn is_forked(&self) -> bool {
        self.home.is_forked()
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
        if let Some(place) = known {
            return Ok(place);
        }
        let number = self.record.words.get(at).copied().unwrap_or(0);
        let place = WordLocation::find(io, word_name(&self.record.opener, number)?).await?;
        if let Some(word) = self.words.get(at) {
            *word.lock() = Some(place.clone());
        }
        Ok(place)
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
            Err(Error::Failed(failure)) if failure.code == FailureCode::CounterLost => Word::Lost,
            Err(e) => return Err(e),
        };
        match word {
            Word::Open | Word::Committed(_) => Ok(word),
            Word::Over(why) => Err(self.over(self.end(why))),
            Word::OfAnother => Err(self.over(self.end(End::Released))),
            Word::Lost => Err(self.over(self.end(End::HomeLost))),
        }
    }

    /// Closes the words of all tasks, so that no attempt commits any more. Words that were closed can be used again.
    pub(super) async fn close_words(&self, io: &Io, why: End) {
        let value = Word::Over(why).value(self.stamp());
        let closed = io
            .all(0..self.tasks(), async |task| {
                let at = task as usize;
                let number = self.record.words.get(at).copied();
                let place = self.words.get(at).and_then(|word| word.lock().take());
                match place?.set(io, value).await {
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
        self.connection.words().give_back(&closed);
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

    /// Whether what an attempt has committed is there.
    ///
    /// # Errors
    /// Any [`Error`] that does not tell.
    pub(super) async fn is_there(&self, io: &Io, of: (u32, u32)) -> Result<bool, Error> {
        let key = self.bundle_key(of, 0)?;
        let until = Instant::now() + ABSENT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match fetch_part(io, key.clone(), Excerpt::metadata(), left).await {
                Ok(_) => return self.are_there(io, of).await,
                Err(e) => match absence(&e) {
                    Some(Absence::Certain) => return Ok(false),
                    Some(Absence::Perhaps) if Instant::now() >= until => return Ok(false),
                    Some(Absence::Perhaps) => io.sleep_until(Instant::now() + Duration::from_millis(100)).await,
                    // It is there, and slow.
                    None if is_slow(&e) => return Ok(true),
                    None => return Err(e),
                },
            }
        }
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
        Ok(Holding { shared: self.clone(), number })
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

    /// Deletes keys of this process.
    pub(super) async fn delete(&self, io: &Io, keys: Vec<Key>) {
        let session = io.session();
        let ended = io
            .all(keys, |key| {
                let order = Order::<BlockingClient>::new(session.clone(), Ok(Command::Delete { key }));
                io.run(order.timeout(ABSENT).call)
            })
            .await;
        for failed in ended.into_iter().filter_map(Result::err) {
            // It is gone already, or ends with the session.
            tracing::debug!(exchange = self.name, "not deleted: {failed}");
        }
    }
}

impl std::fmt::Debug for ExchangeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExchangeState { name, record, .. } = self;
        f.debug_struct("Exchange").field("name", name).field("id", &record.id).finish_non_exhaustive()
    }
}

/// The right to decide about what an attempt has published. When it is dropped, the keeper looks at the word of the
/// task, and deletes what has not won.
pub(super) struct Holding {
    shared: Arc<ExchangeState>,
    number: u64,
}

impl Holding {
    /// Notes a key that the attempt is about to publish.
    ///
    /// # Errors
    /// [`ExchangeError::Over`].
    pub(super) fn add(&self, key: Key) -> Result<(), Error> {
        let mut held = self.shared.held.lock();
        if let Some(why) = held.end {
            return Err(self.shared.over(why));
        }
        if let Some(published) = held.list.iter_mut().find(|p| p.number == self.number) {
            published.fate = Fate::Deciding;
            published.keys.push(key);
        }
        Ok(())
    }

    /// No call is under way: the end of the exchange may take what the attempt has published.
    pub(super) fn rest(&self) {
        self.shared.decide(self.number, Fate::Writing);
        if self.shared.ended().is_some() {
            self.shared.bell.ring();
        }
    }

    /// Keeps what the attempt has published, and the mark and the note that it is about to publish, until the exchange
    /// is over.
    pub(super) fn committed(self, more: [Key; 2]) {
        if let Some(published) = self.shared.held.lock().list.iter_mut().find(|p| p.number == self.number) {
            published.fate = Fate::Committed;
            published.keys.extend(more);
        }
    }

    /// Deletes what the attempt has published. If this is given up, the keeper does it.
    pub(super) async fn delete(self, io: &Io) {
        let keys = self.shared.keys_of(self.number);
        self.shared.delete(io, keys).await;
        self.shared.take(self.number);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let mut held = self.shared.held.lock();
        let number = self.number;
        if let Some(published) = held.list.iter_mut().find(|p| p.number == number) {
            if matches!(published.fate, Fate::Deciding | Fate::Writing) {
                published.fate = Fate::Unknown;
            }
            drop(held);
            self.shared.bell.ring();
        }
    }
}

/// What a failed fetch says about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nobody has published it, or it was deleted.
    Certain,
    /// Its node is lost, or was asked in vain. It may have come back.
    Perhaps,
}

/// `None` if the failure says nothing about it.
pub(super) fn absence(error: &Error) -> Option<Absence> {
    match error.failure_code()? {
        FailureCode::UnknownKey | FailureCode::VersionGone => Some(Absence::Certain),
        FailureCode::PeerLost | FailureCode::PeerUnreachable | FailureCode::NotOwner | FailureCode::ShuttingDown => {
            Some(Absence::Perhaps)
        }
        _ => None,
    }
}

/// How a key is published.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// As version 1 of a key that nobody has.
    New(Life),
    /// As version 1 of a key that nobody has. It stays with its parent, and may be written to disk.
    Rows(Spill),
    /// Takes the key over from its owner, if it has one. The version stays with its parent.
    TakenOver,
}

/// Publishes bytes.
pub(super) async fn push_bytes(io: &Io, key: Key, bytes: &[u8], how: How) -> Result<(), Error> {
    let meta = TensorMeta::of(DType::U8, &[bytes.len() as u64])?;
    push(io, key, Source::Bytes(bytes, meta), how).await
}

/// Publishes.
pub(super) async fn push(io: &Io, key: Key, source: Source<'_>, how: How) -> Result<(), Error> {
    let push = Push::<BlockingClient>::new(io.session(), Ok(key), Ok(source)).timeout(io.left(io.timeout()));
    let push = match how {
        How::New(life) => push.version(1).life(life),
        How::Rows(spill) => push.version(1).life(Life::Parent).spill(spill),
        How::TakenOver => push.takeover().life(Life::Parent),
    };
    io.run(push.call).await?;
    Ok(())
}
