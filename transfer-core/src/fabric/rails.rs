//! The interface for links with several rails; [`MultiRail`](crate::rails::MultiRail) implements it.

use super::LinkId;

/// The number of rails of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRails {
    /// The number of rails that the link was made with.
    pub all: usize,
    /// The number of rails that still work.
    pub live: usize,
}

impl LinkRails {
    /// The value for a fabric without [`Rails`].
    pub const ONE: LinkRails = LinkRails { all: 1, live: 1 };
}

/// A fabric whose links have rails. [`Fabric::rails`](super::Fabric::rails) returns it.
pub trait Rails {
    /// Returns the rails of a link; zeros for an unknown link.
    fn rails_of(&self, link: LinkId) -> LinkRails;
}
