//! The sizes and offsets of boards, notices and hazard pointers in shared memory.

use transfer_core::op::MAX_NOTICES;

/// The size of the header in front of a board's entries, in bytes.
pub const HEADER_BYTES: u64 = 4096;

/// The size of an entry, in bytes.
pub const ENTRY_BYTES: u64 = 512;

/// The number of entries that a key may be stored in.
pub const PROBES: usize = 8;

/// The number of buckets of hazard pointers that a session has.
pub const BUCKETS: usize = 256;

/// The number of hazard pointers in a bucket.
pub const BUCKET_HAZARDS: usize = 8;

/// The size of the header in front of a session's hazard pointers, in bytes.
pub const HAZARDS_HEADER_BYTES: u64 = 128;

/// The size of a session's hazard pointers, header included, in bytes.
pub const HAZARDS_BYTES: u64 = HAZARDS_HEADER_BYTES + (BUCKETS * BUCKET_HAZARDS * 8) as u64;

/// The size of a notice, in bytes.
pub const NOTICE_BYTES: u64 = 128;

/// The size of a session's notices, in bytes.
pub const NOTICES_BYTES: u64 = MAX_NOTICES as u64 * NOTICE_BYTES;

pub(super) const NOTICE_WORDS: usize = (NOTICE_BYTES / 8) as usize;
pub(super) const HEADER_WORDS: usize = (HEADER_BYTES / 8) as usize;
pub(super) const ENTRY_WORDS: usize = (ENTRY_BYTES / 8) as usize;
pub(super) const HAZARDS_HEADER_WORDS: usize = (HAZARDS_HEADER_BYTES / 8) as usize;

/// The words of an entry behind its sequence, by index.
pub(super) mod body {
    pub(in super::super) const HASH: usize = 0;
    pub(in super::super) const TICKET: usize = 1;
    pub(in super::super) const VERSION: usize = 2;
    pub(in super::super) const SHAPE: usize = 3;
    pub(in super::super) const OFFSET: usize = 4;
    pub(in super::super) const REST: usize = 5;
    pub(in super::super) const WORDS: usize = super::ENTRY_WORDS - 1;
}

/// Stands in place of an element type: the entry names a notice. The entry's offset is the notice's offset in the
/// segment of notices. Its one dimension is the number of the arena of the worker that owns the notice.
pub(super) const NAMES_A_NOTICE: u8 = 0xff;

/// The words of a notice behind its sequence, by index.
pub(super) mod notice {
    pub(in super::super) const TICKET: usize = 0;
    pub(in super::super) const VERSION: usize = 1;
    pub(in super::super) const SHAPE: usize = 2;
    pub(in super::super) const OFFSET: usize = 3;
    pub(in super::super) const DIMS: usize = 4;
    pub(in super::super) const WORDS: usize = super::NOTICE_WORDS - 1;
}

/// The words of the header in front of a session's hazard pointers.
pub(super) mod line {
    pub(in super::super) const OPEN: usize = 0;
    pub(in super::super) const HITS: usize = 1;
    pub(in super::super) const BYTES: usize = 2;
}

/// The size of a board with at least this many entries, in bytes.
#[must_use]
pub fn board_bytes(entries: u32) -> u64 {
    let entries = u64::from(entries.clamp(PROBES as u32, 1 << 20)).next_power_of_two();
    HEADER_BYTES + entries * ENTRY_BYTES
}

/// The number of entries of a board of `len_bytes` bytes: a power of two, or 0 where not one fits.
#[must_use]
pub fn entries_of(len_bytes: u64) -> u64 {
    match len_bytes.saturating_sub(HEADER_BYTES) / ENTRY_BYTES {
        0 => 0,
        n => 1 << n.ilog2(),
    }
}

/// The 64-bit FNV-1a hash of a key's bytes. Both ends compute the same hash, whatever they were built with.
#[must_use]
pub fn hash_of(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
