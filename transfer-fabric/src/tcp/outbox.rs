//! The frames that a link has to send, in posting order, gathered into as few calls as possible.

use super::frame::{HEADER_BYTES, Header, Kind, MAX_TEXT_BYTES};
use super::iovec::{MAX_ELEMENTS, SendList};
use super::wire::{Wire, WireError};
use crate::links::SentCounts;
use crate::regions::Piece;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;
use transfer_memory::segment::MapError;

/// The bytes that follow a header.
#[derive(Debug)]
pub(super) enum Body {
    /// Bytes of this fabric.
    Bytes(SmallVec<[u8; 32]>),
    /// Ranges of mapped memory: most often a landing header and one tensor.
    Gather(SmallVec<[Piece; 2]>),
}

#[derive(Debug)]
struct Frame {
    header: Header,
    /// Encoded when the frame is listed for sending and no byte of it was sent yet, so that it has the newest count of
    /// placed works.
    encoded: [u8; HEADER_BYTES],
    body: Body,
}

impl Frame {
    fn len(&self) -> u64 {
        HEADER_BYTES as u64 + self.header.remote.len
    }

    fn is_work(&self) -> bool {
        matches!(self.header.kind, Kind::Write | Kind::Send)
    }

    fn elements(&self) -> usize {
        match &self.body {
            Body::Bytes(_) => 2,
            Body::Gather(pieces) => 1 + pieces.len(),
        }
    }

    /// Lists the frame without its first `skip` bytes, until `list` has `limit` bytes or is full.
    fn list<'a>(&'a self, list: &mut SendList<'a>, mut skip: u64, limit: usize) -> Result<(), MapError> {
        let header = self.encoded.get(skip as usize..).unwrap_or(&[]);
        list.push_bytes(header);
        skip = skip.saturating_sub(HEADER_BYTES as u64);
        match &self.body {
            Body::Bytes(bytes) => list.push_bytes(bytes.get(skip as usize..).unwrap_or(&[])),
            Body::Gather(pieces) => {
                for piece in pieces {
                    if list.is_full() || list.len() >= limit {
                        break;
                    }
                    let skipped = skip.min(piece.len);
                    skip -= skipped;
                    let len = (piece.len - skipped).min((limit - list.len()) as u64);
                    list.push_mapped(&piece.mapping, piece.offset + skipped, len as usize)?;
                }
            }
        }
        Ok(())
    }
}

/// The result of a call to [`Outbox::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// Whether the socket takes no more now.
    pub(super) blocked: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    frames: VecDeque<Frame>,
    /// The number of bytes of the first frame that are sent.
    front_sent: u64,
    works_sent: u64,
    placed_told: u64,
    pub(super) counts: SentCounts,
}

impl Outbox {
    pub(super) fn push(&mut self, header: Header, body: Body) {
        self.frames.push_back(Frame { header, encoded: [0; HEADER_BYTES], body });
    }

    /// Queues a frame of this fabric's bytes.
    pub(super) fn push_bytes(&mut self, kind: Kind, bytes: &[u8]) {
        self.push(Header::new(kind, bytes.len() as u64), Body::Bytes(bytes.into()));
    }

    /// Queues a frame of text, cut to the length that the peer accepts.
    pub(super) fn push_text(&mut self, kind: Kind, text: &str) {
        self.push_bytes(kind, &text.as_bytes()[..text.floor_char_boundary(MAX_TEXT_BYTES)]);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of writes and messages that have left completely.
    pub(super) fn works_sent(&self) -> u64 {
        self.works_sent
    }

    /// Returns the count of placed works that the peer was last told.
    pub(super) fn placed_told(&self) -> u64 {
        self.placed_told
    }

    /// Drops all frames that are not partly sent.
    pub(super) fn drop_unsent(&mut self) {
        self.frames.truncate(usize::from(self.front_sent > 0));
    }

    /// Sends about `limit` bytes in one call. The frames tell the peer that `placed` of its writes and messages are
    /// placed.
    pub(super) fn send(&mut self, wire: &mut Wire<'_>, limit: usize, placed: u64) -> Result<Sent, WireError> {
        let (mut frames, mut elements, mut bytes) = (0, 0, 0);
        for frame in &mut self.frames {
            if frames > 0 || self.front_sent == 0 {
                frame.header.placed = placed;
                frame.encoded = frame.header.encode();
            }
            frames += 1;
            elements += frame.elements();
            bytes += frame.len() - if frames == 1 { self.front_sent } else { 0 };
            if elements >= MAX_ELEMENTS || bytes >= limit as u64 {
                break;
            }
        }
        let mut list = SendList::with_capacity(elements.min(MAX_ELEMENTS + 2));
        let mut skip = self.front_sent;
        for frame in self.frames.iter().take(frames) {
            if list.is_full() || list.len() >= limit {
                break;
            }
            // Pieces were checked when they were posted, and mappings never shrink.
            frame.list(&mut list, skip, limit).map_err(|_| Errno::FAULT)?;
            skip = 0;
        }
        let listed = list.len();
        let sent = match wire.send(&list) {
            Ok(sent) => sent,
            Err(WireError::System(Errno::AGAIN)) => 0,
            Err(WireError::System(Errno::INTR)) => return Ok(Sent { bytes: 0, blocked: false }),
            Err(error) => return Err(error),
        };
        self.advance(sent as u64);
        Ok(Sent { bytes: sent, blocked: sent < listed || wire.is_pending() })
    }

    fn advance(&mut self, mut sent: u64) {
        while let Some(front) = self.frames.front() {
            let left = front.len() - self.front_sent;
            let done = sent >= left;
            if done || self.front_sent + sent >= HEADER_BYTES as u64 {
                self.placed_told = front.header.placed;
            }
            if !done {
                self.front_sent += sent;
                return;
            }
            sent -= left;
            self.works_sent += u64::from(front.is_work());
            self.counts.count(front.header.kind == Kind::Ack);
            self.front_sent = 0;
            self.frames.pop_front();
        }
    }
}
