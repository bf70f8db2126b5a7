//! The trace context that travels with a transfer. It connects the records that both ends and their sidecars write
//! about it.
//!
//! It has the fields of [W3C Trace Context](https://www.w3.org/TR/trace-context/): the trace id, the parent span's id,
//! and whether the trace is sampled. `tracestate` does not travel.

use crate::wire::{Reader, WireError, Writer};
use std::fmt;
use std::str::FromStr;

/// The flags that have a meaning: `sampled`, and `random` (the trace id is random). The standard requires other flags
/// to be dropped.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;

/// The length of the part that all versions of `traceparent` begin with: `00-TRACE-SPAN-FLAGS`.
const TEXT_BYTES: usize = 55;

/// A position in a trace. The next span has this span as its parent. Neither id is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// The error for ids or a text that make no valid trace context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTraceContext {
    /// An id of zeros. The standard uses it for "none".
    #[error("the {what} is all zeros, which the standard has for \"none\": give a context only where there is one")]
    Zero {
        /// The id that is zero.
        what: &'static str,
    },
    /// A text that is no valid `traceparent`.
    #[error(
        "{text:?} is no traceparent: give VERSION-TRACE-SPAN-FLAGS of 2, 32, 16 and 2 digits 0 to 9 and a to f, with a VERSION below ff"
    )]
    Text {
        /// The beginning of the text.
        text: String,
    },
}

impl TraceContext {
    /// Makes a context from these ids, in the byte order in which they are written. Flags without a meaning are
    /// dropped.
    ///
    /// # Errors
    /// [`InvalidTraceContext::Zero`].
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Result<TraceContext, InvalidTraceContext> {
        if trace_id == [0; 16] {
            return Err(InvalidTraceContext::Zero { what: "trace id" });
        }
        if span_id == [0; 8] {
            return Err(InvalidTraceContext::Zero { what: "span id" });
        }
        Ok(TraceContext { trace_id, span_id, flags: flags & KNOWN_FLAGS })
    }

    /// Returns the trace's id.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the span's id.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Returns the flags, as they travel.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the `sampled` flag: whether a collector may be recording the spans of this trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Writes the context as a `traceparent` header has it.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Parses a `traceparent`. Of a later version, the part that this version defines is used.
impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<TraceContext, InvalidTraceContext> {
        let wrong = || InvalidTraceContext::Text { text: text.chars().take(2 * TEXT_BYTES).collect() };
        let (known, later) = text.split_at_checked(TEXT_BYTES).ok_or_else(wrong)?;
        let mut parts = known.split('-');
        let mut next = || parts.next().unwrap_or_default();
        let version = hex(next()).ok_or_else(wrong)?;
        let (trace_id, span_id, flags) = (hex(next()), hex(next()), hex(next()));
        let (Some(trace_id), Some(span_id), Some([flags]), [version]) = (trace_id, span_id, flags, version) else {
            return Err(wrong());
        };
        let ends = if version == 0 { later.is_empty() } else { later.is_empty() || later.starts_with('-') };
        if version == u8::MAX || !ends {
            return Err(wrong());
        }
        TraceContext::new(trace_id, span_id, flags)
    }
}

/// Parses `N` bytes, each written as two lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

impl TraceContext {
    /// Appends the context's 25 bytes.
    pub(crate) fn write(&self, w: &mut Writer) {
        w.raw(&self.trace_id).raw(&self.span_id).u8(self.flags);
    }

    /// Reads the context's 25 bytes.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<TraceContext, WireError> {
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        trace_id.copy_from_slice(r.raw(16)?);
        span_id.copy_from_slice(r.raw(8)?);
        let flags = r.u8()?;
        if flags & !KNOWN_FLAGS != 0 {
            let (what, value) = ("flags of a trace context", u64::from(flags));
            return Err(WireError::Value { what, value, expected: "0 to 3" });
        }
        TraceContext::new(trace_id, span_id, flags).map_err(|_| WireError::Value {
            what: "trace or span id of a trace context",
            value: 0,
            expected: "anything else",
        })
    }

    /// Appends an optional context at the end of a message or record. `None` appends nothing.
    pub(crate) fn write_last(context: Option<TraceContext>, w: &mut Writer) {
        if let Some(context) = context {
            context.write(w);
        }
    }

    /// Reads an optional context at the end of a message or record.
    pub(crate) fn read_last(r: &mut Reader<'_>) -> Result<Option<TraceContext>, WireError> {
        if r.rest().is_empty() { Ok(None) } else { TraceContext::read(r).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_reads_back() {
        let context: TraceContext = TEXT.parse().unwrap();
        assert_eq!(context.to_string(), TEXT);
        assert_eq!((context.trace_id()[0], context.span_id()[7], context.is_sampled()), (0x4b, 0xb7, true));
        let not_sampled: TraceContext = TEXT.replace("-01", "-00").parse().unwrap();
        assert!(!not_sampled.is_sampled());
    }

    #[test]
    fn traceparent_is_parsed_as_the_standard_requires() {
        let wrong = [
            "",
            "00",
            &TEXT[..54],
            &TEXT.to_uppercase(),
            &TEXT.replacen("00", "ff", 1),
            &TEXT.replacen("00", "0x", 1),
            &TEXT.replace('-', "_"),
            &format!("{TEXT}-"),
            &format!("{TEXT}0"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47é6-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1é",
        ];
        for text in wrong {
            assert!(text.parse::<TraceContext>().is_err(), "{text:?}");
        }
        let long = "é".repeat(10_000).parse::<TraceContext>().unwrap_err().to_string();
        assert!(long.len() < 600, "{}", long.len());
        // Text of a later version may be longer. Flags that only a later version defines are dropped.
        for later in [TEXT.replacen("00", "cc", 1), format!("{}-what-ever", TEXT.replacen("00", "cc", 1))] {
            assert_eq!(later.parse::<TraceContext>().unwrap().to_string(), TEXT);
        }
        assert!(format!("{}x", TEXT.replacen("00", "cc", 1)).parse::<TraceContext>().is_err());
        assert_eq!(TEXT.replace("-01", "-fd").parse::<TraceContext>().unwrap().to_string(), TEXT);
    }

    #[test]
    fn invalid_bytes_of_a_context_are_errors() {
        let mut w = Writer::new();
        TEXT.parse::<TraceContext>().unwrap().write(&mut w);
        let good = w.into_vec();
        let read = |bytes: &[u8]| TraceContext::read(&mut Reader::new("a test", bytes)).map(|c| c.to_string());
        assert_eq!(read(&good).unwrap(), TEXT);
        for zeros in [0..16, 16..24] {
            let mut bytes = good.clone();
            bytes[zeros].fill(0);
            assert!(read(&bytes).is_err());
        }
        let mut bytes = good.clone();
        bytes[24] = 4;
        assert!(read(&bytes).is_err());
        assert!(read(&good[..24]).is_err());
    }
}
