//! The bytes of parts that are asked for together, in requests of workers and of sidecars.
//!
//! | field | bytes |
//! |---|---|
//! | number of parts | 1 |
//! | for each part: the end of its key, as a text | 2 and more |
//! | the offset of its range in the body, and the length of the range, both divided by 64 | 4, 4 |

use super::{Reader, WireError, Writer};
use crate::memory::ALIGNMENT;
use crate::tensor::{BodyRange, GatheredPart, InvalidName};

/// Appends the parts.
pub(super) fn write_parts(w: &mut Writer, parts: &[GatheredPart]) {
    let units = |bytes: u64| u32::try_from(bytes / ALIGNMENT).unwrap_or(u32::MAX);
    w.u8(u8::try_from(parts.len()).unwrap_or(u8::MAX));
    for part in parts {
        let BodyRange { offset, len } = part.range();
        w.text(part.rest()).u32(units(offset)).u32(units(len));
    }
}

/// Reads parts. The caller checks them together, with [`Gathered::new`](crate::tensor::Gathered::new).
///
/// # Errors
/// [`WireError`] for a part that is none.
pub(super) fn read_parts(r: &mut Reader<'_>) -> Result<Vec<GatheredPart>, WireError> {
    let count = r.u8()?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let rest = r.text()?;
        let not_utf8 = |e: std::str::Utf8Error| InvalidName::NotUtf8 { what: "key", valid_up_to: e.valid_up_to() };
        let rest = std::str::from_utf8(rest).map_err(not_utf8)?;
        let (offset, len) = (u64::from(r.u32()?) * ALIGNMENT, u64::from(r.u32()?) * ALIGNMENT);
        parts.push(GatheredPart::new(rest, BodyRange { offset, len })?);
    }
    Ok(parts)
}
