//! Pushes and fetches of a bundle of many small tensors, in turns with one tensor of as many bytes.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use transfer_client::{BlockingClient, BundleTensor, Error};

const BUNDLE: &str = "bundles/bundle";
const DENSE: &str = "bundles/dense";

/// A task with a version of the bundle and of the tensor, of 32-bit floats.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bundles {
    /// The number of tensors of the bundle.
    pub(crate) count: u64,
    /// The length of each, in elements.
    pub(crate) elements: u64,
    /// The version of both.
    pub(crate) version: u64,
}

impl Bundles {
    /// Pushes both from memory outside of the arena. Answers with a pair of durations.
    pub(super) fn push(self, client: &BlockingClient) -> Result<Answer, Failed> {
        let Bundles { count, elements, version } = self;
        let all = vec![version as f32; usize::try_from(count * elements)?];
        let names: Vec<_> = (0..count).map(|n| format!("model.layers.{n}.weight")).collect();
        let tensors = all.chunks(usize::try_from(elements)?);
        let tensors: Result<Vec<_>, Error> = tensors.map(|one| BundleTensor::from_slice([elements], one)).collect();
        let named = names.iter().zip(tensors?);
        let started = now_ns();
        client.push_bundle(BUNDLE, named).version(version).timeout(CALL_TIMEOUT).call().map_err(Error::from)?;
        let pushed = now_ns();
        let dense = client.push_slice(DENSE, [count * elements], &all).version(version).timeout(CALL_TIMEOUT);
        dense.call().map_err(Error::from)?;
        Ok(Answer::Pairs(vec![(pushed - started, now_ns() - pushed)]))
    }

    /// Fetches both, and looks at an element of each tensor. Answers with a pair of durations.
    pub(super) fn fetch(self, client: &BlockingClient) -> Result<Answer, Failed> {
        let Bundles { count, elements, version } = self;
        let wrong = || Failed::from("the tensors have other elements");
        let expected = version as f32;
        let started = now_ns();
        let bundle = client.fetch_bundle(BUNDLE).exactly(version).timeout(CALL_TIMEOUT).call()?;
        for (_, tensor) in bundle.iter() {
            if tensor.as_slice::<f32>()?.last() != Some(&expected) {
                return Err(wrong());
            }
        }
        let fetched = now_ns();
        let dense = client.fetch(DENSE).exactly(version).timeout(CALL_TIMEOUT).call()?;
        let tensor = dense.as_slice::<f32>()?;
        if !tensor.chunks(usize::try_from(elements)?).all(|one| one.last() == Some(&expected)) {
            return Err(wrong());
        }
        let ended = now_ns();
        match (bundle.len() as u64, tensor.len() as u64) == (count, count * elements) {
            true => Ok(Answer::Pairs(vec![(fetched - started, ended - fetched)])),
            false => Err(wrong()),
        }
    }
}
