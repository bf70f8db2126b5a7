//! Slices as texts: what numpy has between its brackets.

use super::{Slice, SliceDim, SliceRange};
use std::str::FromStr;

/// The error for a text that is no slice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is neither an index nor a range START:STOP:STEP. A slice is one of these for each dimension, such as 0:1024,-512:,3,::2"
)]
pub struct ParseSliceError {
    /// The text of the dimension that is wrong.
    pub part: String,
}

impl FromStr for Slice {
    type Err = ParseSliceError;

    /// Parses numpy's form, with or without brackets: `0:1024,-512:`.
    fn from_str(text: &str) -> Result<Slice, ParseSliceError> {
        let text = text.trim();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match inner.map(str::trim) {
            Some("") => Ok(Slice::default()),
            _ => inner.unwrap_or(text).split(',').map(dim).collect::<Result<Vec<_>, _>>().map(Slice::new),
        }
    }
}

fn dim(text: &str) -> Result<SliceDim, ParseSliceError> {
    parse_dim(text.trim()).ok_or_else(|| ParseSliceError { part: text.trim().to_owned() })
}

fn parse_dim(text: &str) -> Option<SliceDim> {
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let open = |text: &str| if text.trim().is_empty() { Some(None) } else { number(text).map(Some) };
    let parts: Vec<_> = text.split(':').collect();
    let (start, stop, step) = match parts[..] {
        [index] => return number(index).map(SliceDim::Index),
        [start, stop] => (start, stop, ""),
        [start, stop, step] => (start, stop, step),
        _ => return None,
    };
    let (start, stop, step) = (open(start)?, open(stop)?, open(step)?.unwrap_or(1));
    Some(SliceDim::Range(SliceRange { start, stop, step }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_read_as_numpy_reads_them() {
        for (text, slice) in [
            ("0:1024,512:1024", "[0:1024, 512:1024]"),
            (" [ -3 , : , ::2, 1:-1:3 ] ", "[-3, :, ::2, 1:-1:3]"),
            ("::", "[:]"),
            ("::1", "[:]"),
            ("7", "[7]"),
            ("[]", "[]"),
            // The sidecar that knows the tensor refuses them.
            ("::0", "[::0]"),
        ] {
            let parsed: Slice = text.parse().unwrap();
            assert_eq!(parsed.to_string(), slice, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", ""),
            ("0:1,", ""),
            ("0:1, x:2", "x:2"),
            ("1:2:3:4", "1:2:3:4"),
            ("...", "..."),
            ("[0:1", "[0:1"),
            ("9223372036854775808", "9223372036854775808"),
            ("0..4", "0..4"),
        ] {
            let error = text.parse::<Slice>().unwrap_err();
            assert_eq!(error, ParseSliceError { part: part.to_owned() }, "{text}");
        }
    }

    fn any_dim() -> impl Strategy<Value = SliceDim> {
        let range = (any::<Option<i64>>(), any::<Option<i64>>(), any::<i64>());
        prop_oneof![
            any::<i64>().prop_map(SliceDim::Index),
            range.prop_map(|(start, stop, step)| SliceDim::Range(SliceRange { start, stop, step })),
        ]
    }

    proptest! {
        #[test]
        fn texts_read_back(dims in prop::collection::vec(any_dim(), 0..5)) {
            let slice = Slice::new(dims);
            prop_assert_eq!(slice.to_string().parse(), Ok(slice));
        }

        #[test]
        fn any_text_is_a_slice_or_an_error(text in "[0-9:,\\[\\] -]{0,20}|.{0,20}") {
            if let Ok(slice) = text.parse::<Slice>() {
                prop_assert_eq!(slice.to_string().parse(), Ok(slice));
            }
        }
    }
}
