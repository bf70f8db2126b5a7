//! Runs the suite on the simulated fabric, with immediate grants and with delayed grants.

use super::Rig;
use super::rails::Railed;
use transfer_core::fabric::Isolation;
use transfer_core::rails::inner_slots;
use transfer_core::sim::{Conditions, Grants, MemoryId, SimFabric, World};

struct SimRig(World);

impl SimRig {
    fn new(grants: Grants) -> SimRig {
        let mut conditions = Conditions { grants, ..Conditions::calm() };
        conditions.capabilities.atomics = true;
        SimRig(World::new(7, conditions))
    }
}

impl Rig for SimRig {
    type Fabric = SimFabric;

    fn fabric(&mut self) -> SimFabric {
        SimFabric::new(&self.0, self.0.endpoint())
    }

    fn memory(&mut self, len: u64) -> MemoryId {
        self.0.memory(len as usize)
    }

    fn read_only_memory(&mut self, _len: u64) -> Option<MemoryId> {
        None
    }

    fn read(&mut self, memory: &MemoryId, offset: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.0.read(*memory, offset, to.len() as u64));
    }

    fn write(&mut self, memory: &MemoryId, offset: u64, bytes: &[u8]) {
        assert!(self.0.write(*memory, offset, bytes));
    }

    fn idle(&mut self) {
        self.0.step();
    }

    fn killed(&mut self) {
        for connection in 0..self.0.connections() {
            self.0.break_connection(connection, "the process died");
        }
    }
}

/// Sets the isolation. With `Isolation::Segment`, all grants into a segment share one key, which opens all of it.
fn isolate(conditions: &mut Conditions, isolation: Isolation) {
    conditions.capabilities.isolation = isolation;
    conditions.capabilities.checks_bounds = isolation == Isolation::Grant;
}

/// Returns a rig in which all grants into a segment share one key.
fn one_key(grants: Grants) -> SimRig {
    let mut conditions = Conditions { grants, ..Conditions::calm() };
    conditions.capabilities.atomics = true;
    isolate(&mut conditions, Isolation::Segment);
    SimRig(World::new(7, conditions))
}

mod one_key_for_all {
    crate::conformance_tests!(super::one_key(super::Grants::Delayed));
}

mod immediate {
    crate::conformance_tests!(super::SimRig::new(super::Grants::Immediate));
}

mod delayed {
    crate::conformance_tests!(super::SimRig::new(super::Grants::Delayed));
}

/// Returns a rig over these rails, each given by the number of its fabric.
fn railed(grants: Grants, rails: &[usize], isolation: Isolation) -> Railed<SimRig> {
    let mut conditions = Conditions { grants, ..Conditions::calm() };
    isolate(&mut conditions, isolation);
    let capabilities = &mut conditions.capabilities;
    capabilities.receive_slots = inner_slots(capabilities.receive_slots, rails.len());
    capabilities.max_message_bytes += 1;
    Railed::new(SimRig(World::new(7, conditions)), rails)
}

mod one_rail {
    crate::conformance_tests!(super::railed(super::Grants::Delayed, &[0], super::Isolation::Grant));
}

mod two_rails {
    crate::conformance_tests!(super::railed(super::Grants::Immediate, &[0, 0], super::Isolation::Grant));
}

mod three_rails_of_two_devices {
    crate::conformance_tests!(super::railed(super::Grants::Delayed, &[0, 1, 0], super::Isolation::Grant));
}

mod two_rails_with_one_key_each {
    crate::conformance_tests!(super::railed(super::Grants::Delayed, &[0, 1], super::Isolation::Segment));
}

/// An owner that has its memory back before it is closed (`ReturnsBeforeClosed` of the protocol) finds a peer's bytes in it.
#[test]
#[should_panic(expected = "was written by a peer")]
fn memory_that_is_returned_before_it_is_closed_is_written() {
    super::memory::memory_is_returned_before_it_is_closed(SimRig::new(Grants::Delayed));
}
