//! What is measured, as a client says it and a server checks it.

use super::error::PlanError;
use serde::{Deserialize, Serialize};
use std::fmt;
use transfer_terminal::units;

/// The longest message.
pub const MAX_SIZE: u64 = 1 << 30;
/// The most memory that one end registers.
const MAX_MEMORY: u64 = 2 << 30;
/// The most queue pairs, and the deepest queue.
const MAX_QUEUE_PAIRS: u32 = 64;
const MAX_DEPTH: u32 = 8192;
/// What atomic operations work on.
pub const WORD: u64 = 8;

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// RDMA WRITE: into the server's memory
    Write,
    /// RDMA READ: from the server's memory
    Read,
    /// SEND: into the server's receives
    Send,
    /// FETCH_ADD or CMP_AND_SWP on a word of the server's
    Atomic,
}

/// Bandwidth or latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Many messages in flight
    Bw,
    /// One message at a time
    Lat,
}

/// The kind of queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[allow(clippy::upper_case_acronyms)]
pub enum Kind {
    /// Reliable connected
    #[value(name = "RC")]
    RC,
    /// Unreliable connected
    #[value(name = "UC")]
    UC,
    /// Unreliable datagram
    #[value(name = "UD")]
    UD,
}

/// The atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Atomic {
    /// Adds 1
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    /// Replaces a number by the next one
    #[value(name = "CMP_AND_SWAP")]
    CmpAndSwap,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Verb; 4] = [Verb::Write, Verb::Read, Verb::Send, Verb::Atomic];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
            Verb::Atomic => "atomic",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Measure::Bw { "bw" } else { "lat" })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What both ends set up, as the command line says it. It does not change from one size to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The operation
    pub verb: Verb,
    /// Bandwidth or latency
    pub measure: Measure,
    /// The kind of queue pair
    #[arg(short = 'c', long = "connection", value_name = "KIND", default_value = "RC", ignore_case = true)]
    pub kind: Kind,
    /// The operation of `perf atomic`
    #[arg(short = 'A', long = "atomic_type", alias = "atomic-type", value_name = "TYPE")]
    #[arg(default_value = "FETCH_AND_ADD", ignore_case = true)]
    pub atomic: Atomic,
    /// Queue pairs
    #[arg(short, long = "qp", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub queue_pairs: u32,
    /// Work requests in flight, per queue pair
    #[arg(short = 't', long = "tx-depth", value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub depth: u32,
    /// Receives that are kept posted, per queue pair
    #[arg(short, long = "rx-depth", value_name = "N", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub receives: u32,
    /// Work requests that are posted with one call
    #[arg(short = 'l', long = "post_list", alias = "post-list", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub post_list: u32,
    /// One completion for that many messages.
    #[arg(skip)]
    pub signal_every: u32,
    /// Send messages of up to that many bytes inside the work request
    #[arg(short = 'I', long = "inline_size", alias = "inline-size", value_name = "SIZE", default_value_t = 0)]
    pub inline_bytes: u32,
    /// Sleep until a completion comes, instead of polling
    #[arg(short, long)]
    pub events: bool,
    /// Receive from one queue for all queue pairs
    #[arg(long = "use-srq")]
    pub shared_receives: bool,
    /// Connect the queue pairs by librdmacm
    #[arg(short = 'R', long = "rdma_cm", alias = "rdma-cm")]
    pub by_rdma_cm: bool,
    /// The largest packet: 256, 512, 1024, 2048 or 4096. Default: what both ports have
    #[arg(short, long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// The longest message.
    #[arg(skip)]
    pub max_size: u64,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of each queue pair; none if it lasts for a time.
    pub messages: Option<u64>,
    /// How long it lasts, in seconds, if it has no number of messages.
    pub seconds: Option<u32>,
    /// Tells this run's bytes from those of another one.
    pub seed: u8,
}

impl Setup {
    /// Whether the peer answers each message with one.
    #[must_use]
    pub fn is_ping_pong(&self) -> bool {
        self.measure == Measure::Lat && matches!(self.verb, Verb::Write | Verb::Send)
    }

    /// Whether the device repeats what is lost.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        self.kind == Kind::RC
    }

    /// The name of the measurement, as on the command line.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} {} -c {}", self.verb.name(), self.measure, self.kind)
    }

    /// Checks the combination. Both ends do.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        self.check_kind()?;
        for (flag, value, most) in [
            ("--qp", self.queue_pairs, MAX_QUEUE_PAIRS),
            ("--tx-depth", self.depth, MAX_DEPTH),
            ("--rx-depth", self.receives, MAX_DEPTH),
            ("--post_list", self.post_list, self.depth),
            ("--cq-mod", self.signal_every, self.depth),
        ] {
            if value == 0 || value > most {
                let why = if flag == "--post_list" || flag == "--cq-mod" { "; the most is --tx-depth" } else { "" };
                return Err(PlanError::Range { flag, value: value.into(), least: 1, most: most.into(), why });
            }
        }
        if self.max_size == 0 || self.max_size > MAX_SIZE {
            let (value, most) = (self.max_size, MAX_SIZE);
            return Err(PlanError::Range { flag: "--size", value, least: 1, most, why: "" });
        }
        if self.verb == Verb::Atomic && self.max_size != WORD {
            return Err(PlanError::Range {
                flag: "--size",
                value: self.max_size,
                least: WORD,
                most: WORD,
                why: ": an atomic operation works on one word",
            });
        }
        let memory = self.memory();
        if memory > MAX_MEMORY {
            return Err(PlanError::Memory {
                queue_pairs: self.queue_pairs,
                size: self.max_size,
                memory,
                most: MAX_MEMORY,
            });
        }
        if self.inline_bytes > 0 && matches!(self.verb, Verb::Read | Verb::Atomic) {
            return Err(self.unfit("--inline_size", "no bytes of its own leave with it; 0 is right"));
        }
        if self.measure == Measure::Lat {
            let one = "one message is under way at a time; bw has several";
            if self.queue_pairs > 1 {
                return Err(self.unfit("--qp", one));
            }
            if self.post_list > 1 {
                return Err(self.unfit("--post_list", one));
            }
            if self.verb == Verb::Write && self.events {
                return Err(self.unfit(
                    "--events",
                    "a WRITE without immediate causes no event where it arrives; send lat -e does",
                ));
            }
        }
        if self.shared_receives && self.verb != Verb::Send {
            return Err(self.unfit("--use-srq", "only SEND uses receives"));
        }
        if let Some(mtu) = self.mtu
            && transfer_verbs::Mtu::from_len_bytes(mtu).is_none()
        {
            return Err(PlanError::Mtu { value: mtu });
        }
        Ok(())
    }

    fn check_kind(&self) -> Result<(), PlanError> {
        let unfit = |why| Err(self.unfit("--connection", why));
        match (self.kind, self.verb) {
            (Kind::UC, Verb::Read) => unfit("unreliable queue pairs have no READ; RC is right"),
            (Kind::UC, Verb::Atomic) => unfit("unreliable queue pairs have no atomic operations; RC is right"),
            (Kind::UD, Verb::Write | Verb::Read | Verb::Atomic) => {
                unfit("a datagram queue pair has SEND only; `perf send` is right, or RC")
            }
            (Kind::UC | Kind::UD, _) if self.by_rdma_cm => Err(self
                .unfit("--rdma_cm", "it connects RC queue pairs only; without it the ends exchange their addresses")),
            _ => Ok(()),
        }
    }

    fn unfit(&self, flag: &'static str, why: &'static str) -> PlanError {
        PlanError::Unfit { flag, test: self.name(), why }
    }

    /// Checks the size against what the path carries: the device's longest message, or one packet.
    ///
    /// # Errors
    /// [`PlanError::TooLong`].
    pub fn check_path(&self, max_message: u64, mtu: u32) -> Result<(), PlanError> {
        let (most, what) = match self.kind {
            Kind::UD => (u64::from(mtu), "one packet, which is all of a datagram"),
            _ => (max_message, "the port's longest message"),
        };
        if self.max_size > most {
            return Err(PlanError::TooLong { size: self.max_size, most, what });
        }
        Ok(())
    }

    /// The bytes that one end registers.
    #[must_use]
    pub fn memory(&self) -> u64 {
        super::memory::stride(self.max_size).saturating_mul(self.queue_pairs.into())
    }
}

impl Run {
    /// Checks it against the set-up that it is for.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self, setup: &Setup) -> Result<(), PlanError> {
        if self.size == 0 || self.size > setup.max_size {
            let (value, most) = (self.size, setup.max_size);
            return Err(PlanError::Range {
                flag: "--size",
                value,
                least: 1,
                most,
                why: "; the most is what was set up",
            });
        }
        match (self.messages, self.seconds) {
            (Some(1..), None) | (None, Some(1..=86_400)) => Ok(()),
            _ => Err(PlanError::Length { messages: self.messages, seconds: self.seconds }),
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.name(), units::counted(self.queue_pairs.into(), "queue pair", "queue pairs"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn setup(verb: Verb, measure: Measure, kind: Kind) -> Setup {
        Setup {
            verb,
            measure,
            kind,
            atomic: Atomic::FetchAndAdd,
            queue_pairs: 1,
            depth: 128,
            receives: 512,
            post_list: 1,
            signal_every: 1,
            inline_bytes: 0,
            events: false,
            shared_receives: false,
            by_rdma_cm: false,
            mtu: None,
            max_size: if verb == Verb::Atomic { WORD } else { 64 },
        }
    }

    // Promise: perf-figures, seen to fail
    #[test]
    fn each_kind_has_its_verbs() {
        use Kind::{RC, UC, UD};
        use Verb::{Atomic, Read, Send, Write};
        for measure in [Measure::Bw, Measure::Lat] {
            for (kind, verbs) in [(RC, &[Write, Read, Send, Atomic][..]), (UC, &[Write, Send]), (UD, &[Send])] {
                for verb in Verb::ALL {
                    let checked = setup(verb, measure, kind).check();
                    assert_eq!(checked.is_ok(), verbs.contains(&verb), "{verb:?} {measure} {kind}: {checked:?}");
                    if let Err(error) = checked {
                        let text = error.to_string();
                        assert!(text.contains(&format!("{} {measure} -c {kind}", verb.name())), "{text}");
                        assert!(text.contains("--connection") && text.contains("RC"), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_flag_and_what_would_be_right() {
        let of = |change: &dyn Fn(&mut Setup), verb, measure| {
            let mut wanted = setup(verb, measure, Kind::RC);
            change(&mut wanted);
            wanted.check().expect_err("refused").to_string()
        };
        use Measure::{Bw, Lat};
        for (text, part) in [
            (of(&|s| s.queue_pairs = 65, Verb::Write, Bw), "--qp 65: 1 to 64 would be right"),
            (of(&|s| s.queue_pairs = 0, Verb::Write, Bw), "--qp 0: 1 to 64 would be right"),
            (
                of(&|s| s.post_list = 129, Verb::Write, Bw),
                "--post_list 129: 1 to 128 would be right; the most is --tx-depth",
            ),
            (of(&|s| s.signal_every = 0, Verb::Write, Bw), "--cq-mod 0: 1 to 128 would be right"),
            (of(&|s| s.depth = 9000, Verb::Write, Bw), "--tx-depth 9000: 1 to 8192"),
            (of(&|s| s.max_size = 0, Verb::Send, Bw), "--size 0: 1 to"),
            (of(&|s| s.max_size = 16, Verb::Atomic, Bw), "--size 16: 8 would be right"),
            (of(&|s| (s.max_size, s.queue_pairs) = (1 << 28, 64), Verb::Write, Bw), "--qp 64 with messages of 256 MiB"),
            (of(&|s| s.inline_bytes = 8, Verb::Read, Bw), "--inline_size does not go with read bw -c RC"),
            (of(&|s| s.queue_pairs = 2, Verb::Send, Lat), "--qp does not go with send lat"),
            (of(&|s| s.post_list = 2, Verb::Send, Lat), "--post_list does not go with send lat"),
            (of(&|s| s.events = true, Verb::Write, Lat), "--events does not go with write lat"),
            (of(&|s| s.shared_receives = true, Verb::Write, Bw), "--use-srq does not go with write bw"),
            (of(&|s| s.mtu = Some(1500), Verb::Write, Bw), "--mtu 1500: 256, 512, 1024, 2048 or 4096"),
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut by_cm = setup(Verb::Send, Bw, Kind::UD);
        by_cm.by_rdma_cm = true;
        assert!(by_cm.check().expect_err("refused").to_string().contains("--rdma_cm does not go with send bw -c UD"));
    }

    #[test]
    fn a_datagram_is_one_packet_and_another_message_what_the_port_carries() {
        let mut datagram = setup(Verb::Send, Measure::Bw, Kind::UD);
        datagram.max_size = 1024;
        assert_eq!(datagram.check_path(1 << 23, 1024), Ok(()));
        datagram.max_size = 1025;
        let error = datagram.check_path(1 << 23, 1024).expect_err("too long").to_string();
        assert!(error.contains("1025") && error.contains("1024") && error.contains("one packet"), "{error}");
        let mut write = setup(Verb::Write, Measure::Bw, Kind::RC);
        write.max_size = 1 << 23;
        assert_eq!(write.check_path(1 << 23, 1024), Ok(()));
        assert!(write.check_path((1 << 23) - 1, 1024).is_err());
    }

    #[test]
    fn a_run_has_a_length_and_fits_its_setup() {
        let setup = setup(Verb::Write, Measure::Bw, Kind::RC);
        let run = Run { size: 64, messages: Some(1), seconds: None, seed: 0 };
        assert_eq!(run.check(&setup), Ok(()));
        for wrong in [
            Run { size: 65, ..run },
            Run { size: 0, ..run },
            Run { messages: None, ..run },
            Run { messages: Some(0), ..run },
            Run { seconds: Some(1), ..run },
            Run { messages: None, seconds: Some(100_000), ..run },
        ] {
            assert!(wrong.check(&setup).is_err(), "{wrong:?}");
        }
    }
}
