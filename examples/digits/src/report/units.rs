//! Numbers for people.

use std::time::Duration;

/// A number of bytes, in decimal units, as in GB/s.
pub(super) fn bytes(bytes: u64) -> String {
    let amount = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", amount / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", amount / 1e6),
        _ => format!("{:.1} GB", amount / 1e9),
    }
}

/// The rate of `bytes` in `time`.
pub(super) fn rate(bytes: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { format!("{:.1} GB/s", bytes as f64 / seconds / 1e9) } else { "-".to_owned() }
}

/// A short time.
pub(super) fn time(time: Duration) -> String {
    format!("{time:.1?}")
}

/// A size in MiB.
pub(super) fn mebibytes(mib: u64) -> String {
    if mib.is_multiple_of(1024) { format!("{} GiB", mib / 1024) } else { format!("{mib} MiB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_unit() {
        let sizes = [0, 999, 1_000, 38_440, 115_320_000, 4_294_967_296].map(bytes);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "38.4 kB", "115.3 MB", "4.3 GB"]);
        assert_eq!([64, 1024].map(mebibytes), ["64 MiB", "1 GiB"]);
    }

    #[test]
    fn a_rate_is_bytes_by_time() {
        assert_eq!(rate(2_147_483_648, Duration::from_millis(1000)), "2.1 GB/s");
        assert_eq!(rate(1, Duration::ZERO), "-");
        assert_eq!(time(Duration::from_nanos(12_345)), "12.3µs");
    }
}
