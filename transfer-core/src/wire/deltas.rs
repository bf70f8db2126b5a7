//! The place of a version among the deltas of its key, in the record of its push, and the base that a fetch names.

use super::{Reader, WireError, Writer};
use crate::delta::MAX_CHAIN;
use crate::op::{Content, DeltaOf, Deltas, OpId};
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
        Deltas::Base => w.u8(3),
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
        3 => Deltas::Base,
        n => return Err(WireError::Value { what: "deltas of a push", value: n.into(), expected: "0 to 3" }),
    })
}

pub(super) fn write_content(w: &mut Writer, content: Option<Content>) {
    w.u64(content.map_or(0, |content| content.number().get()));
}

pub(super) fn read_content(r: &mut Reader<'_>) -> Result<Option<Content>, WireError> {
    match r.u64()? {
        0 => Ok(None),
        value => match Content::from_wire(value) {
            None => Err(WireError::Value {
                what: "content of a push",
                value,
                expected: "0, or a number with the highest bit",
            }),
            content => Ok(content),
        },
    }
}

pub(super) fn write_base(w: &mut Writer, base: Option<OpId>) {
    w.u8(u8::from(base.is_some()));
    if let Some(op) = base {
        w.u64(op.0);
    }
}

pub(super) fn read_base(r: &mut Reader<'_>) -> Result<Option<OpId>, WireError> {
    let has_base = r.flag("whether a fetch has a base")?;
    has_base.then(|| r.u64().map(OpId)).transpose()
}
