//! The word of a task: a counter that decides which attempt has committed.
//!
//! | bits | contents |
//! |---|---|
//! | 32 to 63 | the exchange's stamp, which is not 0 |
//! | 0 to 31 | 0: no attempt has committed. `n`: attempt `n - 1` has. The two highest numbers: the exchange was released, or its deadline has passed |
//!
//! A counter that was made anew has the value 0, which no exchange has. So the loss of an exchange's home is seen, and a
//! second attempt cannot win after it.

use crate::error::{End, Error};
use transfer_client::flow::Io;
use transfer_client::{BlockingClient, Counter, DEFAULT_TIMEOUT};
use transfer_core::tensor::Name;

const RELEASED: u32 = u32::MAX;
const DEADLINE: u32 = u32::MAX - 1;

/// The highest number of an attempt.
pub(super) const MAX_ATTEMPT: u32 = DEADLINE - 2;

/// The value of a task's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// No attempt has committed.
    Open,
    /// This attempt has.
    Committed(u32),
    /// The exchange is over.
    Over(End),
    /// The word belongs to another exchange.
    OfAnother,
    /// The word has lost its value.
    Lost,
}

impl Word {
    /// The value for an exchange with this stamp. A word that is lost, or is another exchange's, has none.
    pub(super) fn value(self, stamp: u32) -> u64 {
        let low = match self {
            Word::Open => 0,
            Word::Committed(attempt) => attempt + 1,
            Word::Over(End::Deadline) => DEADLINE,
            Word::Over(_) => RELEASED,
            Word::OfAnother | Word::Lost => return 0,
        };
        u64::from(stamp) << 32 | u64::from(low)
    }

    pub(super) fn of(value: u64, stamp: u32) -> Word {
        match (value >> 32, value as u32) {
            (0, _) => Word::Lost,
            (found, _) if found != u64::from(stamp) => Word::OfAnother,
            (_, 0) => Word::Open,
            (_, RELEASED) => Word::Over(End::Released),
            (_, DEADLINE) => Word::Over(End::Deadline),
            (_, n) => Word::Committed(n - 1),
        }
    }
}

/// The counter of a word.
#[derive(Debug, Clone)]
pub(super) struct WordLocation(Counter<BlockingClient>);

impl WordLocation {
    /// Finds a counter. If there is none of this name, it is made.
    pub(super) async fn find(io: &Io, name: Name) -> Result<WordLocation, Error> {
        let found = io.client().counter(name.as_str()).timeout(io.left(DEFAULT_TIMEOUT));
        Ok(WordLocation(io.run(found).await?))
    }

    pub(super) async fn read(&self, io: &Io) -> Result<u64, Error> {
        let read = self.0.of_client(io.client()).get();
        Ok(io.run(read.timeout(io.left(DEFAULT_TIMEOUT))).await?.old)
    }

    /// Sets the word to `new` if it is `expected`. Returns what it was.
    pub(super) async fn swap(&self, io: &Io, expected: u64, new: u64) -> Result<u64, Error> {
        let swap = self.0.of_client(io.client()).compare_swap(expected, new);
        let (Ok(old) | Err(old)) = io.run(swap.timeout(io.left(DEFAULT_TIMEOUT))).await?.result;
        Ok(old)
    }

    /// Sets the word to `new`, whatever it is.
    pub(super) async fn set(&self, io: &Io, new: u64) -> Result<(), Error> {
        let mut expected = self.read(io).await?;
        while expected != new {
            match self.swap(io, expected, new).await? {
                found if found == expected => break,
                found => expected = found,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: end-of-an-exchange, seen to fail
    #[test]
    fn words_read_back_and_no_word_is_zero() {
        let over = [End::Released, End::Deadline].map(Word::Over);
        for word in [Word::Open, Word::Committed(0), Word::Committed(MAX_ATTEMPT)].into_iter().chain(over) {
            assert_eq!(Word::of(word.value(7), 7), word);
            assert_eq!(Word::of(word.value(7), 8), Word::OfAnother);
            assert_ne!(word.value(1), 0);
        }
        assert_eq!(Word::of(0, 7), Word::Lost);
    }
}
