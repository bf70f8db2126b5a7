//! Sizes in the form in which people write them.

use std::fmt;
use std::str::FromStr;
use transfer_terminal::units::{NotASize, size};

/// A number of bytes, written as `4096`, `64KiB`, `64MiB`, `1GiB`, `1TiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Size, NotASize> {
        size(text).map(Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) if *factor > 1 => write!(f, "{}{name}", self.0 / factor),
            _ => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("3TiB", 3 << 40)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(64 << 20).to_string(), "64MiB");
        for text in ["", "MiB", "1.5GiB", "64MB", "64M", "-1", "+1", "99999999TiB", "64mib"] {
            assert_eq!(text.parse::<Size>(), Err(NotASize), "{text}");
        }
    }
}
