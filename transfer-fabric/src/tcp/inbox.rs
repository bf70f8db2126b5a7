//! The receiving direction of a link. Frames are checked before any of their bytes is placed.
//!
//! Headers and short bodies go through a staging buffer. While the body of a write is in progress, the rest of it is
//! received directly into its target, and the bytes that follow it into the staging buffer.

use super::frame::{BadFrame, HEADER_BYTES, Header, Kind, MAX_TEXT_BYTES};
use super::iovec::ReceiveList;
use super::wire::{Wire, WireError};
use super::{MAX_MESSAGE_BYTES, MAX_WRITE_BYTES};
use crate::regions::{Regions, WriteRefused, WriteTarget};
use crate::token::TOKEN_BYTES;
use rustix::io::Errno;
use std::ops::Range;
use transfer_core::fabric::LinkId;
use transfer_core::memory::RemoteKey;
use transfer_memory::segment::MapError;

const STAGING_BYTES: usize = 64 << 10;

/// After a body of at least this length, only [`STAGING_AFTER_LARGE`] bytes are received into staging: the next body
/// is probably as large, and its staged bytes are copied once more. While such bodies follow each other this costs no
/// call: the one that receives a body also receives the header of the next.
const LARGE_BODY: u64 = 32 << 10;
const STAGING_AFTER_LARGE: usize = 4 << 10;

/// A mistake of the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Frame(#[from] BadFrame),
    #[error(transparent)]
    Write(#[from] WriteRefused),
    #[error("a frame of kind {kind:?} with a body of {len} bytes")]
    Length { kind: Kind, len: u64 },
    #[error("a count of placed work that went back from {from} to {to}")]
    PlacedBack { from: u64, to: u64 },
    #[error("memory that was granted cannot be written: {0}")]
    Memory(#[from] MapError),
}

/// A frame that has arrived completely. Its ranges are of [`Inbox::staged`], and are valid until the next call.
#[derive(Debug)]
pub(super) enum Arrival {
    /// A write is placed.
    Placed { immediate: Option<u32>, len: u64 },
    /// A message, or another frame whose body is its text or token.
    Short { kind: Kind, body: Range<usize> },
}

/// The write whose body is in progress.
#[derive(Debug)]
struct Landing {
    place: Option<WriteTarget>,
    len: u64,
    remaining: u64,
    immediate: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Inbox {
    staging: Box<[u8]>,
    /// The bytes of `staging` from `taken` to `filled` are received and not yet taken.
    taken: usize,
    filled: usize,
    landing: Option<Landing>,
    after_large: bool,
    peer_placed: u64,
    copied: u64,
    /// The number of copies of each byte until it is received.
    copies: u64,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox {
            staging: vec![0; STAGING_BYTES].into(),
            taken: 0,
            filled: 0,
            landing: None,
            after_large: false,
            peer_placed: 0,
            copied: 0,
            copies: 1,
        }
    }

    /// Returns the number of this side's works that the peer says it has placed.
    pub(super) fn peer_placed(&self) -> u64 {
        self.peer_placed
    }

    /// Returns the bytes copied for writes since the last call, including the kernel's copy out of the socket and the
    /// copies of TLS.
    pub(super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    pub(super) fn staged(&self, range: Range<usize>) -> &[u8] {
        self.staging.get(range).unwrap_or(&[])
    }

    /// Returns the key through which bytes are being placed.
    pub(super) fn landing_key(&self) -> Option<RemoteKey> {
        self.landing.as_ref()?.place.as_ref().map(|place| place.key)
    }

    /// Receives about `limit` bytes in one call. Returns `None` at the end of the stream, and otherwise the number of
    /// bytes and whether the socket may have more.
    pub(super) fn fill(&mut self, wire: &mut Wire<'_>, limit: usize) -> Result<Option<(usize, bool)>, WireError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.filled > self.staging.len() / 2 {
            self.staging.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        let mut list = ReceiveList::new();
        let mut direct = 0;
        let mut staging = self.staging.get_mut(self.filled..).unwrap_or(&mut []);
        if let Some(Landing { place: Some(place), remaining, .. }) = &self.landing {
            direct = (*remaining).min(limit as u64) as usize;
            // Grants are of writable mappings, which never shrink.
            list.push_mapped(&place.mapping, place.offset, direct).map_err(|_| Errno::FAULT)?;
            if (direct as u64) < *remaining {
                staging = &mut [];
            }
        }
        if self.after_large {
            let len = staging.len().min(STAGING_AFTER_LARGE);
            staging = &mut staging[..len];
        }
        list.push_bytes(staging);
        let room = list.len();
        let received = match wire.receive(&mut list) {
            Ok(0) if room > 0 => return Ok(None),
            Ok(received) => received,
            Err(WireError::System(Errno::AGAIN)) => return Ok(Some((0, false))),
            Err(WireError::System(Errno::INTR)) => return Ok(Some((0, true))),
            Err(error) => return Err(error),
        };
        self.copies = wire.copies();
        let direct = direct.min(received);
        if let Some(Landing { place: Some(place), remaining, .. }) = &mut self.landing {
            place.offset += direct as u64;
            *remaining -= direct as u64;
            self.copied += self.copies * direct as u64;
        }
        self.filled += received - direct;
        Ok(Some((received, received == room)))
    }

    /// Takes the next frame out of the received bytes, and places what can be placed. Returns `None` if more has to be
    /// received.
    pub(super) fn next(&mut self, link: LinkId, regions: &Regions) -> Result<Option<Arrival>, Fault> {
        loop {
            if self.landing.is_some() {
                return self.land();
            }
            let staged = self.staging.get(self.taken..self.filled).unwrap_or(&[]);
            let Some((head, rest)) = staged.split_first_chunk::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = Header::decode(head)?;
            let (kind, len) = (header.kind, header.remote.len);
            let fits = match kind {
                Kind::Write => len <= MAX_WRITE_BYTES,
                Kind::Send => len <= MAX_MESSAGE_BYTES as u64,
                Kind::Hello | Kind::Welcome => len == TOKEN_BYTES as u64,
                Kind::Ack => len == 0,
                Kind::Refuse | Kind::Bye => len <= MAX_TEXT_BYTES as u64,
            };
            if !fits {
                return Err(Fault::Length { kind, len });
            }
            if kind != Kind::Write && (rest.len() as u64) < len {
                return Ok(None);
            }
            if header.placed < self.peer_placed {
                return Err(Fault::PlacedBack { from: self.peer_placed, to: header.placed });
            }
            self.peer_placed = header.placed;
            self.taken += HEADER_BYTES;
            if kind != Kind::Write {
                let body = self.taken..self.taken + len as usize;
                self.taken = body.end;
                return Ok(Some(Arrival::Short { kind, body }));
            }
            let place = regions.place(link, header.remote)?;
            self.after_large = len >= LARGE_BODY;
            self.landing = Some(Landing { place, len, remaining: len, immediate: header.immediate });
        }
    }

    /// Places the staged bytes of the body in progress.
    fn land(&mut self) -> Result<Option<Arrival>, Fault> {
        let Some(Landing { place, len: whole, remaining, immediate }) = &mut self.landing else {
            return Ok(None);
        };
        let len = (*remaining).min((self.filled - self.taken) as u64) as usize;
        if let Some(place) = place.as_mut().filter(|_| len > 0) {
            place.mapping.copy_in(place.offset, &self.staging[self.taken..self.taken + len])?;
            place.offset += len as u64;
            *remaining -= len as u64;
            self.taken += len;
            self.copied += (self.copies + 1) * len as u64;
        }
        if *remaining > 0 {
            return Ok(None);
        }
        let (immediate, len) = (*immediate, *whole);
        self.landing = None;
        Ok(Some(Arrival::Placed { immediate, len }))
    }
}
