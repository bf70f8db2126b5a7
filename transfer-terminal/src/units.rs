//! Numbers for people.

use std::time::Duration;

/// A number of bytes in the largest unit that keeps it at 1 or above: `64 MiB`, `1.5 GiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    transfer_core::text::Bytes(n).to_string()
}

/// A number with separated thousands: `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things: `1 key`, `1,234 keys`.
#[must_use]
pub fn counted(n: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { several })
}

/// The age of something: `3 d 4 h`, `5 min 3 s`, `12 s`.
#[must_use]
pub fn age(age: Duration) -> String {
    let s = age.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// A moment in UTC, to a tenth of a second, as RFC 3339 has it: `2026-11-27T22:41:07.3Z`. `unix_ns` is in nanoseconds since 1970.
#[must_use]
pub fn utc(unix_ns: u64) -> String {
    let (tenths, s) = (unix_ns / 100_000_000 % 10, unix_ns / 1_000_000_000);
    // Days since the first of March of the year 0, in cycles of 400 years. A year that begins in March ends with the leap day.
    let days = s / 86_400 + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = cycle * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (s / 3600 % 24, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{tenths}Z")
}

/// A time, to about three digits: `850 µs`, `12.3 ms`, `4.56 s`, `5 min 3 s`.
#[must_use]
pub fn short(time: Duration) -> String {
    let (value, unit) = match time.as_nanos() {
        0..1_000_000 => return format!("{} µs", time.as_micros()),
        1_000_000..1_000_000_000 => (time.as_secs_f64() * 1e3, "ms"),
        1_000_000_000..60_000_000_000 => (time.as_secs_f64(), "s"),
        _ => return age(time),
    };
    match value {
        ..10.0 => format!("{value:.2} {unit}"),
        ..100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// A time in nanoseconds, as JSON and requests have it.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The text is no valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a duration is a number with its unit: 500ms, 10s, 2.5s, 1min, 1h")]
pub struct NotADuration;

/// Parses `500ms`, `10s`, `2.5s`, `1min`, `1h`, or a plain number of seconds.
///
/// # Errors
/// [`NotADuration`].
pub fn duration(text: &str) -> Result<Duration, NotADuration> {
    let text = text.trim();
    // "ms" before "s", which it ends with.
    const UNITS: [(&str, f64); 6] = [("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0), ("h", 3600.0), ("", 1.0)];
    let (unit, seconds) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or(NotADuration)?;
    let digits = text[..text.len() - unit.len()].trim_end();
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(NotADuration);
    }
    let number: f64 = digits.parse().map_err(|_| NotADuration)?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| NotADuration)
}

/// The text is no valid value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a size is a whole number with KiB, MiB, GiB or TiB behind it, or a number of bytes: 64MiB, 1GiB, 4096")]
pub struct NotASize;

/// Parses a size: `4096`, `64MiB`, `1 GiB`, `4096B`.
///
/// # Errors
/// [`NotASize`].
pub fn size(text: &str) -> Result<u64, NotASize> {
    let text = text.trim();
    const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let unit = UNITS.iter().find(|(name, _)| text.ends_with(name));
    let (digits, shift) = unit.map_or((text, 0), |(name, shift)| (text[..text.len() - name.len()].trim_end(), *shift));
    // u64's own parser accepts a leading plus.
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NotASize);
    }
    let number: u64 = digits.parse().map_err(|_| NotASize)?;
    number.checked_mul(1 << shift).ok_or(NotASize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn one_is_followed_by_the_singular() {
        for (n, text) in [(0, "0 keys"), (1, "1 key"), (1234, "1,234 keys")] {
            assert_eq!(counted(n, "key", "keys"), text);
        }
    }

    #[test]
    fn moments_are_dates_in_utc() {
        for (s, text) in [
            (0, "1970-01-01T00:00:00.0Z"),
            (951_782_399, "2000-02-28T23:59:59.0Z"),
            (951_782_400, "2000-02-29T00:00:00.0Z"),
            (951_868_800, "2000-03-01T00:00:00.0Z"),
            (1_735_689_599, "2024-12-31T23:59:59.0Z"),
            (1_795_819_267, "2026-11-27T22:41:07.0Z"),
            (4_107_542_400, "2100-03-01T00:00:00.0Z"),
        ] {
            assert_eq!(utc(s * 1_000_000_000), text);
        }
        assert_eq!(utc(1_999_999_999), "1970-01-01T00:00:01.9Z");
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33.7Z");
    }

    #[test]
    fn ages_are_formatted() {
        for (s, text) in [(12, "12 s"), (303, "5 min 3 s"), (7320, "2 h 2 min"), (3 * 86_400 + 4 * 3600, "3 d 4 h")] {
            assert_eq!(age(Duration::from_secs(s)), text);
        }
    }

    #[test]
    fn short_times_are_formatted() {
        for (us, text) in
            [(0, "0 µs"), (850, "850 µs"), (12_345, "12.3 ms"), (4_560_000, "4.56 s"), (303_000_000, "5 min 3 s")]
        {
            assert_eq!(short(Duration::from_micros(us)), text);
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, n) in [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), (" 1 GiB", 1 << 30), ("3TiB", 3 << 40)] {
            assert_eq!(size(text), Ok(n), "{text}");
        }
        for text in ["", "MiB", "1.5GiB", "64MB", "-1", "+1", "99999999TiB"] {
            assert_eq!(size(text), Err(NotASize), "{text}");
        }
    }

    #[test]
    fn durations_are_read() {
        for (text, ms) in
            [("500ms", 500), ("10s", 10_000), ("2.5 s", 2500), ("1min", 60_000), ("1h", 3_600_000), ("3", 3000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1 day", "inf", "NaN", "1e400s", "+3s", ".5s"] {
            assert_eq!(duration(text), Err(NotADuration), "{text}");
        }
    }
}
