//! Many large tensors, from a producer to a reader on its own node and to a reader on another one. Both readers make
//! the same two calls.

use crate::error::Error;
use crate::event::{Event, Read};
use crate::signals::Signals;
use crate::tally::Tally;
use std::path::Path;
use std::time::{Duration, Instant};
use transfer_client::{Client, DType};

/// The number of different contents. It bounds the memory of the producer, whatever the load, and exceeds any cache.
const CONTENTS: u64 = 8;

/// The amount of data to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Load {
    /// The number of large tensors that the producer publishes.
    #[arg(long = "bulk-tensors", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    pub tensors: u64,
    /// The size of each, in MiB.
    #[arg(long = "bulk-mib", value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub mib: u64,
}

impl Load {
    /// The size of each tensor, in bytes.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.mib << 20
    }

    /// The load as command-line flags of a role.
    #[must_use]
    pub fn flags(&self) -> String {
        format!("--bulk-tensors {} --bulk-mib {}", self.tensors, self.mib)
    }

    /// The number of elements of each tensor: words of eight bytes.
    fn words(&self) -> u64 {
        self.tensor_bytes() / 8
    }

    /// The number of different contents.
    fn contents(&self) -> u64 {
        self.tensors.min(CONTENTS)
    }
}

/// The role of the producer: publishes every tensor of `load`, and holds them until it is told to end.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Interrupted`] if it is told to end earlier, and those of
/// [`Event::emit`].
pub async fn produce(load: Load, sidecar: &Path) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    // The arena is the memory that this process shares with its sidecar. All tensors are made in it, and stay in it.
    let arena_bytes = load.contents() * load.tensor_bytes();
    let client = Client::connect(sidecar).name("producer").arena_bytes(arena_bytes).await?;
    let publish_all = async {
        let mut contents = Vec::new();
        for content in 0..load.contents() {
            let mut tensor = client.allocate(DType::U64, [load.words()])?;
            fill(content, tensor.as_mut_slice()?);
            // A frozen tensor is immutable. It may be cloned, and published any number of times.
            contents.push(tensor.freeze());
        }
        for (index, tensor) in (0..load.tensors).zip(contents.iter().cycle()) {
            client.push_frozen(key(index), tensor).await?;
        }
        Event::Published { tensors: load.tensors }.emit()
    };
    tokio::select! {
        result = publish_all => result?,
        () = signals.told_to_end() => return Err(Error::Interrupted),
    }
    signals.told_to_end().await;
    Ok(())
}

/// The role of a reader: fetches every tensor of `load`, one at a time, and reads every byte of it.
///
/// # Errors
/// [`Error::Transfer`] if a call fails, [`Error::Unexpected`] if a single bit is wrong, and those of [`Event::emit`].
pub async fn read(load: Load, sidecar: &Path) -> Result<(), Error> {
    // A reader owns no tensor, so it needs no arena.
    let client = Client::connect(sidecar).arena_bytes(0).await?;
    let (mut tally, mut reading) = (Tally::default(), Duration::ZERO);
    for index in 0..load.tensors {
        let started = Instant::now();
        let tensor = client.fetch(key(index)).await?;
        tally.add(tensor.report(), started.elapsed());

        let started = Instant::now();
        let words = tensor.as_slice()?;
        if words.len() as u64 != load.words() || !is_as_filled(index % load.contents(), words) {
            return Err(Error::Unexpected { what: "content of a tensor" });
        }
        reading += started.elapsed();
    }
    Event::Read(Read { node: client.node().to_owned(), tally, reading }).emit()
}

fn key(index: u64) -> String {
    format!("bulk/{index}")
}

/// Each word contains the number of its content and its place, so lost, repeated or mixed-up pieces are noticed.
fn word(content: u64, place: usize) -> u64 {
    content << 32 | place as u64
}

fn fill(content: u64, words: &mut [u64]) {
    words.iter_mut().enumerate().for_each(|(place, w)| *w = word(content, place));
}

fn is_as_filled(content: u64, words: &[u64]) -> bool {
    // The loop has no early end, so that the compiler can compare several words at once.
    words.iter().enumerate().fold(0, |wrong, (place, w)| wrong | (w ^ word(content, place))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_notices_every_changed_bit() {
        let mut words = vec![0; 1000];
        fill(7, &mut words);
        assert!(is_as_filled(7, &words));
        assert!(!is_as_filled(6, &words));
        words[999] ^= 1 << 63;
        assert!(!is_as_filled(7, &words));
        words[999] ^= 1 << 63;
        words.swap(3, 4);
        assert!(!is_as_filled(7, &words));
    }
}
