//! The usual model of a transfer: `time = n · per_op + bytes / bandwidth`, fitted to the results of a sweep over
//! lengths.
//!
//! The fit minimizes the sum of the squared *relative* errors. With absolute errors, a tensor of 1 GiB would outweigh
//! all others, and its error would distort the cost of an operation.

use serde::Serialize;

/// The least share that the bytes of the longest tensor must add to the cost of an operation; below it, bytes count as
/// free.
const MIN_SHARE: f64 = 0.01;

/// A fitted model. Neither part of it is negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    /// The time of an operation, apart from its bytes, in microseconds.
    pub per_op_us: f64,
    /// The bandwidth, in 10^9 bytes per second. `None` if the time does not grow with the length.
    pub gb_per_s: Option<f64>,
    /// The median of the model's relative errors over all lengths.
    pub usual_error: f64,
    /// The largest relative error of the model.
    pub worst_error: f64,
}

impl Fit {
    /// Fits the model to points of a length in bytes and the nanoseconds of an operation. `None` for fewer than two
    /// lengths.
    #[must_use]
    pub fn of(points: &[(u64, f64)]) -> Option<Fit> {
        let points: Vec<(f64, f64)> =
            points.iter().filter(|(_, ns)| *ns > 0.0).map(|(bytes, ns)| (*bytes as f64, *ns)).collect();
        let first = points.first()?;
        if points.iter().all(|(bytes, _)| bytes == &first.0) {
            return None;
        }
        let sum = |of: fn(f64, f64) -> f64| points.iter().map(|(bytes, ns)| of(*bytes, *ns) / (ns * ns)).sum::<f64>();
        let (one, x, xx, y, xy) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|x, _| x * x), sum(|_, y| y), sum(|x, y| x * y));
        let determinant = one * xx - x * x;
        let (per_op, per_byte) = ((xx * y - x * xy) / determinant, (one * xy - x * y) / determinant);
        // If a part would be negative, the best valid fit has 0 there. A share of the bytes below the noise counts as
        // 0, too.
        let longest = points.iter().map(|(bytes, _)| *bytes).fold(0.0, f64::max);
        let (per_op, per_byte) = match (per_op < 0.0, per_byte * longest <= MIN_SHARE * per_op) {
            (true, _) => (0.0, xy / xx),
            (false, true) => (y / one, 0.0),
            (false, false) => (per_op, per_byte),
        };
        let mut errors: Vec<f64> =
            points.iter().map(|(bytes, ns)| ((per_op + per_byte * bytes) / ns - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        Some(Fit {
            per_op_us: per_op / 1e3,
            gb_per_s: (per_byte > 0.0).then(|| 1.0 / per_byte),
            usual_error: errors[errors.len() / 2],
            worst_error: errors[errors.len() - 1],
        })
    }

    /// The model's time of an operation of that length, in microseconds.
    #[must_use]
    pub fn micros(&self, bytes: u64) -> f64 {
        self.per_op_us + self.gb_per_s.map_or(0.0, |rate| bytes as f64 / rate / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of 4 KiB to 1 GiB by the model, each with a relative error.
    fn measured(per_op_us: f64, gb_per_s: f64, error: impl Fn(usize) -> f64) -> Vec<(u64, f64)> {
        let ns = |bytes: u64| per_op_us * 1e3 + bytes as f64 / gb_per_s;
        (0..10).map(|i| (4096u64 << (2 * i), ns(4096 << (2 * i)) * (1.0 + error(i)))).collect()
    }

    fn near(a: f64, b: f64, share: f64) -> bool {
        (a / b - 1.0).abs() < share
    }

    #[test]
    fn fit_recovers_the_parameters_of_the_model() {
        for (per_op, rate) in [(30.0, 4.0), (1.5, 12.0), (200.0, 0.1), (0.01, 50.0)] {
            let fit = Fit::of(&measured(per_op, rate, |_| 0.0)).unwrap();
            assert!(near(fit.per_op_us, per_op, 1e-6), "{per_op} {rate} {fit:?}");
            assert!(near(fit.gb_per_s.unwrap(), rate, 1e-6), "{per_op} {rate} {fit:?}");
            assert!(fit.worst_error < 1e-6, "{fit:?}");
            assert!(near(fit.micros(1 << 20), per_op + f64::from(1 << 20) / rate / 1e3, 1e-6));
        }
    }

    #[test]
    fn noise_changes_the_fit_little_and_is_reported() {
        let fit = Fit::of(&measured(30.0, 4.0, |i| if i % 2 == 0 { 0.05 } else { -0.05 })).unwrap();
        assert!(near(fit.per_op_us, 30.0, 0.06) && near(fit.gb_per_s.unwrap(), 4.0, 0.06), "{fit:?}");
        assert!((0.02..0.1).contains(&fit.usual_error) && fit.worst_error >= fit.usual_error, "{fit:?}");
    }

    #[test]
    fn one_long_tensor_does_not_decide_the_cost_of_an_operation() {
        // The longest one took 10 % more: with absolute errors it would outweigh all others.
        let fit = Fit::of(&measured(30.0, 4.0, |i| if i == 9 { 0.1 } else { 0.0 })).unwrap();
        assert!(near(fit.per_op_us, 30.0, 0.05), "{fit:?}");
    }

    #[test]
    fn parts_of_the_fit_are_never_negative() {
        let same = Fit::of(&[(4096, 20_000.0), (1 << 20, 19_000.0), (1 << 30, 18_000.0)]).unwrap();
        assert_eq!(same.gb_per_s, None, "by reference: nothing moves");
        assert!((18.0..20.0).contains(&same.per_op_us), "{same:?}");
        let bytes_alone = Fit::of(&[(1000, 100.0), (2000, 300.0)]).unwrap();
        assert_eq!(bytes_alone.per_op_us, 0.0);
        assert!(bytes_alone.gb_per_s.unwrap() > 0.0);
    }

    #[test]
    fn single_point_has_no_fit() {
        assert_eq!(Fit::of(&[]), None);
        assert_eq!(Fit::of(&[(4096, 1.0)]), None);
        assert_eq!(Fit::of(&[(4096, 1.0), (4096, 2.0)]), None);
        assert_eq!(Fit::of(&[(4096, 0.0), (8192, 2.0)]), None, "nothing takes no time");
    }
}
