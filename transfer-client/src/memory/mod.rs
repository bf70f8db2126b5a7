//! The worker's memory: writable tensors of the arena, and immutable ones.

mod frozen;
mod tensor_mut;

pub use frozen::Frozen;
pub use tensor_mut::TensorMut;
pub(crate) use tensor_mut::check;
