//! Blocks: rows of one partition that a task wrote, encoded in one tensor of bytes.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 63 | the header, see [`Header`] |
//! | from 64 | Arrow IPC messages, without their bodies: a record batch, after its dictionaries if it has any |
//! | | the row numbers: the difference of each to the first, as 32 bits |
//! | | the bodies of the messages, one behind the other |
//!
//! Everything begins at a multiple of 64, and what lies between is zeros. The schema is not in the block: a task has one
//! for all its blocks.
//!
//! A block is not trusted. Its header and its messages are copied out and checked, and so are all lengths, offsets,
//! keys and characters of its arrays, before an array is made; see [`BatchDecoder`].

use crate::taken::{copied_batch, copied_rows_of};
use arrow_array::RecordBatch;
use arrow_buffer::ScalarBuffer;
use arrow_ipc::{FieldNode, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder};
use arrow_schema::SchemaRef;
use flatbuffers::FlatBufferBuilder;
use transfer_client::{BatchDecoder, BatchError, Frozen, TensorMut};
use transfer_memory::view::Bytes;

/// Everything in a block begins at a multiple of this.
pub(super) const ALIGNMENT: usize = transfer_core::memory::ALIGNMENT as usize;

/// The marker in front of the length of a message of Arrow.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The length of the header.
pub(super) const HEADER_BYTES: usize = 64;

/// The start of a block, with the version of its layout.
const MAGIC: [u8; 8] = *b"XBLOCK\0\x01";

/// A block's header.
///
/// | bytes | contents |
/// |---|---|
/// | 0 to 7 | `XBLOCK`, 0, the version, which is 1 |
/// | 8 | the length of the messages |
/// | 16 | the number of rows |
/// | 24 | the number of the first row within its task |
/// | 32 | the offset of the row numbers |
/// | 40 | the offset of the bodies, which end with the block |
///
/// All numbers have 64 bits, the lowest byte first. The rest is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) rows: u64,
    pub(super) first_row: u64,
    pub(super) row_numbers_at: u64,
    pub(super) body_at: u64,
}

/// Writes a header, and the messages behind it. They take `room` bytes, at least as many as they have.
pub(super) fn write_head(bytes: &mut [u8], header: &Header, messages: &[u8], room: usize) {
    let end = (HEADER_BYTES + room).next_multiple_of(ALIGNMENT);
    let head = &mut bytes[..end];
    head.fill(0);
    head[..8].copy_from_slice(&MAGIC);
    let Header { rows, first_row, row_numbers_at, body_at } = *header;
    let numbers = [messages.len() as u64, rows, first_row, row_numbers_at, body_at];
    for (place, number) in head[8..].as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *place = number.to_le_bytes();
    }
    head[HEADER_BYTES..][..messages.len()].copy_from_slice(messages);
}

/// Makes the message of a record batch: with so many values and nulls in its arrays, with its buffers at so many bytes
/// and of such lengths, with so many buffers in its arrays of views, and with a body of that length.
pub(super) fn record_batch_message(
    rows: usize,
    nodes: &[(usize, usize)],
    buffers: &[(usize, usize)],
    views: &[i64],
    body_len: usize,
) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes: Vec<_> = nodes.iter().map(|(len, nulls)| FieldNode::new(*len as i64, *nulls as i64)).collect();
    let buffers: Vec<_> = buffers.iter().map(|(at, len)| arrow_ipc::Buffer::new(*at as i64, *len as i64)).collect();
    let (nodes, buffers) = (builder.create_vector(&nodes), builder.create_vector(&buffers));
    let views = (!views.is_empty()).then(|| builder.create_vector(views));
    let mut batch = RecordBatchBuilder::new(&mut builder);
    batch.add_length(rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    if let Some(views) = views {
        batch.add_variadicBufferCounts(views);
    }
    let header = batch.finish().as_union_value();
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_bodyLength(body_len as i64);
    message.add_header(header);
    let root = message.finish();
    builder.finish(root, None);
    let message = builder.finished_data();
    let len = message.len().next_multiple_of(8);
    let mut framed = [&CONTINUATION[..], &(len as u32).to_le_bytes(), message].concat();
    framed.resize(8 + len, 0);
    framed
}

/// A block that is complete.
#[derive(Debug)]
pub(crate) struct Block {
    frozen: Frozen,
}

impl Block {
    /// Takes the first `len` bytes of a tensor as a block.
    pub(super) fn new(tensor: TensorMut, len: usize) -> Block {
        let whole = tensor.freeze();
        // A block is no longer than the tensor it lies in.
        let frozen = whole.clone().first_bytes(len as u64).unwrap_or(whole);
        Block { frozen }
    }

    /// Its length, in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.frozen.meta().len_bytes()
    }

    /// The tensor of its bytes, to be pushed.
    pub(crate) fn frozen(&self) -> &Frozen {
        &self.frozen
    }
}

/// The rows of a block. The arrays are views of the block's memory, and keep it.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    batch: RecordBatch,
    first_row: u64,
    row_numbers: ScalarBuffer<u32>,
    /// The length of the block that it was read from.
    len_bytes: u64,
}

impl Decoded {
    #[cfg(test)]
    pub(crate) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    pub(crate) fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// The length of its block, in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// A copy of these rows, which keeps nothing of the block's memory.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot copy them.
    pub(super) fn copied_rows(&self, rows: &[u32]) -> Result<Decoded, BatchError> {
        let batch =
            copied_rows_of(&self.batch, rows).map_err(BatchError::arrow("the rows of a block cannot be copied"))?;
        let row_numbers = rows.iter().map(|row| self.row_numbers[*row as usize]).collect();
        Ok(Decoded { batch, row_numbers, first_row: self.first_row, len_bytes: self.len_bytes })
    }

    /// A copy of all rows, which keeps nothing of the block's memory.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot copy them.
    pub(super) fn copied(&self) -> Result<Decoded, BatchError> {
        let batch = copied_batch(&self.batch).map_err(BatchError::arrow("the rows of a block cannot be copied"))?;
        let row_numbers = self.row_numbers.to_vec().into();
        Ok(Decoded { batch, row_numbers, first_row: self.first_row, len_bytes: self.len_bytes })
    }

    /// The number within its task of each row. They ascend.
    pub(crate) fn row_numbers(&self) -> impl ExactSizeIterator<Item = u64> {
        self.row_numbers.iter().map(|number| self.first_row + u64::from(*number))
    }
}

/// Reads the blocks of one task.
#[derive(Debug)]
pub(crate) struct BlockReader {
    decoder: BatchDecoder,
}

impl BlockReader {
    /// Makes a reader of blocks whose schema is in that message.
    ///
    /// # Errors
    /// [`BatchError`] if it is not a valid message of a schema.
    pub(crate) fn new(schema_message: &[u8]) -> Result<BlockReader, BatchError> {
        Ok(BlockReader { decoder: BatchDecoder::new(schema_message)? })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        self.decoder.schema()
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`BatchError`] if the bytes are not a block of this schema.
    pub(crate) fn decode(&self, block: &Bytes) -> Result<Decoded, BatchError> {
        // A copy, so that it cannot change after the check.
        let head =
            block.first_chunk::<HEADER_BYTES>().copied().ok_or(BatchError::Cut { missing: "a block's header" })?;
        let [magic, numbers @ ..] = head.as_chunks::<8>().0 else {
            return Err(BatchError::Cut { missing: "a block's header" });
        };
        if *magic != MAGIC {
            let (what, found) = ("the start of a block", i64::from_le_bytes(*magic));
            return Err(BatchError::Metadata { what, found, expected: "XBLOCK and the version 1" });
        }
        let [messages_len, rows, first_row, row_numbers_at, body_at, ..] = numbers else {
            return Err(BatchError::Cut { missing: "a block's header" });
        };
        let part = |at: [u8; 8], len: Option<u64>, align: u64| {
            let (at, offset) = (u64::from_le_bytes(at), i64::from_le_bytes(at));
            let end = len.and_then(|len| at.checked_add(len)).and_then(|end| usize::try_from(end).ok());
            let start = usize::try_from(at).ok().filter(|_| at.is_multiple_of(align));
            let found = start.zip(end).and_then(|(start, end)| block.slice(start..end));
            let len = len.and_then(|len| i64::try_from(len).ok()).unwrap_or(i64::MAX);
            found.ok_or(BatchError::OutOfBody { offset, len, body_len: block.len() as u64 })
        };
        let rows = u64::from_le_bytes(*rows);
        let messages = part((HEADER_BYTES as u64).to_le_bytes(), Some(u64::from_le_bytes(*messages_len)), 1)?;
        let numbers = part(*row_numbers_at, rows.checked_mul(4), 4)?;
        let body_len = (block.len() as u64).checked_sub(u64::from_le_bytes(*body_at));
        let body = part(*body_at, body_len, ALIGNMENT as u64)?;
        let row_numbers = checked(numbers, u64::from_le_bytes(*first_row))?;
        let mut batches = self.decoder.decode(messages.to_vec(), body)?;
        match (batches.pop(), batches.len()) {
            (Some(batch), 0) if batch.num_rows() as u64 == rows => {
                let (first_row, len_bytes) = (u64::from_le_bytes(*first_row), block.len() as u64);
                Ok(Decoded { batch, first_row, row_numbers, len_bytes })
            }
            (Some(batch), 0) => {
                let (what, found) = ("the number of rows of a block", batch.num_rows() as i64);
                Err(BatchError::Metadata { what, found, expected: "that of its header" })
            }
            (last, others) => Err(BatchError::NotOne { found: others + usize::from(last.is_some()) }),
        }
    }
}

/// Checks that row numbers ascend, from 0, and do not end above 2^64.
fn checked(numbers: Bytes, first_row: u64) -> Result<ScalarBuffer<u32>, BatchError> {
    let len = numbers.len() / 4;
    if len == 0 {
        return Ok(ScalarBuffer::default());
    }
    let wrong = |found: u64| BatchError::Metadata {
        what: "a row number of a block",
        found: i64::try_from(found).unwrap_or(i64::MAX),
        expected: "greater than the one before, and the first 0",
    };
    let buffer = numbers.to_arrow_buffer();
    if !buffer.as_ptr().addr().is_multiple_of(align_of::<u32>()) {
        return Err(BatchError::OutOfBody { offset: 0, len: buffer.len() as i64, body_len: buffer.len() as u64 });
    }
    let numbers = ScalarBuffer::<u32>::new(buffer, 0, len);
    if let Some(pair) = numbers.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(wrong(u64::from(pair[1])));
    }
    match (numbers[0], first_row.checked_add(u64::from(numbers[len - 1]))) {
        (0, Some(_)) => Ok(numbers),
        (first, _) => Err(wrong(u64::from(first))),
    }
}
