//! Links of several queue pairs: on one device, and on two devices, one of which loses its network in the middle.

use super::*;
use crate::conformance::pair::{Link, pattern};
use crate::conformance::rails::Railed;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};
use transfer_core::fabric::LinkRails;
use transfer_core::rails::inner_slots;

/// A rig that makes fabrics of these devices in turns.
struct OfDevices {
    rigs: Vec<VerbsRig>,
    next: usize,
}

impl SegmentRig for OfDevices {
    type Fabric = VerbsFabric;

    fn make(&mut self) -> VerbsFabric {
        let place = self.next % self.rigs.len();
        self.next += 1;
        self.rigs[place].make()
    }

    fn read_only(&mut self, len: u64) -> Option<Arc<Segment>> {
        self.rigs[0].read_only(len)
    }
}

/// Returns a rig over these rails of these devices, with `slots` receive slots for a link.
fn over(devices: usize, rails: &[usize], slots: u32, config: &VerbsConfig) -> Railed<OfDevices> {
    let of = |device: usize| {
        VerbsRig(VerbsConfig {
            device: Some(format!("rxe{device}")),
            grants: GrantReport::Completed,
            receive_slots: inner_slots(slots, rails.len()),
            ..config.clone()
        })
    };
    Railed::new(OfDevices { rigs: (0..devices).map(of).collect(), next: 0 }, rails)
}

mod two_queue_pairs {
    crate::conformance_tests!(
        [#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]]
        super::over(1, &[0, 0], 256, &super::config())
    );
}

mod two_devices {
    crate::conformance_tests!(
        [#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]]
        super::over(2, &[0, 1], 256, &super::config())
    );
}

/// The network below a device. It is up again at the end of the test.
struct Network(usize);

impl Network {
    fn set(&self, up: bool) {
        // IFF_BROADCAST | IFF_NOARP, and IFF_UP. This is far quicker than running a program, so that it can hit any
        // moment.
        let flags = if up { "0x83" } else { "0x82" };
        std::fs::write(format!("/sys/class/net/dummy{}/flags", self.0), flags).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.set(true);
    }
}

const SLOTS: u64 = 6;
const SLOT_BYTES: u64 = 32 << 10;

/// A part of side 1's memory, and its source of the same size on side 0.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    /// No write may come here until that step.
    Closed {
        until: u64,
    },
    Opening,
    Open(RemoteSlice),
    /// A pattern of this length and seed is on its way.
    Written {
        len: u64,
        seed: u64,
        key: RemoteKey,
    },
    Closing(RemoteKey),
}

type OverRails = Pair<Railed<OfDevices>>;

/// Side 0 writes into slots of side 1. Side 1 compares arrived bytes with what was written, and closed slots with what
/// they held.
struct Stream {
    rng: StdRng,
    slots: Vec<Slot>,
    /// The content of each closed slot.
    lies: Vec<Vec<u8>>,
    steps: u64,
    posted: u64,
    arrived: u64,
}

impl Stream {
    fn new(seed: u64) -> Stream {
        let (slots, lies) = (SLOTS as usize, vec![0; SLOT_BYTES as usize]);
        Stream {
            rng: StdRng::seed_from_u64(seed),
            slots: vec![Slot::Closed { until: 0 }; slots],
            lies: vec![lies; slots],
            steps: 0,
            posted: 0,
            arrived: 0,
        }
    }

    /// Does one step: side 0 writes into open slots, both sides work, and side 1 checks what has come.
    fn step(&mut self, pair: &mut OverRails, link: Link, writing: bool) {
        self.steps += 1;
        for slot in 0..SLOTS {
            match self.slots[slot as usize] {
                Slot::Closed { until } if until <= self.steps => self.open(pair, link, slot),
                Slot::Open(remote) if writing => self.write(pair, link, slot, remote),
                _ => {}
            }
        }
        pair.round();
        for event in std::mem::take(&mut pair.sides[1].heard) {
            self.hear(pair, link, event);
        }
    }

    fn open(&mut self, pair: &mut OverRails, link: Link, slot: u64) {
        let lies = pair.read(1, slot * SLOT_BYTES, SLOT_BYTES);
        assert!(lies == self.lies[slot as usize], "slot {slot} was written while it was closed");
        let range = OverRails::slice(slot * SLOT_BYTES, SLOT_BYTES);
        match pair.fabric(1).grant(link.0[1], range, GrantAccess::Write, slot) {
            Ok(()) => self.slots[slot as usize] = Slot::Opening,
            Err(PostError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, pair: &mut OverRails, link: Link, slot: u64, remote: RemoteSlice) {
        let len = if self.rng.random_bool(0.8) { SLOT_BYTES } else { self.rng.random_range(1..SLOT_BYTES) };
        let (seed, cut) = (self.rng.random_range(1..1 << 20), self.rng.random_range(0..=len));
        let from = slot * SLOT_BYTES;
        pair.fill(0, from, len, seed);
        let sgl = [OverRails::slice(from, cut), OverRails::slice(from + cut, len - cut)];
        match pair.post_write(0, link, &sgl, remote.sub(0, len).unwrap(), Some(slot as u32)) {
            Ok(_) => {
                self.slots[slot as usize] = Slot::Written { len, seed, key: remote.key() };
                self.posted += 1;
            }
            Err(PostError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn hear(&mut self, pair: &mut OverRails, link: Link, event: Heard) {
        match event {
            Heard::Granted(_, slot, remote) => self.slots[slot as usize] = Slot::Open(remote),
            Heard::Immediate(_, slot) => {
                let Slot::Written { len, seed, key } = self.slots[slot as usize] else { panic!("slot {slot} again") };
                let came = pair.read(1, u64::from(slot) * SLOT_BYTES, len);
                assert!(came == pattern(len, seed), "slot {slot}, {len} bytes of seed {seed}");
                self.arrived += 1;
                self.slots[slot as usize] = Slot::Closing(key);
                pair.fabric(1).revoke(link.0[1], key, slot.into()).unwrap();
            }
            Heard::Revoked(_, key, slot) => {
                let slot = slot as usize;
                assert_eq!(self.slots[slot], Slot::Closing(key));
                self.lies[slot] = pair.fill(1, slot as u64 * SLOT_BYTES, SLOT_BYTES, 1 << 21 | self.arrived);
                self.slots[slot] = Slot::Closed { until: self.steps + self.rng.random_range(0..20) };
            }
            other => pair.sides[1].heard.push(other),
        }
    }

    /// Records that the link is down on both sides, so that nothing comes any longer.
    fn ended(&mut self, pair: &mut OverRails) {
        for slot in 0..SLOTS {
            self.slots[slot as usize] = Slot::Closed { until: self.steps };
            self.lies[slot as usize] = pair.read(1, slot * SLOT_BYTES, SLOT_BYTES);
        }
    }

    fn is_idle(&self) -> bool {
        !self.slots.iter().any(|slot| matches!(slot, Slot::Written { .. }))
    }
}

/// Makes a link with all of its rails. A port is up a little later than its network device, and until then a link
/// begins without it.
fn with_all_rails(pair: &mut OverRails, initiator: usize) -> Link {
    let start = Instant::now();
    loop {
        let link = pair.connect(initiator);
        if [0, 1].iter().all(|side| pair.rails(*side, link.0[*side]) == LinkRails { all: 2, live: 2 }) {
            return link;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the port does not come back");
        end(pair, link);
    }
}

fn end(pair: &mut OverRails, link: Link) {
    pair.fabric(0).disconnect(link.0[0], DownReason::Closed("another link".into()));
    pair.dead(link);
    for side in &mut pair.sides {
        side.heard.clear();
    }
}

/// One of two devices repeatedly loses its network during transfers. The link lives on with the other device, all
/// writes arrive, no byte is wrong, and no byte arrives where nothing is open. A new link has both devices.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn link_survives_the_loss_of_one_of_two_devices() {
    let deaths = std::env::var("RDMA_RAIL_DEATHS").map_or(150, |count| count.parse::<u64>().unwrap());
    let impatient = VerbsConfig { timeout: 10, retry_count: 3, send_queue: 64, ..config() };
    let rig = over(2, &[0, 1], 16, &impatient).with_stripes_of(8 << 10);
    let mut pair = Pair::new(rig, SLOTS * SLOT_BYTES);
    let networks = [Network(0), Network(1)];
    let mut stream = Stream::new(7);
    let start = Instant::now();
    for death in 0..deaths {
        let link = with_all_rails(&mut pair, (death % 2) as usize);
        for _ in 0..stream.rng.random_range(3..40) {
            stream.step(&mut pair, link, true);
        }
        let victim = stream.rng.random_range(0..2);
        networks[victim].set(false);
        let (posted, began) = (stream.posted, Instant::now());
        let down = |pair: &OverRails, side: usize| {
            let is = Heard::RailDown(link.0[side], victim);
            pair.sides[side].heard.contains(&is)
        };
        while !(down(&pair, 0) && down(&pair, 1) && stream.posted >= posted + SLOTS && stream.is_idle()) {
            let writing = !(down(&pair, 0) && down(&pair, 1)) || stream.posted < posted + SLOTS;
            stream.step(&mut pair, link, writing);
            let heard = [&pair.sides[0].heard, &pair.sides[1].heard];
            assert!(!heard.iter().any(|h| h.iter().any(|h| matches!(h, Heard::Down(..)))), "{death}: {heard:?}");
            assert!(began.elapsed() < Duration::from_secs(60), "{death}: {heard:?}, {:?}", stream.slots);
        }
        for side in 0..2 {
            assert_eq!(pair.rails(side, link.0[side]), LinkRails { all: 2, live: 1 });
        }
        assert_eq!(stream.arrived, stream.posted);
        networks[victim].set(true);
        end(&mut pair, link);
        stream.ended(&mut pair);
    }
    println!("{deaths} rails died under {} writes in {:?}", stream.posted, start.elapsed());
}

/// A link begins with the rails that are up.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn link_begins_with_the_rails_that_are_up_of_two_devices() {
    let mut pair = Pair::new(over(2, &[0, 1], 16, &config()), SLOTS * SLOT_BYTES);
    for victim in 0..2 {
        let network = Network(victim);
        network.set(false);
        let begun = Instant::now();
        let link = loop {
            let link = pair.connect(victim);
            if [0, 1].iter().all(|side| pair.rails(*side, link.0[*side]).live == 1) {
                break link;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "the port does not go down");
            end(&mut pair, link);
        };
        let reports = pair.sides.iter().flat_map(|side| &side.heard);
        assert_eq!(reports.filter(|h| matches!(h, Heard::RailDown(_, rail) if *rail == victim)).count(), 2);
        pair.works(link);
        network.set(true);
        end(&mut pair, link);
    }
    let link = with_all_rails(&mut pair, 0);
    pair.works(link);
}
