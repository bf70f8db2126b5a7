//! From the command line to what is measured.

use super::error::PlanError;
use super::options::Options;
use super::terms::{Kind, MAX_SIZE, Measure, Setup, Verb, WORD};

/// Above this, each message completes: perftest's limit.
const SIGNALED_SIZE: u64 = 8192;
const SIGNAL_EVERY: u32 = 100;
/// The largest of all sizes.
const ALL_MAX: u64 = 8 << 20;

/// What is measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// Sizes with their set-ups.
    pub(super) steps: Vec<(Setup, u64)>,
    /// Messages of each queue pair in each step.
    pub(super) messages: Option<u64>,
    /// Or the seconds of each step.
    pub(super) seconds: Option<u32>,
}

impl Plan {
    /// Makes it, and checks everything that can be checked without a device. With `most`, the longest message that the
    /// path carries, all sizes end there.
    ///
    /// # Errors
    /// [`PlanError`].
    pub(super) fn new(options: &Options, most: Option<u64>) -> Result<Plan, PlanError> {
        let sizes: Vec<u64> = match (options.all, options.setup.verb) {
            (true, Verb::Atomic) => vec![WORD],
            (true, _) => {
                let most = most.unwrap_or(MAX_SIZE).min(ALL_MAX);
                std::iter::successors(Some(2), |size| Some(size * 2)).take_while(|size| *size <= most).collect()
            }
            (false, _) => vec![options.size.unwrap_or(default_size(&options.setup))],
        };
        let largest = sizes.last().copied().unwrap_or_default();
        let steps = sizes.into_iter().map(|size| {
            let mut setup = setup(options, size);
            setup.max_size = largest;
            (setup, size)
        });
        let steps: Vec<_> = steps.collect();
        steps.iter().try_for_each(|(setup, _)| setup.check())?;
        let messages = options.duration.is_none().then(|| options.iters.unwrap_or(default_messages(options)));
        Ok(Plan { steps, messages, seconds: options.duration })
    }
}

/// The set-up for messages of one size.
pub(super) fn setup(options: &Options, size: u64) -> Setup {
    let usual = if size > SIGNALED_SIZE { 1 } else { SIGNAL_EVERY.min(options.setup.depth) };
    Setup { signal_every: options.cq_mod.unwrap_or(usual), max_size: size, ..options.setup.clone() }
}

/// perftest's sizes; a datagram has to fit into a packet.
fn default_size(setup: &Setup) -> u64 {
    match (setup.verb, setup.measure, setup.kind) {
        (Verb::Atomic, ..) => WORD,
        (_, Measure::Lat, _) => 2,
        (_, Measure::Bw, Kind::UD) => 1024,
        (_, Measure::Bw, _) => 65_536,
    }
}

/// perftest's numbers of messages.
pub(super) fn default_messages(options: &Options) -> u64 {
    match (options.setup.verb, options.setup.measure) {
        (Verb::Write, Measure::Bw) => 5000,
        _ => 1000,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    pub(crate) fn options(line: &str) -> Options {
        let words = ["transferctl", "perf"].into_iter().chain(line.split_whitespace());
        match Arguments::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}")).command {
            Command::Perf(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    fn plan(line: &str) -> Plan {
        Plan::new(&options(line), None).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        for (line, size, messages, signal_every) in [
            ("write bw", 65_536, 5000, 1),
            ("write bw -s 8192", 8192, 5000, 100),
            ("write bw -s 64 -t 16", 64, 5000, 16),
            ("read bw", 65_536, 1000, 1),
            ("send lat", 2, 1000, 100),
            ("send bw -c UD", 1024, 1000, 100),
            ("atomic bw", 8, 1000, 100),
            ("atomic lat", 8, 1000, 100),
        ] {
            let plan = plan(line);
            let (setup, of) = &plan.steps[0];
            assert_eq!((*of, plan.messages, setup.signal_every), (size, Some(messages), signal_every), "{line}");
            assert_eq!((setup.max_size, setup.depth, setup.receives), (size, setup.depth, 512), "{line}");
        }
    }

    #[test]
    fn flags_of_perftest_are_understood() {
        let plan = plan(
            "send bw host -s 4KiB -n 7 -t 64 -r 32 -q 3 -l 4 -Q 8 -I 100 -e -c uc --use-srq -m 1024 -F -d rxe0 -x 1 -i 1 -p 99",
        );
        let (setup, size) = &plan.steps[0];
        assert_eq!((*size, plan.messages, plan.seconds), (4096, Some(7), None));
        assert_eq!((setup.depth, setup.receives, setup.queue_pairs, setup.post_list), (64, 32, 3, 4));
        assert_eq!((setup.signal_every, setup.inline_bytes, setup.events, setup.kind), (8, 100, true, Kind::UC));
        assert_eq!((setup.shared_receives, setup.mtu, setup.by_rdma_cm), (true, Some(1024), false));
        let of = options("write bw -D 3 -R --listen 0.0.0.0");
        assert_eq!(
            (of.duration, of.setup.by_rdma_cm, of.listen.map(|ip| ip.to_string())),
            (Some(3), true, Some("0.0.0.0".into()))
        );
        assert_eq!(Plan::new(&of, None).unwrap().messages, None);
    }

    #[test]
    fn all_sizes_are_powers_of_two_up_to_what_the_path_carries() {
        let sizes = |most| -> Vec<u64> {
            Plan::new(&options("write bw -a"), most).unwrap().steps.into_iter().map(|(_, size)| size).collect()
        };
        assert_eq!(sizes(Some(10)), [2, 4, 8]);
        assert_eq!((sizes(None).len(), sizes(None).last()), (23, Some(&ALL_MAX)));
        let plan = Plan::new(&options("write bw -a"), None).unwrap();
        assert!(plan.steps.iter().all(|(setup, _)| setup.max_size == ALL_MAX));
        // Small ones complete together, and large ones one by one.
        assert_eq!((plan.steps[0].0.signal_every, plan.steps[22].0.signal_every), (100, 1));
    }
}
