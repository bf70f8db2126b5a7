//! Kinds of schedules: which faults they have, and what their workers do.

use crate::protocol::Broken;
use crate::rails;

/// The kind of a schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Play {
    /// A rule of the protocol that is deliberately broken.
    pub(crate) broken: Option<Broken>,
    /// The percentage of late packets.
    pub(crate) late_packets: u32,
    /// All grants into a segment share one key.
    pub(crate) one_key: bool,
    /// No faults, no deaths, enough room and time. Everything must succeed.
    pub(crate) calm: bool,
    /// Links have several rails, which die. With `calm`, at least one rail of each link stays alive.
    pub(crate) rails: bool,
    /// A rule of the rails that is deliberately broken.
    pub(crate) broken_rails: Option<rails::Broken>,
    /// Sidecars and the directory die and come back, nodes continue without the directory, links are made twice, and
    /// clocks jump. Two workers may have the same name. There are no counters.
    pub(crate) restarts: bool,
    /// With `calm`: pools have room for the published versions, the slots of one flow and one fetch, so all workers
    /// have to wait.
    pub(crate) tight: bool,
    /// The percentage of false headers.
    pub(crate) lies: u32,
    /// Nodes write versions to disk. Writes fail now and then, unless it is `calm`.
    pub(crate) spill: bool,
    /// Workers fetch into their own memory, too.
    pub(crate) into: bool,
    /// Workers are ranks of sharded states, and readers of them.
    pub(crate) rosters: bool,
    /// Pushes have deltas.
    pub(crate) deltas: bool,
    /// With `deltas`: workers lend bases, right ones and wrong ones.
    pub(crate) bases: bool,
    /// Many nodes, and versions that spread through their readers.
    pub(crate) spreads: bool,
}

impl Play {
    /// A schedule with faults and without any of the options.
    pub(crate) const USUAL: Play = Play {
        broken: None,
        late_packets: 0,
        one_key: false,
        calm: false,
        rails: false,
        broken_rails: None,
        restarts: false,
        tight: false,
        lies: 0,
        spill: false,
        into: false,
        rosters: false,
        deltas: false,
        bases: false,
        spreads: false,
    };
}
