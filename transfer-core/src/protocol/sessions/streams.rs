//! Whose streams a worker reads: the reader of a stream hears that its key has gone to another writer, although the key has
//! versions of that one.

use super::Sessions;
use crate::protocol::ids::SessionId;
use crate::tensor::{Key, Name};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// How many streams of one worker are remembered. The one that it began to read first is forgotten first.
const MAX_STREAMS: usize = 1024;

/// The writer of a stream, as its readers' node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writer {
    /// This worker, whose versions are published at this node.
    Here(Name),
    /// A worker whose versions came from this node.
    At(Name),
}

/// The streams that a worker reads.
#[derive(Default)]
pub(super) struct Streams {
    writers: HashMap<Key, Writer>,
    order: VecDeque<Key>,
}

impl Streams {
    fn read(&mut self, key: &Key, writer: Writer) {
        if let Some(known) = self.writers.get_mut(key) {
            *known = writer;
            return;
        }
        if self.order.len() >= MAX_STREAMS
            && let Some(first) = self.order.pop_front()
        {
            self.writers.remove(&first);
        }
        self.order.push_back(key.clone());
        self.writers.insert(key.clone(), writer);
    }
}

impl Sessions {
    /// Notes whose version of a stream a worker has read last.
    pub(crate) fn read_stream(&mut self, session: SessionId, key: &Key, writer: Writer) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.streams.get_or_insert_default().read(key, writer);
        }
    }

    /// Returns whose version of a stream a worker has read last.
    pub(crate) fn writer_of(&self, session: SessionId, key: &Key) -> Option<&Writer> {
        self.sessions.get(&session)?.streams.as_ref()?.writers.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_a_worker_reads_are_bounded_and_the_first_is_forgotten_first() {
        let key = |n: usize| Key::new(&format!("k{n}")).unwrap();
        let name = |text| Writer::At(Name::new(text).unwrap());
        let mut streams = Streams::default();
        for n in 0..=MAX_STREAMS {
            streams.read(&key(n), name("a"));
        }
        streams.read(&key(1), name("b"));
        assert_eq!((streams.writers.len(), streams.order.len()), (MAX_STREAMS, MAX_STREAMS));
        assert_eq!((streams.writers.get(&key(0)), streams.writers.get(&key(1))), (None, Some(&name("b"))));
    }
}
