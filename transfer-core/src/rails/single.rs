//! The fabric of links with one rail: the inner fabric, with the offers of [`MultiRail`](super::MultiRail).

use super::offer;
use crate::fabric::{
    Atomics, Capabilities, DownReason, Fabric, FabricError, FabricEvent, FabricKind, GrantAccess, LinkId, Offer,
    PostError, Sharing, WorkId,
};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};

/// A fabric whose links are those of its inner fabric. Only the offers differ: they are offers of a link with one rail,
/// so that the peer may be a [`MultiRail`](super::MultiRail).
pub struct SingleRail<F: ?Sized> {
    inner: Box<F>,
}

impl<F: Fabric + ?Sized> SingleRail<F> {
    /// Creates a fabric with one rail over this inner fabric.
    #[must_use]
    pub fn new(inner: Box<F>) -> SingleRail<F> {
        SingleRail { inner }
    }

    /// Wraps an inner offer as the offer of a link with one rail.
    fn wrap(&mut self, link: LinkId, inner: Offer) -> Result<Offer, FabricError> {
        offer::encode(&[inner]).ok_or_else(|| {
            self.inner.disconnect(link, DownReason::Closed("the offer is too long".into()));
            FabricError::Device { what: "offering a rail", why: "the inner offer is too long".into() }
        })
    }
}

impl<F: Fabric + ?Sized> Fabric for SingleRail<F> {
    type Memory = F::Memory;

    fn kind(&self) -> FabricKind {
        self.inner.kind()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, segment: SegmentId, memory: F::Memory) -> Result<(), FabricError> {
        self.inner.register(segment, memory)
    }

    fn deregister(&mut self, segment: SegmentId) -> Result<(), FabricError> {
        self.inner.deregister(segment)
    }

    fn check_slice(&self, slice: &LocalSlice) -> Result<(), PostError> {
        self.inner.check_slice(slice)
    }

    fn offer(&mut self, link: LinkId) -> Result<Offer, FabricError> {
        let inner = self.inner.offer(link)?;
        self.wrap(link, inner)
    }

    /// Accepts the first rail of the offer. The peer drops its other rails.
    fn accept(&mut self, link: LinkId, peer: &Offer) -> Result<Offer, FabricError> {
        let offers = offer::decode(peer).map_err(|why| FabricError::BadOffer { link, why: why.into() })?;
        let inner = self.inner.accept(link, &offers[0])?;
        self.wrap(link, inner)
    }

    fn connect(&mut self, link: LinkId, peer: &Offer) -> Result<(), FabricError> {
        let why = match offer::decode(peer).as_deref() {
            Ok([answer]) => return self.inner.connect(link, answer),
            Ok(_) => "it has more rails than were offered",
            Err(why) => why,
        };
        // The inner fabric checks whether the link can be connected now. It never makes an empty offer itself, so it
        // refuses this one.
        match self.inner.connect(link, &Offer::default()) {
            Err(error @ FabricError::WrongState { .. }) => Err(error),
            _ => Err(FabricError::BadOffer { link, why: why.into() }),
        }
    }

    fn disconnect(&mut self, link: LinkId, reason: DownReason) {
        self.inner.disconnect(link, reason);
    }

    fn grant(&mut self, link: LinkId, range: LocalSlice, access: GrantAccess, tag: u64) -> Result<(), PostError> {
        self.inner.grant(link, range, access, tag)
    }

    fn revoke(&mut self, link: LinkId, key: RemoteKey, tag: u64) -> Result<(), PostError> {
        self.inner.revoke(link, key, tag)
    }

    fn post_write(
        &mut self,
        link: LinkId,
        work: WorkId,
        sgl: &[LocalSlice],
        remote: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), PostError> {
        self.inner.post_write(link, work, sgl, remote, immediate)
    }

    fn post_send(&mut self, link: LinkId, work: WorkId, message: &[u8]) -> Result<(), PostError> {
        self.inner.post_send(link, work, message)
    }

    fn atomics(&mut self) -> Option<&mut dyn Atomics> {
        self.inner.atomics()
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing<Memory = F::Memory>> {
        self.inner.sharing()
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        let mut settings = self.inner.describe();
        settings.push(("rails", "1".to_owned()));
        settings
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }

    fn report(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.inner.report(sink)
    }

    fn poll(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> bool {
        self.inner.poll(sink)
    }

    fn arm(&mut self) {
        self.inner.arm();
    }

    fn woken(&mut self) {
        self.inner.woken();
    }

    fn wait_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.inner.wait_fds()
    }
}
