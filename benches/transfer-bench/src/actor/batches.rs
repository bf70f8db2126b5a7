//! Pushes and fetches of many small tensors at once.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use super::bell::{Bell, BellListener};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use transfer_client::{BlockingClient, DType, Error, Key, TensorMut};

/// The number of batches by which the producer may be ahead of the consumer: one is written while the other is read.
const AHEAD: u64 = 2;

/// Two groups of keys that take turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Batches {
    /// The prefix of the keys.
    pub prefix: String,
    /// The number of keys of a batch.
    pub keys: usize,
    /// Each tensor's length in bytes.
    pub len: u64,
    /// The versions.
    pub versions: std::ops::Range<u64>,
    /// The target worker; `None` if the tensors stay in place.
    pub to: Option<String>,
    /// The path at which the consumer reports each fetched batch.
    pub turns: PathBuf,
}

impl Batches {
    /// The keys of the group that takes this version.
    fn keys(&self, version: u64) -> Result<Vec<Key>, Failed> {
        let group = version % 2;
        let keys = (0..self.keys).map(|i| Key::new(&format!("{}/{group}/{i}", self.prefix)));
        Ok(keys.collect::<Result<_, _>>()?)
    }

    pub(super) fn push(&self, client: &BlockingClient) -> Result<Answer, Failed> {
        let keys = [self.keys(0)?, self.keys(1)?];
        let turns = BellListener::bind(&self.turns)?.accept()?;
        let started = now_ns();
        for (done, version) in (0u64..).zip(self.versions.clone()) {
            if done >= AHEAD {
                turns.wait()?;
            }
            let tensors = keys[(version % 2) as usize].iter().map(|key| {
                let tensor = client.allocate_wait(DType::U8, [self.len]).timeout(CALL_TIMEOUT).call()?;
                Ok((key, tensor))
            });
            let tensors: Vec<(&Key, TensorMut)> = tensors.collect::<Result<_, Error>>()?;
            let mut push = client.push_many(tensors).version(version).timeout(CALL_TIMEOUT);
            if let Some(to) = &self.to {
                push = push.to(to);
            }
            push.call().into_iter().try_for_each(|pushed| pushed.map(drop)).map_err(Error::from)?;
        }
        Ok(Answer::Times { ns: vec![started], copied: 0 })
    }

    pub(super) fn fetch(&self, client: &BlockingClient) -> Result<Answer, Failed> {
        let keys = [self.keys(0)?, self.keys(1)?];
        let turns = Bell::connect(&self.turns)?;
        let mut copied = 0;
        for version in self.versions.clone() {
            let tensors =
                client.fetch_many(&keys[(version % 2) as usize]).exactly(version).timeout(CALL_TIMEOUT).call();
            for tensor in tensors {
                copied += tensor?.report().copied;
            }
            // The producer may be done, and gone.
            let _ = turns.ring();
        }
        Ok(Answer::Times { ns: vec![now_ns()], copied })
    }
}

/// Publishes `count` tensors of rank 2 and 64 bytes, under keys of 32 bytes.
pub(super) fn publish(client: &BlockingClient, count: u64) -> Result<Answer, Failed> {
    const AT_ONCE: u64 = 1000;
    let mut from = 0;
    while from < count {
        let to = count.min(from + AT_ONCE);
        let tensors = (from..to).map(|i| Ok((format!("bench/tensors/{i:018}"), client.allocate(DType::F32, [4, 4])?)));
        let tensors: Vec<(String, TensorMut)> = tensors.collect::<Result<_, Error>>()?;
        let pushed = client.push_many(tensors).timeout(CALL_TIMEOUT).call();
        pushed.into_iter().try_for_each(|pushed| pushed.map(drop)).map_err(Error::from)?;
        from = to;
    }
    Ok(Answer::Done)
}
