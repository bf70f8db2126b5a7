//! What proves to a fabric that whoever connects was told to by the control plane.

use crate::random;
use std::fmt;
use transfer_core::fabric::FabricError;

/// The length of a token.
pub(crate) const TOKEN_BYTES: usize = 16;

/// A random number that the peer must show when it connects, so that only whom the control plane told can, and only once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) [u8; TOKEN_BYTES]);

impl Token {
    /// # Errors
    /// Where the operating system has no random bytes.
    pub(crate) fn random() -> Result<Token, FabricError> {
        random::bytes().map(Token)
    }

    /// The token that these bytes are.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Token> {
        bytes.try_into().ok().map(Token)
    }

    /// The token at the beginning of these bytes.
    pub(crate) fn leading(bytes: &[u8]) -> Option<Token> {
        bytes.first_chunk().copied().map(Token)
    }

    pub(crate) fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// Compares in a time that does not tell how much of a guess was right.
    pub(crate) fn is(&self, other: &Token) -> bool {
        self.0.iter().zip(other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
