//! A state of equally long tensors, which is fetched into tensors of the reader.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use transfer_client::{BlockingClient, BundleMut, BundleTensor, DType, Error, FetchBundleInto, s};

const STATE: &str = "states/state";

/// A version of the state, of 32-bit floats which are the number of the version.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct State {
    /// The number of tensors.
    pub(crate) count: u64,
    /// The length of each, in elements.
    pub(crate) elements: u64,
    /// The version.
    pub(crate) version: u64,
}

/// A task with the state. Each answers with two moments, and the copied bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum States {
    /// Pushes it: out of the arena, or out of memory beside it.
    Push {
        /// The version.
        of: State,
        /// Whether it lies in the arena.
        in_arena: bool,
    },
    /// Fetches it into parts of one tensor of the arena, as into a flat parameter: in the order of the state they are one run.
    Into {
        /// The version.
        of: State,
    },
}

impl State {
    pub(crate) fn len_bytes(self) -> u64 {
        self.count * self.elements * 4
    }

    fn names(self) -> Vec<String> {
        (0..self.count).map(|n| format!("model.layers.{n}.weight")).collect()
    }

    fn allocate(self, client: &BlockingClient) -> Result<BundleMut, Failed> {
        let tensor = |name| Ok((name, client.allocate(DType::F32, [self.elements])?));
        self.names().into_iter().map(tensor).collect()
    }
}

impl States {
    pub(super) fn perform(self, client: &BlockingClient) -> Result<Answer, Failed> {
        match self {
            States::Push { of, in_arena } => push(client, of, in_arena),
            States::Into { of } => {
                let flat = client.allocate(DType::F32, [of.count, of.elements])?;
                let started = now_ns();
                let fetch = client.fetch_bundle(STATE).exactly(of.version).timeout(CALL_TIMEOUT);
                let fetch = fetch.into([("flat".to_owned(), flat)].into_iter().collect());
                let placed =
                    |fetch: FetchBundleInto<BlockingClient>, (n, name): (u64, String)| fetch.at(&name, "flat", s![n]);
                let fetched = (0..).zip(of.names()).fold(fetch, placed).call().map_err(Error::from)?;
                let ended = now_ns();
                let flat = fetched.tensors().get("flat").ok_or("the tensor is gone")?.as_slice::<f32>()?;
                let (value, len) = (of.version as f32, usize::try_from(of.elements)?);
                if !flat.chunks(len).all(|one| one.first() == Some(&value) && one.last() == Some(&value)) {
                    return Err("the tensors have other elements".into());
                }
                Ok(Answer::Times { ns: vec![started, ended], copied: fetched.report().copied })
            }
        }
    }
}

fn push(client: &BlockingClient, of: State, in_arena: bool) -> Result<Answer, Failed> {
    let value = of.version as f32;
    let (started, pushed) = if in_arena {
        let mut tensors = of.allocate(client)?;
        for (_, tensor) in tensors.iter_mut() {
            tensor.as_mut_slice::<f32>()?.fill(value);
        }
        (now_ns(), client.push_bundle(STATE, tensors).version(of.version).timeout(CALL_TIMEOUT).call())
    } else {
        let all = vec![value; usize::try_from(of.count * of.elements)?];
        let tensors = all.chunks(usize::try_from(of.elements)?);
        let tensors: Result<Vec<_>, Error> = tensors.map(|one| BundleTensor::from_slice([of.elements], one)).collect();
        let named = of.names().into_iter().zip(tensors?);
        (now_ns(), client.push_bundle(STATE, named).version(of.version).timeout(CALL_TIMEOUT).call())
    };
    let copied = pushed.map_err(Error::from)?.report.copied;
    Ok(Answer::Times { ns: vec![started, now_ns()], copied })
}
