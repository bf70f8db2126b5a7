//! The place of a version among the deltas of its key, in the record of its push.

use super::{Reader, WireError, Writer};
use crate::op::{DeltaOf, Deltas};
use crate::tensor::Version;

pub(super) fn write(w: &mut Writer, deltas: Deltas) {
    match deltas {
        Deltas::None => w.u8(0),
        Deltas::Follow => w.u8(1),
        Deltas::Of(DeltaOf { base, base_offset, offset, len }) => {
            w.u8(2).u64(base.0).u64(base_offset).u64(offset).u64(len)
        }
    };
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<Deltas, WireError> {
    Ok(match r.u8()? {
        0 => Deltas::None,
        1 => Deltas::Follow,
        2 => Deltas::Of(DeltaOf { base: Version(r.u64()?), base_offset: r.u64()?, offset: r.u64()?, len: r.u64()? }),
        n => return Err(WireError::Value { what: "deltas of a push", value: n.into(), expected: "0 to 2" }),
    })
}
