//! The place of a version among the deltas of its key, in the record of its push.

use super::{Reader, WireError, Writer};
use crate::delta::MAX_CHAIN;
use crate::op::{DeltaOf, Deltas};
use crate::tensor::Version;

pub(super) fn write(w: &mut Writer, deltas: &Deltas) {
    match deltas {
        Deltas::None => w.u8(0),
        Deltas::Follow => w.u8(1),
        Deltas::Of(DeltaOf { base, base_offset, offset, len, earlier }) => {
            w.u8(2).u64(base.0).u64(*base_offset).u64(*offset).u64(*len);
            w.u8(u8::try_from(earlier.len()).unwrap_or(u8::MAX));
            earlier.iter().fold(w, |w, (offset, len)| w.u64(*offset).u64(*len))
        }
    };
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<Deltas, WireError> {
    Ok(match r.u8()? {
        0 => Deltas::None,
        1 => Deltas::Follow,
        2 => {
            let (base, base_offset, offset, len) = (Version(r.u64()?), r.u64()?, r.u64()?, r.u64()?);
            let count = usize::from(r.u8()?);
            if count > MAX_CHAIN {
                let what = "deltas before that of a push";
                return Err(WireError::Value { what, value: count as u64, expected: "at most 8" });
            }
            let mut earlier = Vec::with_capacity(count);
            for _ in 0..count {
                earlier.push((r.u64()?, r.u64()?));
            }
            Deltas::Of(DeltaOf { base, base_offset, offset, len, earlier: earlier.into() })
        }
        n => return Err(WireError::Value { what: "deltas of a push", value: n.into(), expected: "0 to 2" }),
    })
}
