//! Links that have several rails, for the fabric that makes them: [`MultiRail`](crate::rails::MultiRail).

use super::LinkId;

/// How many rails a link has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRails {
    /// The number that it was made with.
    pub all: usize,
    /// The number that still carry something.
    pub live: usize,
}

impl LinkRails {
    /// Those of a fabric without [`Rails`].
    pub const ONE: LinkRails = LinkRails { all: 1, live: 1 };
}

/// A fabric whose links have rails: [`Fabric::rails`](super::Fabric::rails).
pub trait Rails {
    /// The rails of a link. None of a link that is unknown.
    fn rails_of(&self, link: LinkId) -> LinkRails;
}
