//! Types that can name a tensor.

use crate::error::Error;
use transfer_core::tensor::{InvalidName, Key};

/// A type that can name a tensor: a text, which is checked and copied, or a [`Key`], which is cheap. A loop over the
/// same tensors should keep its keys.
pub trait ToKey {
    /// The key.
    ///
    /// # Errors
    /// [`InvalidName`] for an empty text, and for one of more than 512 bytes.
    fn to_key(&self) -> Result<Key, InvalidName>;
}

impl ToKey for str {
    fn to_key(&self) -> Result<Key, InvalidName> {
        Key::new(self)
    }
}

impl ToKey for String {
    fn to_key(&self) -> Result<Key, InvalidName> {
        Key::new(self)
    }
}

impl ToKey for Key {
    fn to_key(&self) -> Result<Key, InvalidName> {
        Ok(self.clone())
    }
}

impl<T: ToKey + ?Sized> ToKey for &T {
    fn to_key(&self) -> Result<Key, InvalidName> {
        T::to_key(self)
    }
}

pub(crate) fn to_key(key: &impl ToKey) -> Result<Key, Error> {
    Ok(key.to_key()?)
}
