//! Batches as messages and buffers, for libraries that store them in a layout of their own.

use super::encode::Encoder;
use super::messages::Decoder;
use crate::error::BatchError;
use crate::gathered::{Body, Piece};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use transfer_memory::view::Bytes;

/// An encoded batch: Arrow IPC messages without their bodies, and the buffers of the bodies.
#[derive(Debug)]
pub struct EncodedBatch {
    /// The message of the batch, after those of its dictionaries. The message of the schema is not there.
    pub messages: Vec<u8>,
    /// The buffers of all bodies. Each has to begin at a multiple of 64 bytes of the body.
    pub buffers: Vec<Buffer>,
}

impl EncodedBatch {
    /// Encodes a batch.
    ///
    /// # Errors
    /// [`BatchError`] for a schema that cannot be sent.
    pub fn new(batch: &RecordBatch) -> Result<EncodedBatch, BatchError> {
        let mut encoder = Encoder::new(batch.schema_ref())?;
        let encoded = encoder.encode([batch])?;
        let messages = encoded.metadata[encoder.into_schema_message().len()..].to_vec();
        let buffers = encoded.buffers.into_iter().map(|piece| match piece {
            Piece::Shared(buffer) => buffer,
            Piece::Borrowed(bytes) => Buffer::from(bytes),
        });
        Ok(EncodedBatch { messages, buffers: buffers.collect() })
    }
}

/// Decodes batches of one schema. What it reads is not trusted: every range, length, offset, key and character is checked
/// before an array is made.
#[derive(Debug)]
pub struct BatchDecoder {
    schema: SchemaRef,
    decoder: Decoder,
}

impl BatchDecoder {
    /// The message of a schema, for [`BatchDecoder::new`].
    ///
    /// # Errors
    /// [`BatchError`] for a schema that cannot be sent.
    pub fn schema_message(schema: &SchemaRef) -> Result<Vec<u8>, BatchError> {
        Ok(Encoder::new(schema)?.into_schema_message())
    }

    /// Makes a decoder of batches whose schema is in that message.
    ///
    /// # Errors
    /// [`BatchError`] if it is not a valid message of a schema.
    pub fn new(schema_message: &[u8]) -> Result<BatchDecoder, BatchError> {
        let mut decoder = Decoder::default();
        let decoded = decoder.decode(&Body::of(schema_message.to_vec(), []))?;
        Ok(BatchDecoder { schema: decoded.schema, decoder })
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Decodes messages, whose bodies lie one behind the other. The arrays are views of `body`.
    ///
    /// # Errors
    /// [`BatchError`] if they are no batches of this schema.
    pub fn decode(&self, messages: Vec<u8>, body: Bytes) -> Result<Vec<RecordBatch>, BatchError> {
        Ok(self.decoder.again().decode(&Body::of(messages, [body]))?.batches)
    }
}
