//! Record batches as messages and buffers.
//!
//! Arrow's own encoder makes the messages, so every Arrow library can read them. It returns the buffers unchanged. This
//! module moves the metadata to the front, and the bodies behind it.

use super::schema::{check_schema, has_views};
use super::{ALIGNMENT, BatchError};
use crate::gathered::{Piece, Pieces};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions, StreamEncoder};
use arrow_ipc::{Message, MetadataVersion, root_as_message};
use arrow_schema::SchemaRef;

/// Encoded batches, ready to be pushed: the metadata is the messages without their bodies, and the buffers are those of
/// all bodies.
pub(crate) type Encoded = Pieces<'static>;

/// The encoder of one push, or of the pushes of a stream. It sends only the new values of a dictionary.
pub(crate) struct Encoder {
    schema: SchemaRef,
    ipc: StreamEncoder,
    /// The message of the schema, at the front of every push.
    schema_message: Vec<u8>,
    has_views_below_runs: bool,
}

impl Encoder {
    pub(crate) fn new(schema: &SchemaRef) -> Result<Encoder, BatchError> {
        check_schema(schema)?;
        let ipc = || {
            let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
            StreamEncoder::try_new_with_options(schema, options.with_dictionary_handling(DictionaryHandling::Delta))
        };
        let (ipc, first) = ipc().and_then(|first| Ok((ipc()?, first.finish()?))).map_err(failed)?;
        let mut head = Encoded::default();
        take_messages(first, &mut head)?;
        let has_views_below_runs = schema.fields().iter().any(|field| has_views(field.data_type(), false));
        Ok(Encoder { schema: schema.clone(), ipc, schema_message: head.metadata, has_views_below_runs })
    }

    pub(crate) fn encode<'a>(
        &mut self,
        batches: impl IntoIterator<Item = &'a RecordBatch>,
    ) -> Result<Encoded, BatchError> {
        let mut encoded = Encoded { metadata: self.schema_message.clone(), ..Encoded::default() };
        for batch in batches {
            if batch.schema_ref() != &self.schema {
                let (expected, found) = (self.schema.to_string(), batch.schema_ref().to_string());
                return Err(BatchError::OtherSchema { expected, found });
            }
            // A batch without rows is made anew: arrow-ipc 60.1 miscounts the buffers of views below runs if a slice
            // has no runs.
            let anew = self.has_views_below_runs && batch.num_rows() == 0;
            let empty = anew.then(|| RecordBatch::new_empty(self.schema.clone()));
            let pieces = self.ipc.encode(empty.as_ref().unwrap_or(batch)).map_err(failed)?;
            take_messages(pieces, &mut encoded)?;
        }
        Ok(encoded)
    }

    /// The message of the schema, which precedes the messages of every push.
    pub(crate) fn into_schema_message(self) -> Vec<u8> {
        self.schema_message
    }

    /// Encodes the end of a stream.
    pub(super) fn end(&self) -> Encoded {
        Encoded { metadata: [&self.schema_message[..], &END[..]].concat(), ..Encoded::default() }
    }
}

fn failed(e: arrow_schema::ArrowError) -> BatchError {
    BatchError::arrow("the batch cannot be encoded")(e)
}

/// The marker in front of every message's length.
pub(crate) const CONTINUATION: [u8; 4] = [0xff; 4];

/// The end of a stream: a message of length 0.
pub(super) const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Takes a stream of messages apart. The stream is a sequence of pieces: metadata, buffers, padding. The message of the
/// schema and the end of the stream are skipped, unless nothing precedes them.
fn take_messages(pieces: Vec<Buffer>, encoded: &mut Encoded) -> Result<(), BatchError> {
    let unknown =
        |found| BatchError::Metadata { what: "framing", found, expected: "as this version of arrow-ipc writes it" };
    // An empty buffer may have a piece, or none.
    let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    while let Some(head) = pieces.next() {
        let (marker, len) = head.split_first_chunk::<4>().ok_or_else(|| unknown(head.len() as i64))?;
        let len = <[u8; 4]>::try_from(len).map(u32::from_le_bytes).map_err(|_| unknown(len.len() as i64))? as usize;
        if *marker != CONTINUATION {
            return Err(unknown(0));
        }
        if len == 0 {
            break;
        }
        let mut metadata = Vec::with_capacity(len);
        while metadata.len() < len {
            metadata.extend_from_slice(&pieces.next().ok_or(BatchError::Cut { missing: "a message" })?);
        }
        let message = root_as_message(&metadata).map_err(|_| unknown(0))?;
        let (wanted, body_len) = (buffers_of(&message), message.bodyLength());
        let is_schema = message.header_as_schema().is_some();
        if !is_schema || encoded.metadata.is_empty() {
            encoded.metadata.extend_from_slice(&head);
            encoded.metadata.extend_from_slice(&metadata);
        }
        let mut at = 0;
        for (offset, len) in wanted.into_iter().filter(|(_, len)| *len > 0) {
            loop {
                let piece = pieces.next().ok_or(BatchError::Cut { missing: "a buffer" })?;
                let (start, piece_len) = (at, piece.len() as i64);
                at += piece_len;
                if start == offset && piece_len == len {
                    encoded.buffers.push(Piece::Shared(piece));
                    break;
                }
            }
        }
        while at < body_len {
            at += pieces.next().ok_or(BatchError::Cut { missing: "a body" })?.len() as i64;
        }
    }
    Ok(())
}

/// The ranges of a message's buffers in its body.
fn buffers_of(message: &Message<'_>) -> Vec<(i64, i64)> {
    let batch = message.header_as_record_batch();
    let batch = batch.or_else(|| message.header_as_dictionary_batch().and_then(|d| d.data()));
    let buffers = batch.and_then(|batch| batch.buffers());
    buffers.map_or_else(Vec::new, |all| all.iter().map(|b| (b.offset(), b.length())).collect())
}
