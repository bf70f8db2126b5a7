//! The messages between a client and a server, over TCP.
//!
//! | client | server |
//! |---|---|
//! | `Hello`: what it was started for | `Welcome`, or `Refused` with the reason |
//! | `Prepare`: a set-up, and its queue pairs | `Prepared`: its own, connected to the client's |
//! | `Run`: a size and a length | `Go`: the receives are posted |
//! | `Done`: all has left | `Outcome`: what has arrived |
//! | again from `Run` or `Prepare`, or `End` | |
//!
//! A message is a mark, its length, and JSON. A stranger may say anything: its length is bounded, unknown fields are
//! refused, and every number is checked before it is used.

use super::terms::{Kind, Measure, Run, Setup, Verb};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// In front of each message; its last byte is the version.
const MESSAGE_MAGIC: [u8; 8] = *b"tr-perf\x01";
const HEAD_BYTES: usize = MESSAGE_MAGIC.len() + 4;
/// The longest message: 64 queue pairs take a quarter of it.
const MAX_BYTES: usize = 64 << 10;
/// The most text of a peer that is shown.
const MAX_WHY: usize = 1000;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Message {
    /// What the client was started for.
    Hello {
        /// The operation.
        verb: Verb,
        /// Bandwidth or latency.
        measure: Measure,
        /// The kind of queue pairs.
        kind: Kind,
        /// Whether librdmacm connects them.
        by_rdma_cm: bool,
        /// Whether it varies the verb, and more.
        sweep: bool,
    },
    /// The server serves this client.
    Welcome,
    /// A set-up, with the client's queue pairs.
    Prepare {
        /// The set-up.
        setup: Setup,
        /// One for each queue pair.
        ends: Vec<Endpoint>,
    },
    /// The server's queue pairs, and where it listens if librdmacm connects them.
    Prepared {
        /// One for each queue pair.
        ends: Vec<Endpoint>,
        /// Where the client connects them by librdmacm.
        listens: Option<Listener>,
    },
    /// One measurement.
    Run(Run),
    /// The server is ready for it.
    Go,
    /// All messages have left.
    Done {
        /// Their number, for each queue pair.
        messages: Vec<u64>,
    },
    /// What has arrived at the server.
    Outcome(Outcome),
    /// The end. The client is done with the server.
    End,
    /// The sender does not go on.
    Refused {
        /// The reason.
        why: String,
    },
}

/// Where a server listens with librdmacm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// Shows that a connection is this client's.
    pub token: u64,
}

/// What has arrived at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The number of messages that were received, if they are.
    pub arrived: Option<u64>,
    /// Whether its memory has the bytes that it should have.
    pub matches: bool,
}

/// A queue pair, and the memory behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Its number.
    pub queue_pair: u32,
    /// The number of its first packet.
    pub packet_number: u32,
    /// Its port's LID.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Option<[u8; 16]>,
    /// The largest packet of its port, in bytes.
    pub mtu: u32,
    /// READs and atomics that it can answer at a time.
    pub answers: u8,
    /// The queue key of datagrams.
    pub queue_key: u32,
    /// The address of the memory.
    pub address: u64,
    /// Its remote key.
    pub key: u32,
}

/// What is wrong with a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It does not begin like one.
    #[error("bad magic or version")]
    Mark,
    /// It is too long.
    #[error("it has {len_bytes} bytes, and {MAX_BYTES} is the most")]
    Length {
        /// Its length.
        len_bytes: usize,
    },
    /// Its body is wrong.
    #[error("{why}")]
    Body {
        /// The parser's words.
        why: String,
    },
    /// It is not the one that comes next.
    #[error("{got} came in place of {wanted}")]
    Order {
        /// Its name.
        got: &'static str,
        /// The one that comes next.
        wanted: &'static str,
    },
}

impl Message {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "Hello",
            Message::Welcome => "Welcome",
            Message::Prepare { .. } => "Prepare",
            Message::Prepared { .. } => "Prepared",
            Message::Run(_) => "Run",
            Message::Go => "Go",
            Message::Done { .. } => "Done",
            Message::Outcome(_) => "Outcome",
            Message::End => "End",
            Message::Refused { .. } => "Refused",
        }
    }

    /// The error for this message in place of another one.
    #[must_use]
    pub fn instead_of(&self, wanted: &'static str) -> MessageError {
        MessageError::Order { got: self.name(), wanted }
    }

    /// Makes a refusal. A reason of any length fits.
    #[must_use]
    pub fn refusal(why: &str) -> Message {
        Message::Refused { why: why.chars().take(MAX_WHY).collect() }
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`MessageError::Length`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, MessageError> {
        let body = serde_json::to_vec(self).map_err(|e| MessageError::Body { why: e.to_string() })?;
        let len = u32::try_from(body.len()).ok().filter(|len| *len as usize <= MAX_BYTES);
        let len = len.ok_or(MessageError::Length { len_bytes: body.len() })?;
        Ok([&MESSAGE_MAGIC[..], &len.to_be_bytes(), &body].concat())
    }

    /// Reads the first message of `bytes`, and returns it with its length; `None` if it is not complete yet.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn read(bytes: &[u8]) -> Result<Option<(Message, usize)>, MessageError> {
        let begun = bytes.len().min(MESSAGE_MAGIC.len());
        if bytes[..begun] != MESSAGE_MAGIC[..begun] {
            return Err(MessageError::Mark);
        }
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [.., a, b, c, d] = *head;
        let len_bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        if len_bytes > MAX_BYTES {
            return Err(MessageError::Length { len_bytes });
        }
        let Some(body) = rest.get(..len_bytes) else { return Ok(None) };
        let message = serde_json::from_slice(body).map_err(|e| MessageError::Body { why: e.to_string() })?;
        if let Message::Refused { why } = &message
            && why.chars().count() > MAX_WHY
        {
            return Err(MessageError::Length { len_bytes: why.len() });
        }
        Ok(Some((message, HEAD_BYTES + len_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::terms::tests::setup;
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            queue_pair: u32::MAX,
            packet_number: u32::MAX,
            lid: u16::MAX,
            gid: Some([255; 16]),
            mtu: 4096,
            answers: u8::MAX,
            queue_key: u32::MAX,
            address: u64::MAX,
            key: u32::MAX,
        }
    }

    fn messages() -> Vec<Message> {
        let setup = setup(Verb::Write, Measure::Bw, Kind::RC);
        let listener = Listener { address: ([10, 77, 0, 1], 7).into(), token: u64::MAX };
        vec![
            Message::Hello { verb: Verb::Send, measure: Measure::Lat, kind: Kind::UD, by_rdma_cm: false, sweep: true },
            Message::Welcome,
            Message::Prepare { setup, ends: vec![endpoint(); 64] },
            Message::Prepared { ends: vec![endpoint()], listens: Some(listener) },
            Message::Run(Run { size: 64, messages: Some(5), seconds: None, seed: 3 }),
            Message::Go,
            Message::Done { messages: vec![u64::MAX; 64] },
            Message::Outcome(Outcome { arrived: Some(3), matches: true }),
            Message::End,
            Message::refusal(&"é".repeat(5000)),
        ]
    }

    #[test]
    fn messages_round_trip_and_the_longest_ones_fit() {
        for message in messages() {
            let mut bytes = message.to_bytes().unwrap();
            let len = bytes.len();
            for part in [0, 1, 8, 11, 12, len - 1] {
                assert_eq!(Message::read(&bytes[..part]), Ok(None), "{part} bytes of {}", message.name());
            }
            bytes.extend(b"tr-perf\x01 and more");
            assert_eq!(Message::read(&bytes), Ok(Some((message, len))));
        }
    }

    #[test]
    fn other_protocols_and_versions_are_refused_at_their_first_bytes() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"x", b"tr-perf\x02", b"\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(Message::read(bytes), Err(MessageError::Mark), "{bytes:?}");
        }
        let mut long = MESSAGE_MAGIC.to_vec();
        long.extend(u32::MAX.to_be_bytes());
        assert_eq!(Message::read(&long), Err(MessageError::Length { len_bytes: u32::MAX as usize }));
    }

    // Promise: perf-strangers, seen to fail
    #[test]
    fn fuzz_perf_message() {
        let seeds = messages().into_iter().map(|message| message.to_bytes().unwrap());
        let repair = |bytes: &mut Vec<u8>| {
            if let Some(len) = bytes.len().checked_sub(HEAD_BYTES) {
                bytes[..MESSAGE_MAGIC.len()].copy_from_slice(&MESSAGE_MAGIC);
                bytes[MESSAGE_MAGIC.len()..HEAD_BYTES].copy_from_slice(&(len as u32).to_be_bytes());
            }
        };
        transfer_fuzz::Target::new("perf-message", seeds).repair(repair).bound(1 << 20).run(
            |bytes| match Message::read(bytes) {
                Ok(Some((message, len))) => {
                    assert!(len <= bytes.len());
                    if let Message::Prepare { setup, .. } = &message
                        && setup.check().is_ok()
                    {
                        assert!(setup.memory() <= 2 << 30 && setup.signal_every <= setup.depth);
                    }
                    message.name().to_owned()
                }
                Ok(None) => "incomplete".to_owned(),
                Err(error) => error.to_string().chars().take(12).collect(),
            },
        );
    }
}
