//! The memory of a worker into which a version is fetched.

use super::{Failure, FailureCode};
use crate::tensor::{Key, TensorMeta, Version};
use crate::wire::ranges::ArenaRange;

/// The most ranges of a worker's arena in which one version lands. Each of them has a grant of its own, and all of them are told
/// to the peer in one message.
pub const MAX_LANDING_RANGES: usize = 24;

/// The ranges of a worker's arena in which a version lands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The ranges, in the order in which the version fills them, with what lies in front of its body. There are at most
    /// [`MAX_LANDING_RANGES`], no two of them overlap, and their lengths add up to that of the version.
    pub ranges: Vec<ArenaRange>,
    /// The description that the version, or the part that is asked for, must have.
    pub meta: TensorMeta,
    /// What becomes of a version with another description.
    pub otherwise: Otherwise,
}

/// What becomes of a version that does not fit the memory into which it is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The fetch fails.
    Fail,
    /// It lands in the landing pool, and is answered by [`Answer::Fetched`](super::Answer::Fetched).
    LandBeside,
}

impl Destination {
    /// Checks that the ranges lie in an arena of `arena_len` bytes, or elsewhere where the worker has memory, and that the version fills
    /// each of them once.
    ///
    /// # Errors
    /// [`FailureCode::Invalid`], with the reason.
    pub fn check_ranges(
        &self,
        key: &Key,
        arena_len: u64,
        is_elsewhere: impl Fn(&ArenaRange) -> bool,
    ) -> Result<(), Failure> {
        let Destination { ranges, meta, .. } = self;
        let wrong = |what: String| {
            Err(Failure::new(FailureCode::Invalid, format!("key {key:?} is to land in memory as {meta}: {what}")))
        };
        if ranges.is_empty() || ranges.len() > MAX_LANDING_RANGES {
            return wrong(format!("{} ranges are named, 1 to {MAX_LANDING_RANGES} can be", ranges.len()));
        }
        let outside = |range: &&ArenaRange| range.end().is_none_or(|end| end > arena_len) && !is_elsewhere(range);
        if let Some(ArenaRange { offset, len }) = ranges.iter().find(outside) {
            return wrong(format!("a range has {len} bytes at {offset}, the arena has {arena_len} bytes"));
        }
        if ranges.len() > 1 && ranges.iter().any(|range| range.len == 0) {
            return wrong("a range is empty, each of several has to be filled".to_owned());
        }
        // Each lies in memory, and there are few.
        let sum = ranges.iter().map(|range| u128::from(range.len)).sum::<u128>();
        if sum != u128::from(meta.len_bytes()) {
            return wrong(format!("its ranges have {sum} bytes, the version has {}", meta.len_bytes()));
        }
        let mut sorted: Vec<&ArenaRange> = ranges.iter().collect();
        sorted.sort_unstable_by_key(|range| range.offset);
        let overlap = |pair: &&[&ArenaRange]| pair[0].offset + pair[0].len > pair[1].offset;
        match sorted.windows(2).find(overlap) {
            Some(pair) => {
                wrong(format!("ranges overlap: {} bytes at {}, and {}", pair[0].len, pair[0].offset, pair[1].offset))
            }
            None => Ok(()),
        }
    }

    /// Checks that a version, or a part of one, can land here.
    ///
    /// # Errors
    /// [`FailureCode::Invalid`]. Nothing has landed then.
    pub fn check(&self, key: &Key, version: Version, found: &TensorMeta) -> Result<(), Failure> {
        check_fit(key, version, found, &self.meta)
    }
}

/// Checks that a version, or a part of one, has the description of the memory into which it is fetched.
///
/// # Errors
/// [`FailureCode::Invalid`].
pub fn check_fit(key: &Key, version: Version, found: &TensorMeta, destination: &TensorMeta) -> Result<(), Failure> {
    match found == destination {
        true => Ok(()),
        false => {
            let text = format!("key {key:?} is {found} at {version}, the destination is {destination}");
            Err(Failure::new(FailureCode::Invalid, text))
        }
    }
}
