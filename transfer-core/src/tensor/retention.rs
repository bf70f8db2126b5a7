//! How long a published version stays.

use std::fmt;
use std::num::NonZeroU32;

/// Until what a version stays, as long as its [`Life`] lasts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Until {
    /// Until a newer version of its key is published: the newest stays.
    #[default]
    Replaced,
    /// Until it was fetched so often, also when there is a newer one by then.
    Fetched(NonZeroU32),
    /// Until its key is deleted, also when there is a newer one by then.
    Deleted,
}

/// What a version must not outlive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Life {
    /// The session of the worker that published it.
    #[default]
    Session,
    /// The sidecar that it lies at.
    Sidecar,
    /// The parent of its key: the key without its last part, see [`Key::parent`](super::Key::parent). The version
    /// outlives its worker for as long as somebody publishes the parent, on any node.
    Parent,
}

/// Whether a version may be written to disk while nobody reads it, which gives its memory back to its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Spill {
    /// It stays in memory.
    #[default]
    Never,
    /// It may be written when such versions take too much of their worker's arena.
    Allowed,
    /// It is to be written now, and so is all else that may be, because its worker needs memory.
    Now,
}

/// How long a published version stays: said with each push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Retention {
    /// Until what.
    pub until: Until,
    /// And no longer than this.
    pub life: Life,
    /// Whether it may be written to disk.
    pub spill: Spill,
}

impl Retention {
    /// As numbers: until what, for how long (and four bits higher, whether it may be written to disk), and the count of
    /// fetches.
    #[must_use]
    pub fn to_wire(self) -> (u8, u8, u32) {
        let (until, fetches) = match self.until {
            Until::Replaced => (0, 0),
            Until::Fetched(n) => (1, n.get()),
            Until::Deleted => (2, 0),
        };
        (until, self.life as u8 | (self.spill as u8) << 4, fetches)
    }

    /// Reads [`Retention::to_wire`]. `None` for numbers that it never gives.
    #[must_use]
    pub fn from_wire(until: u8, life: u8, fetches: u32) -> Option<Retention> {
        let until = match (until, NonZeroU32::new(fetches)) {
            (0, None) => Until::Replaced,
            (1, Some(n)) => Until::Fetched(n),
            (2, None) => Until::Deleted,
            _ => return None,
        };
        let (life, spill) = (life & 0xf, life >> 4);
        let life = match life {
            0 => Life::Session,
            1 => Life::Sidecar,
            2 => Life::Parent,
            _ => return None,
        };
        let spill = match spill {
            0 => Spill::Never,
            1 => Spill::Allowed,
            2 => Spill::Now,
            _ => return None,
        };
        Some(Retention { until, life, spill })
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.until {
            Until::Replaced => f.write_str("until replaced")?,
            Until::Fetched(n) => write!(f, "until fetched {n} times")?,
            Until::Deleted => f.write_str("until deleted")?,
        }
        match self.life {
            Life::Session => {}
            Life::Sidecar => f.write_str(", outlives its worker")?,
            Life::Parent => f.write_str(", outlives its worker as long as its parent is published")?,
        }
        match self.spill {
            Spill::Never => Ok(()),
            Spill::Allowed | Spill::Now => f.write_str(", may be written to disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_retention_reads_back_and_nothing_else_is_one() {
        let mut known = 0;
        for until in 0..4 {
            for life in 0..=u8::MAX {
                for fetches in [0, 1, u32::MAX] {
                    if let Some(retention) = Retention::from_wire(until, life, fetches) {
                        assert_eq!(retention.to_wire(), (until, life, fetches));
                        known += 1;
                    }
                }
            }
        }
        assert_eq!(known, 36);
        assert_eq!(Retention::default().to_wire(), (0, 0, 0));
    }
}
