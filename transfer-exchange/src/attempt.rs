//! What is known of an attempt that has committed.

use crate::block::BlockReader;
use crate::manifest::{Places, Starts};
use parking_lot::Mutex;
use std::sync::Arc;
use transfer_core::tensor::Name;

/// A committed attempt: where its blocks are.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) bundles: Vec<OfBundle>,
    /// `None` if the task has written nothing.
    pub(super) reader: Option<BlockReader>,
    /// The node that has the bundles, if they move from there.
    pub(super) node: Option<Name>,
}

/// A bundle of an attempt.
#[derive(Debug)]
pub(super) struct OfBundle {
    pub(super) number: u32,
    starts: Starts,
    places: Mutex<Option<Arc<Places>>>,
}

impl Attempt {
    /// The bundles that have blocks for a partition.
    pub(super) fn bundles_of(&self, partition: u32) -> impl Iterator<Item = &OfBundle> {
        self.bundles.iter().filter(move |bundle| !bundle.blocks_of(partition).is_empty())
    }
}

impl OfBundle {
    /// A bundle of these blocks, and their places if its table was read.
    pub(super) fn new(number: u32, starts: Starts, places: Option<Arc<Places>>) -> OfBundle {
        OfBundle { number, starts, places: Mutex::new(places) }
    }

    /// Notes the places of its blocks.
    pub(super) fn found(&self, places: Arc<Places>) {
        *self.places.lock() = Some(places);
    }

    /// The numbers of its blocks for a partition.
    pub(super) fn blocks_of(&self, partition: u32) -> std::ops::Range<usize> {
        self.starts.of_partition(partition)
    }

    /// The places of its blocks, if its table was read.
    pub(super) fn places(&self) -> Option<Arc<Places>> {
        self.places.lock().clone()
    }
}
