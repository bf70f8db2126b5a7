//! A stream whose sender rotates over several ranges of its arena, and whose receiver reads every byte.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::task::Waker;
use transfer_client::{Begun, BlockingClient, DType, Error, Key, PushError, Pushed, Tensor};

type Pushes<'a> = VecDeque<Begun<'a, Result<Pushed, PushError>>>;

/// The stream. Message `n` is version `n / in_flight` of key `n % in_flight`. The sender is never ahead of the reader by
/// more than `in_flight` messages: whenever half of so many were read, the receiver pushes a credit back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadStream {
    /// The prefix of the keys.
    pub prefix: String,
    /// The length of each tensor in bytes.
    pub len: u64,
    /// The number of keys: 1, or an even number.
    pub in_flight: u64,
    /// The number of ranges of the arena that the sender pushes in turn.
    pub ranges: u64,
    /// The versions of each key.
    pub versions: std::ops::Range<u64>,
    /// The other worker.
    pub to: String,
}

impl ReadStream {
    fn keys(&self) -> Result<Vec<Key>, Failed> {
        let keys = (0..self.in_flight).map(|i| Key::new(&format!("{}/{i}", self.prefix)));
        Ok(keys.collect::<Result<_, _>>()?)
    }

    /// The key of the credits. Version `v` says that all messages below `v * credit` were read.
    fn credit_key(&self) -> Result<Key, Failed> {
        Ok(Key::new(&format!("{}/read", self.prefix))?)
    }

    fn credit(&self) -> u64 {
        (self.in_flight / 2).max(1)
    }

    /// The messages, with their versions and the places of their keys.
    fn messages(&self) -> impl Iterator<Item = (u64, u64, usize)> {
        let in_flight = self.in_flight;
        let numbers = self.versions.start * in_flight..self.versions.end * in_flight;
        numbers.map(move |number| (number, number / in_flight, (number % in_flight) as usize))
    }

    /// Answers with the moment before the first push.
    pub(super) fn push(&self, client: &BlockingClient) -> Result<Answer, Failed> {
        let (keys, credit_key) = (self.keys()?, self.credit_key()?);
        let ranges = (0..self.ranges).map(|_| {
            let mut tensor = client.allocate(DType::U8, [self.len])?;
            tensor.as_mut_bytes().fill(3);
            Ok(tensor.freeze())
        });
        let ranges = ranges.collect::<Result<Vec<_>, Error>>()?;
        let mut read = self.versions.start * self.in_flight;
        let (mut pushes, mut copied) = (Pushes::new(), 0);
        let started = now_ns();
        for ((number, version, key), range) in self.messages().zip(ranges.iter().cycle()) {
            if number == read + self.in_flight {
                let next = read / self.credit() + 1;
                let credit = client.fetch(&credit_key).at_least(next).timeout(CALL_TIMEOUT).call()?;
                read = credit.version() * self.credit();
            }
            let push = client.push_frozen(&keys[key], range).version(version).to(&self.to).timeout(CALL_TIMEOUT);
            copied += begin(push.begin(), &mut pushes, self.in_flight)?;
        }
        copied += settle(&mut pushes, 0)?;
        Ok(Answer::Times { ns: vec![started], copied })
    }

    /// Answers with the moment after the last message was read.
    pub(super) fn read(&self, client: &BlockingClient) -> Result<Answer, Failed> {
        let (keys, credit_key) = (self.keys()?, self.credit_key()?);
        let (mut pushes, mut copied) = (Pushes::new(), 0);
        let mut fetches = self.messages().map(|(_, version, key)| {
            let mut fetch = client.fetch(&keys[key]).exactly(version).timeout(CALL_TIMEOUT).begin();
            // This sends it. What it already has is kept for the wait.
            match fetch.poll(Waker::noop()) {
                ControlFlow::Break(tensor) => Fetching::Done(tensor),
                ControlFlow::Continue(_) => Fetching::UnderWay(fetch),
            }
        });
        let mut under_way: VecDeque<_> = fetches.by_ref().take(self.in_flight as usize).collect();
        for (number, ..) in self.messages() {
            // As many are fetched as there are messages.
            let Some(fetching) = under_way.pop_front() else { break };
            let tensor = match fetching {
                Fetching::Done(tensor) => tensor?,
                Fetching::UnderWay(mut fetch) => {
                    fetch.wait(CALL_TIMEOUT).ok_or(Error::NoAnswer { waited: CALL_TIMEOUT })??
                }
            };
            read_all(tensor.as_bytes());
            copied += tensor.report().copied;
            drop(tensor);
            under_way.extend(fetches.next());
            if (number + 1) % self.credit() == 0 {
                let credit = client.allocate(DType::U8, [8])?;
                let push = client.push_tensor(&credit_key, credit).version((number + 1) / self.credit());
                begin(push.to(&self.to).timeout(CALL_TIMEOUT).begin(), &mut pushes, self.in_flight)?;
            }
        }
        let ended = now_ns();
        settle(&mut pushes, 0)?;
        Ok(Answer::Times { ns: vec![ended], copied })
    }
}

/// A fetch that was sent.
enum Fetching {
    Done(Result<Tensor, Error>),
    UnderWay(Begun<'static, Result<Tensor, Error>>),
}

/// Sends a push, once fewer than `in_flight` are under way. Returns the copied bytes of those that are done.
fn begin<'a>(
    mut push: Begun<'a, Result<Pushed, PushError>>,
    pushes: &mut Pushes<'a>,
    in_flight: u64,
) -> Result<u64, Failed> {
    let copied = settle(pushes, in_flight as usize - 1)?;
    match push.poll(Waker::noop()) {
        ControlFlow::Break(pushed) => Ok(copied + pushed.map_err(Error::from)?.report.copied),
        ControlFlow::Continue(_) => {
            pushes.push_back(push);
            Ok(copied)
        }
    }
}

/// Waits until at most `left` pushes are under way. Returns the copied bytes of the others.
fn settle(pushes: &mut Pushes<'_>, left: usize) -> Result<u64, Failed> {
    let mut copied = 0;
    while pushes.len() > left
        && let Some(mut push) = pushes.pop_front()
    {
        copied += push
            .wait(CALL_TIMEOUT)
            .ok_or(Error::NoAnswer { waited: CALL_TIMEOUT })?
            .map_err(Error::from)?
            .report
            .copied;
    }
    Ok(copied)
}

/// Reads all bytes: a sum of words of 64 bits.
pub(super) fn read_all(bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<8>();
    std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
}
