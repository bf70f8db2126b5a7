//! Weights that are updated in place, and readers that look for a torn version.

use super::Agent;
use crate::order::{InPlace, UpdateOrder};
use std::time::Duration;
use transfer_client::{DType, Error, TensorMut};

/// The timeout of each call, which is long enough for any reader of a test.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

fn write(tensor: &mut TensorMut, version: u64) -> Result<(), Error> {
    // Writes one element after the other, so that a reader that is let in too early sees both versions.
    for element in tensor.as_mut_slice::<u64>()? {
        *element = version;
    }
    Ok(())
}

impl Agent {
    pub(super) fn update(&self, order: &UpdateOrder) -> Result<(), Error> {
        let UpdateOrder { key, way, len, last } = order;
        let client = &self.client;
        match way {
            InPlace::Snapshot => {
                let mut live = client.allocate(DType::U64, [*len])?;
                for version in 1..=*last {
                    write(&mut live, version)?;
                    let pushed = client.push_snapshot(key, &live).version(version).timeout(CALL_TIMEOUT).call()?;
                    assert_eq!(pushed.report.copied, len * 8, "the copy is counted");
                }
            }
            InPlace::TakeBack => {
                let mut weights = client.allocate(DType::U64, [*len])?;
                for version in 1..=*last {
                    write(&mut weights, version)?;
                    client.push_tensor(key, weights).version(version).call()?;
                    if version == *last {
                        break;
                    }
                    weights = client.take_back(key).timeout(CALL_TIMEOUT).call()?;
                }
            }
            InPlace::TwoBuffers => {
                let mut weights = client.two_buffers(key, DType::U64, [*len])?;
                for version in 1..=*last {
                    let mut next = weights.turn().timeout(CALL_TIMEOUT).call()?;
                    write(&mut next, version)?;
                    weights.push(next, version).call()?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn watch(&self, order: &UpdateOrder) -> Result<u64, Error> {
        let UpdateOrder { key, last, .. } = order;
        let (mut seen, mut version) = (0, 0);
        while version < *last {
            let tensor = self.client.fetch(key).at_least(version + 1).timeout(CALL_TIMEOUT).call()?;
            version = tensor.version();
            for look in ["at once", "again"] {
                let torn = tensor.as_slice::<u64>()?.iter().position(|element| *element != version);
                assert_eq!(torn, None, "version {version} is torn, seen {look}");
            }
            seen += 1;
        }
        Ok(seen)
    }
}
