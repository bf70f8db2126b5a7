//! Streams of batches: the versions of a key, in order. Each stays until its readers have fetched it.

use super::calls::{FetchedBatch, body, source};
use super::encode::{Encoded, Encoder};
use super::finish::{End, Finish};
use super::messages::Decoder;
use crate::digest::Proof;
use crate::error::{BatchError, Error};
use crate::fetch::Fetch;
use crate::gathered::Body;
use crate::push::Push;
use crate::request::{AnyClient, Begun, BlockingClient, Client, DEFAULT_TIMEOUT};
use crate::session::{Connection, Lease};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::tensor::{Key, Until};

/// The writing end of a stream of batches; see [`Client::push_stream`](crate::Client::push_stream).
pub struct BatchStream<C> {
    connection: Arc<Connection>,
    key: Result<Key, Error>,
    encoder: Result<Encoder, BatchError>,
    readers: NonZeroU32,
    next: u64,
    /// The number of its batches, once [`BatchStream::finish`] was called.
    ended: Option<u64>,
    end: Arc<End>,
    client: PhantomData<C>,
}

/// The reading end of a stream of batches; see [`Client::fetch_stream`](crate::Client::fetch_stream).
#[derive(Debug)]
pub struct BatchStreamReader<C> {
    connection: Arc<Connection>,
    key: Result<Key, Error>,
    decoder: Decoder,
    timeout: Duration,
    next: u64,
    ended: bool,
    client: PhantomData<C>,
}

impl<C: AnyClient> BatchStream<C> {
    pub(crate) fn new(connection: Arc<Connection>, key: Result<Key, Error>, schema: &SchemaRef) -> Self {
        let (encoder, readers, end) = (Encoder::new(schema), NonZeroU32::MIN, Arc::default());
        BatchStream { connection, key, encoder, readers, next: 1, ended: None, end, client: PhantomData }
    }

    /// The number of readers, each of which must fetch each batch. The default is 1; 0 means 1.
    #[must_use]
    pub fn readers(mut self, readers: u32) -> Self {
        self.readers = NonZeroU32::new(readers).unwrap_or(NonZeroU32::MIN);
        self
    }

    /// Pushes the next batch. Only new values of a dictionary are sent. If this push fails, the stream has failed:
    /// later batches cannot be read without it. After [`BatchStream::finish`] it fails with [`BatchError::Ended`].
    pub fn push(&mut self, batch: &RecordBatch) -> Push<'static, C> {
        let encoded = match (&mut self.encoder, self.ended) {
            (Err(e), _) => Err(e.clone()),
            (Ok(_), Some(batches)) => {
                let key = self.key.as_ref().map_or("", Key::as_str).to_owned();
                Err(BatchError::Ended { key, batches })
            }
            (Ok(encoder), None) => encoder.encode([batch]),
        };
        let version = self.next;
        self.next += u64::from(encoded.is_ok());
        self.send(encoded, version)
    }

    /// Ends the stream for its readers, and waits until each of them has fetched all of it. If they take longer, the call fails
    /// with [`BatchError::NotRead`], which says how many batches were not fetched; these stay published as long as this
    /// worker's session. Another call waits for them again. A stream that is dropped does not end.
    pub fn finish(&mut self) -> Finish<C> {
        let end = self.encoder.as_ref().map(Encoder::end).map_err(BatchError::clone);
        let batches = *self.ended.get_or_insert(self.next - 1);
        Finish::new(self.send(end, batches + 1), self.key.clone(), batches, self.end.clone())
    }

    /// The number of batches that a reader has not fetched, as the sidecar has said last. It changes while a call of
    /// [`BatchStream::finish`] waits. `None` until such a call has heard it.
    #[must_use]
    pub fn unread(&self) -> Option<u64> {
        self.end.unread(self.ended?)
    }

    fn send(&self, encoded: Result<Encoded, BatchError>, version: u64) -> Push<'static, C> {
        let push = Push::new(self.connection.session(), self.key.clone(), source(encoded));
        push.version(version).keep(Until::Fetched(self.readers))
    }
}

impl<C> std::fmt::Debug for BatchStream<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchStream").field("key", &self.key).field("next", &self.next).finish_non_exhaustive()
    }
}

/// A fetched batch before it is decoded; see [`BatchStreamReader::begin`].
pub struct NextBatch {
    body: Body,
    version: u64,
    report: Report,
}

impl std::fmt::Debug for NextBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NextBatch").field("version", &self.version).finish_non_exhaustive()
    }
}

fn take_raw(lease: Arc<Lease>, landed: FetchedTensor, _: &Proof<'_>) -> Result<NextBatch, Error> {
    let body = body(Body::new::<BatchError>(lease, &landed)?, &landed.meta)?;
    Ok(NextBatch { body, version: landed.version.0, report: landed.report })
}

impl<C: AnyClient> BatchStreamReader<C> {
    pub(crate) fn new(connection: Arc<Connection>, key: Result<Key, Error>) -> Self {
        let (decoder, timeout) = (Decoder::default(), DEFAULT_TIMEOUT);
        BatchStreamReader { connection, key, decoder, timeout, next: 1, ended: false, client: PhantomData }
    }

    /// The time-out of each batch, 30 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn fetch(&self) -> Fetch<C, NextBatch> {
        let fetch = Fetch::new(self.connection.session(), self.key.clone(), take_raw).timeout(self.timeout);
        // The first batch may be that of a writer which is still to come. What follows is of the same one.
        if self.next == 1 { fetch.exactly(1) } else { fetch.following(self.next) }
    }

    /// Decodes a fetched batch. `None` at the end of the stream.
    ///
    /// # Errors
    /// [`Error::Batch`].
    pub fn take(&mut self, raw: NextBatch) -> Result<Option<FetchedBatch>, Error> {
        // The version counts as fetched, even if its contents are invalid.
        self.next += 1;
        let NextBatch { body, version, report } = raw;
        let decoded = self.decoder.decode(&body)?;
        self.ended = decoded.ended;
        match decoded.ended && decoded.batches.is_empty() {
            true => Ok(None),
            false => Ok(Some(FetchedBatch::of(decoded, version, report)?)),
        }
    }
}

impl BatchStreamReader<Client> {
    /// The next batch; `None` at the end. A call that is given up may have consumed a batch; then the stream cannot be
    /// read on.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn next(&mut self) -> Result<Option<FetchedBatch>, Error> {
        if self.ended {
            return Ok(None);
        }
        let raw = self.fetch().await?;
        self.take(raw)
    }
}

impl BatchStreamReader<BlockingClient> {
    /// Begins to fetch the next batch. Pass the result to [`BatchStreamReader::take`] before the next call of this
    /// function. After the end of the stream, a fetch waits until its deadline.
    pub fn begin(&self) -> Begun<'static, Result<NextBatch, Error>> {
        self.fetch().begin()
    }

    /// Whether the end was read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// Any [`Error`].
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<FetchedBatch>, Error> {
        if self.ended {
            return Ok(None);
        }
        let raw = self.fetch().call()?;
        self.take(raw)
    }
}
