//! Text for display: sizes in units, and the escaping of text that other processes have chosen.

use std::fmt;

/// A number of bytes, displayed in the largest unit in which it is at least 1: `64 MiB`, `1.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let n = self.0;
        match UNITS.iter().find(|(_, shift)| n >> shift > 0) {
            None => write!(f, "{n} B"),
            Some((unit, shift)) if n.trailing_zeros() >= *shift => write!(f, "{} {unit}", n >> shift),
            // The conversion to `f64` is exact enough for one decimal.
            Some((unit, shift)) => write!(f, "{:.1} {unit}", n as f64 / (1u64 << shift) as f64),
        }
    }
}

/// Returns whether a character changes the text around it instead of being visible: a control character, or a Unicode
/// format character such as a direction mark or override, a zero-width space or a line separator.
#[must_use]
pub fn acts_where_shown(c: char) -> bool {
    let acts = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    acts || c.is_control()
}

/// Escapes control characters, characters that change the direction of text, and invisible ones, because names and keys
/// may be hostile.
#[must_use]
pub fn printable(text: String) -> String {
    if !text.contains(acts_where_shown) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match acts_where_shown(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_displayed_with_a_unit() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
            (1 << 40, "1 TiB"),
        ] {
            assert_eq!(Bytes(n).to_string(), text);
        }
    }

    #[test]
    fn letters_of_any_script_are_visible() {
        assert!("aä日ש👩 -_/".chars().all(|c| !acts_where_shown(c)));
        assert!("\n\u{1b}\u{9b}\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}".chars().all(acts_where_shown));
    }
}
