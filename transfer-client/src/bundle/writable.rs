//! Bundles whose tensors are writable.

use crate::memory::TensorMut;

/// The tensors of a bundle that was taken back, each writable by its one owner. See
/// [`Client::take_back_bundle`](crate::Client::take_back_bundle).
///
/// [`push_bundle`](crate::Client::push_bundle) takes it to publish the next version. A push that fails frees the memory
/// of its tensors, as with any bundle; push [`Frozen`](crate::Frozen) tensors to keep them.
#[derive(Debug, Default)]
pub struct BundleMut {
    tensors: Vec<(String, TensorMut)>,
}

impl BundleMut {
    pub(crate) fn new(tensors: Vec<(String, TensorMut)>) -> BundleMut {
        BundleMut { tensors }
    }

    /// The tensor of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorMut> {
        self.tensors.iter().find(|(found, _)| found == name).map(|(_, tensor)| tensor)
    }

    /// The tensor of this name, writable.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut TensorMut> {
        self.tensors.iter_mut().find(|(found, _)| found == name).map(|(_, tensor)| tensor)
    }

    /// All names and tensors, in the order in which they were pushed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &TensorMut)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// All names and tensors, writable, in the order in which they were pushed.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&str, &mut TensorMut)> {
        self.tensors.iter_mut().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

impl FromIterator<(String, TensorMut)> for BundleMut {
    fn from_iter<I: IntoIterator<Item = (String, TensorMut)>>(tensors: I) -> BundleMut {
        BundleMut::new(tensors.into_iter().collect())
    }
}

impl IntoIterator for BundleMut {
    type Item = (String, TensorMut);
    type IntoIter = std::vec::IntoIter<(String, TensorMut)>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}
