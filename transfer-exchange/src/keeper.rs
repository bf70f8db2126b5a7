//! The keeper: the thread that ends an exchange.
//!
//! Each process that has opened or joined an exchange has one keeper for it. It sleeps, and looks about once a second
//! whether the exchange is over. It does not wait for that in the session: a thread that waits there reads for all the
//! others, and each of their calls would take one more wake-up. At the end it deletes what this process has published.

use crate::calls::{ABSENCE_TIMEOUT, Absence, absence, delete, fetch_record};
use crate::error::{End, Error};
use crate::ledger::Fate;
use crate::state::ExchangeState;
use crate::word::Word;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::SessionEnd;
use transfer_client::flow::{Flow, Io};

/// The time between two looks.
const KEEPER_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the keeper of an exchange.
pub(super) fn start(shared: &Arc<ExchangeState>) -> std::io::Result<()> {
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name("transfer-exchg".into()).stack_size(512 << 10);
    thread.spawn(move || keep(&shared)).map(drop)
}

fn keep(shared: &Arc<ExchangeState>) {
    let mut keeper = Keeper { shared, absent_since: None, turn: 0 };
    while keeper.round().is_continue() {
        let at = Instant::now() + KEEPER_INTERVAL;
        shared.ledger.bell.wait(shared.deadline.map_or(at, |deadline| at.min(deadline)));
    }
    shared.ledger.bell.done();
}

struct Keeper<'a> {
    shared: &'a Arc<ExchangeState>,
    /// Since when the record of the exchange was not found.
    absent_since: Option<Instant>,
    /// Which task is looked at next.
    turn: usize,
}

impl Keeper<'_> {
    fn round(&mut self) -> ControlFlow<()> {
        let shared = self.shared;
        match shared.client.gone() {
            None => {}
            // A new session follows, with what was published.
            Some(SessionEnd::Away) => return ControlFlow::Continue(()),
            Some(_) => return ControlFlow::Break(()),
        }
        if shared.is_opener && shared.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            shared.ledger.end(End::Deadline);
        }
        if shared.is_opener && shared.ledger.bell.has_left() {
            shared.ledger.end(End::Released);
        }
        if shared.ledger.ended().is_none() {
            if shared.ledger.bell.has_left() && !shared.ledger.holds() {
                return ControlFlow::Break(());
            }
            let (of, turn) = (shared.clone(), self.turn);
            self.turn = self.turn.wrapping_add(1);
            match Flow::new(&shared.client, async move |io| look(&io, &of, turn).await).block() {
                Ok(Record::Found) => self.absent_since = None,
                Ok(Record::Absent) => {
                    let since = *self.absent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= ABSENCE_TIMEOUT {
                        shared.ledger.end(End::OpenerGone);
                    }
                }
                Ok(Record::Unknown) => {}
                Err(e) => tracing::debug!(exchange = shared.name, "not looked at: {e}"),
            }
        }
        let Some(why) = shared.ledger.ended() else { return ControlFlow::Continue(()) };
        let of = shared.clone();
        let done = Flow::new(&shared.client, async move |io| finish(&io, &of, why).await).block();
        match done {
            Ok(true) => ControlFlow::Break(()),
            Ok(false) => ControlFlow::Continue(()),
            Err(e) => {
                tracing::debug!(exchange = shared.name, "not ended yet: {e}");
                ControlFlow::Continue(())
            }
        }
    }
}

/// What was found under the key of the exchange.
enum Record {
    Found,
    Absent,
    Unknown,
}

/// Looks at what this process has published, and whether the exchange is still there.
async fn look(io: &Io, shared: &Arc<ExchangeState>, turn: usize) -> Result<Record, Error> {
    for (number, task, attempt) in shared.ledger.undecided(Fate::Unknown) {
        match shared.look(io, task).await? {
            Word::Committed(by) if by == attempt => shared.ledger.decide(number, Fate::Committed),
            _ => drop_published(io, shared, number).await,
        }
    }
    // A lost attempt may have been replaced by another one.
    let committed = shared.ledger.undecided(Fate::Committed);
    match committed.get(turn.checked_rem(committed.len()).unwrap_or(0)) {
        Some((number, task, attempt)) => {
            if shared.look(io, *task).await? != Word::Committed(*attempt) {
                drop_published(io, shared, *number).await;
            }
        }
        None => {
            shared.look(io, (turn % shared.tasks() as usize) as u32).await?;
        }
    }
    if shared.is_opener {
        return Ok(Record::Found);
    }
    match fetch_record(io, shared.record_key()?, &shared.name, KEEPER_INTERVAL).await {
        Ok(record) if record.id == shared.id() => Ok(Record::Found),
        Ok(_) => {
            shared.ledger.end(End::Released);
            Ok(Record::Found)
        }
        Err(e) => match absence(&e) {
            Some(Absence::Certain | Absence::Perhaps) => Ok(Record::Absent),
            None => Ok(Record::Unknown),
        },
    }
}

async fn drop_published(io: &Io, shared: &Arc<ExchangeState>, number: u64) {
    if let Some(published) = shared.ledger.take(number) {
        delete(io, &shared.name, published.keys).await;
    }
}

/// Ends the exchange: its opener ends it for all, and each process deletes what it has published. Returns whether
/// nothing is left to delete.
async fn finish(io: &Io, shared: &Arc<ExchangeState>, why: End) -> Result<bool, Error> {
    if shared.is_opener {
        // Who joins from now on waits for the next exchange of this name.
        delete(io, &shared.name, vec![shared.record_key()?, shared.anchor_key()?]).await;
        shared.close_words(io, why).await;
    }
    let keys = shared.ledger.take_all().into_iter().flat_map(|published| published.keys).collect();
    delete(io, &shared.name, keys).await;
    Ok(!shared.ledger.holds())
}
