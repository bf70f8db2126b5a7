//! The token that proves that the control plane has told a peer to connect.

use crate::random;
use std::fmt;
use transfer_core::fabric::FabricError;

/// The length of a token.
pub(crate) const TOKEN_BYTES: usize = 16;

/// A random number that the peer must show when it connects. So only the peer that the control plane has told can
/// connect, and only once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) [u8; TOKEN_BYTES]);

impl Token {
    /// # Errors
    /// If the operating system has no random bytes.
    pub(crate) fn random() -> Result<Token, FabricError> {
        random::bytes().map(Token)
    }

    /// Returns these bytes as a token, or `None` if they are not as many as a token has.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Token> {
        bytes.try_into().ok().map(Token)
    }

    /// Returns the token at the beginning of these bytes.
    pub(crate) fn leading(bytes: &[u8]) -> Option<Token> {
        bytes.first_chunk().copied().map(Token)
    }

    pub(crate) fn bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.0
    }

    /// Compares in constant time, so that the time does not tell how much of a guess was right.
    pub(crate) fn is(&self, other: &Token) -> bool {
        self.0.iter().zip(other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
