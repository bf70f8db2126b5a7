//! Growing bytes and bits in the arena.

use super::super::ALIGNMENT;
use crate::error::Error;
use crate::session::Session;
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use transfer_memory::arena::Block;
use transfer_memory::view::Element;

/// The size of the first block, if no size was given.
const FIRST_BYTES: usize = 1024;

/// Bytes in one block of the arena.
#[derive(Debug, Default)]
pub(super) struct Room {
    block: Option<Block>,
    len: usize,
}

impl Room {
    /// Makes room for `more` more bytes.
    pub(super) fn reserve(&mut self, session: &Session, more: usize) -> Result<(), Error> {
        let capacity = self.block.as_ref().map_or(0, |block| block.slice().len as usize);
        let needed = self.len.saturating_add(more);
        if needed <= capacity {
            return Ok(());
        }
        let wanted = match capacity {
            0 => needed,
            _ => needed.max(capacity.saturating_mul(2)).max(FIRST_BYTES),
        };
        let mut block = session.allocate(wanted.checked_next_multiple_of(ALIGNMENT).unwrap_or(wanted) as u64)?;
        if let Some(before) = &self.block {
            block.as_bytes_mut()[..self.len].copy_from_slice(&before.as_bytes()[..self.len]);
        }
        self.block = Some(block);
        Ok(())
    }

    /// Appends `count` bytes and returns them. They contain left-over values.
    pub(super) fn next(&mut self, session: &Session, count: usize) -> Result<&mut [u8], Error> {
        self.reserve(session, count)?;
        let at = self.len;
        self.len += count;
        Ok(self.block.as_mut().map_or(&mut [], |block| &mut block.as_bytes_mut()[at..at + count]))
    }

    /// Appends `count` elements and returns them. The length so far must be a multiple of the element size.
    pub(super) fn next_elements<T: Element>(&mut self, session: &Session, count: usize) -> Result<&mut [T], Error> {
        let bytes = count.saturating_mul(size_of::<T>());
        self.reserve(session, bytes)?;
        let at = self.len / size_of::<T>();
        self.len += bytes;
        match &mut self.block {
            Some(block) => Ok(&mut block.as_mut_slice::<T>()?[at..at + count]),
            None => Ok(&mut []),
        }
    }

    pub(super) fn extend(&mut self, session: &Session, bytes: &[u8]) -> Result<(), Error> {
        self.next(session, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn zeros(&mut self, session: &Session, count: usize) -> Result<(), Error> {
        self.next(session, count)?.fill(0);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes, now immutable, followed by zeros.
    pub(super) fn finish(self) -> Buffer {
        let Some(mut block) = self.block.filter(|_| self.len > 0) else { return MutableBuffer::new(0).into() };
        block.as_bytes_mut()[self.len..self.len.next_multiple_of(ALIGNMENT)].fill(0);
        block.freeze().to_arrow_buffer().slice_with_length(0, self.len)
    }
}

/// Bits, the first in the lowest position of the first byte.
#[derive(Debug, Default)]
pub(super) struct Bits {
    bytes: Room,
    len: usize,
    zeros: usize,
}

impl Bits {
    pub(super) fn reserve(&mut self, session: &Session, more: usize) -> Result<(), Error> {
        let bytes = (self.len + more).div_ceil(8).saturating_sub(self.bytes.len());
        self.bytes.reserve(session, bytes)
    }

    pub(super) fn push(&mut self, session: &Session, bit: bool) -> Result<(), Error> {
        if self.len.is_multiple_of(8) {
            self.bytes.zeros(session, 1)?;
        }
        let at = self.len / 8;
        if let Some(block) = &mut self.bytes.block {
            block.as_bytes_mut()[at] |= u8::from(bit) << (self.len % 8);
        }
        self.len += 1;
        self.zeros += usize::from(!bit);
        Ok(())
    }

    /// Appends `count` ones.
    pub(super) fn push_ones(&mut self, session: &Session, count: usize) -> Result<(), Error> {
        let mut left = count;
        while left > 0 && !self.len.is_multiple_of(8) {
            self.push(session, true)?;
            left -= 1;
        }
        self.bytes.next(session, left / 8)?.fill(0xff);
        self.len += left / 8 * 8;
        (0..left % 8).try_for_each(|_| self.push(session, true))
    }

    pub(super) fn finish(self) -> BooleanBuffer {
        BooleanBuffer::new(self.bytes.finish(), 0, self.len)
    }

    /// The bits as a validity bitmap; `None` if nothing is null.
    pub(super) fn finish_nulls(self) -> Option<NullBuffer> {
        (self.zeros > 0).then(|| NullBuffer::new(self.finish()))
    }
}
