//! Adapters that run any rig's fabric over one rail or over several.

use super::{Memory, Rig};
use transfer_core::fabric::Fabric;
use transfer_core::rails::{MultiRail, RailsConfig, SingleRail};

/// A rig whose fabrics combine several fabrics of another rig.
pub struct Railed<R> {
    rig: R,
    config: RailsConfig,
}

impl<R> Railed<R> {
    /// Uses these rails, with stripes so short that the suite's longer writes are striped.
    pub fn new(rig: R, rails: &[usize]) -> Railed<R> {
        Railed { rig, config: RailsConfig { stripe_bytes: 32 << 10, ..RailsConfig::new(rails) } }
    }

    /// Sets the length of a stripe. Writes of at least two stripes are striped.
    #[must_use]
    pub fn with_stripes_of(mut self, bytes: u64) -> Railed<R> {
        self.config.stripe_bytes = bytes;
        self
    }
}

impl<R: Rig<Fabric: 'static>> Rig for Railed<R> {
    type Fabric = MultiRail<Memory<R>>;

    fn fabric(&mut self) -> Self::Fabric {
        let count = self.config.rails.iter().max().map_or(0, |last| last + 1);
        let inner = (0..count).map(|_| Box::new(self.rig.fabric()) as Box<dyn Fabric<Memory = Memory<R>>>);
        MultiRail::new(inner.collect(), self.config.clone()).unwrap()
    }

    fn memory(&mut self, len: u64) -> Memory<R> {
        self.rig.memory(len)
    }

    fn read_only_memory(&mut self, len: u64) -> Option<Memory<R>> {
        self.rig.read_only_memory(len)
    }

    fn read(&mut self, memory: &Memory<R>, offset: u64, to: &mut [u8]) {
        self.rig.read(memory, offset, to);
    }

    fn write(&mut self, memory: &Memory<R>, offset: u64, bytes: &[u8]) {
        self.rig.write(memory, offset, bytes);
    }

    fn idle(&mut self) {
        self.rig.idle();
    }

    fn killed(&mut self) {
        self.rig.killed();
    }
}

/// A rig whose fabrics each have one rail, which is a fabric of another rig.
pub struct OneRail<R>(pub R);

impl<R: Rig> Rig for OneRail<R> {
    type Fabric = SingleRail<R::Fabric>;

    fn fabric(&mut self) -> Self::Fabric {
        SingleRail::new(Box::new(self.0.fabric()))
    }

    fn memory(&mut self, len: u64) -> Memory<R> {
        self.0.memory(len)
    }

    fn read_only_memory(&mut self, len: u64) -> Option<Memory<R>> {
        self.0.read_only_memory(len)
    }

    fn read(&mut self, memory: &Memory<R>, offset: u64, to: &mut [u8]) {
        self.0.read(memory, offset, to);
    }

    fn write(&mut self, memory: &Memory<R>, offset: u64, bytes: &[u8]) {
        self.0.write(memory, offset, bytes);
    }

    fn idle(&mut self) {
        self.0.idle();
    }

    fn killed(&mut self) {
        self.0.killed();
    }
}
