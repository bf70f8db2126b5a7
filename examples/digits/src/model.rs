//! The network: 64 pixels, 128 hidden units (ReLU), 10 digits (softmax), and its gradient.
//!
//! All parameters lie in **one** flat `[f32]`, so that one tensor carries the weights and one tensor carries a
//! gradient:
//!
//! ```text
//! | w1: 64 x 128 | b1: 128 | w2: 128 x 10 | b2: 10 |      9,610 parameters, 38,440 bytes
//! ```
//!
//! Floating-point addition is not associative, so equal bits need an equal order. Every sum here runs in the order of
//! the source. The compiler may compute several sums side by side (and does), but it never reorders one. `exp` and
//! `log` come from the `libm` crate, whose results do not depend on the machine's C library.

use crate::dataset::Example;
use crate::random::Random;
use std::fmt;

/// Pixels of an image.
pub const INPUTS: usize = 64;
/// Hidden units.
pub const HIDDEN: usize = 128;
/// Digits.
pub const CLASSES: usize = 10;
/// Weights and biases of both layers.
pub const PARAMETERS: usize = INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES;

/// The quality of weights on some examples.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// Mean cross-entropy, in nats.
    pub loss: f32,
    /// The share of right answers, 0 to 1.
    pub accuracy: f32,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.3}, accuracy {:.2} %", self.loss, self.accuracy * 100.0)
    }
}

/// The initial weights: uniform by He's rule (variance 2 / inputs, which keeps a ReLU's output at the scale of its
/// input), without bias.
#[must_use]
pub fn initial_weights(seed: u64) -> Vec<f32> {
    let mut random = Random::for_purpose(seed, &[1]);
    let mut weights = vec![0.0; PARAMETERS];
    let LayersMut { w1, w2, .. } = LayersMut::of(&mut weights);
    for (layer, inputs) in [(w1.as_flattened_mut(), INPUTS), (w2.as_flattened_mut(), HIDDEN)] {
        let limit = (6.0 / inputs as f32).sqrt();
        layer.iter_mut().for_each(|w| *w = random.symmetric(limit));
    }
    weights
}

/// Writes the gradient of the mean cross-entropy over `batch` at `weights` to `gradient`. Returns that mean.
///
/// # Panics
/// If `weights` or `gradient` is not of length [`PARAMETERS`].
pub fn gradient(weights: &[f32], batch: &[Example], gradient: &mut [f32]) -> f32 {
    let layers = Layers::of(weights);
    gradient.fill(0.0);
    let sums = LayersMut::of(gradient);
    let scale = 1.0 / batch.len() as f32;
    let mut loss = 0.0;

    for example in batch {
        let Forward { hidden, probabilities } = forward(&layers, &example.pixels);
        loss -= libm::logf(probabilities[example.label].max(f32::MIN_POSITIVE));

        // Softmax and cross-entropy together have a simple derivative: probability minus truth.
        let mut d_logits = probabilities;
        d_logits[example.label] -= 1.0;
        d_logits.iter_mut().for_each(|d| *d *= scale);

        add_scaled(sums.b2, 1.0, &d_logits);
        let mut d_hidden = [0.0; HIDDEN];
        for unit in 0..HIDDEN {
            // A unit that is off passes nothing back, and its outgoing weights did not contribute to the answer.
            if hidden[unit] > 0.0 {
                add_scaled(&mut sums.w2[unit], hidden[unit], &d_logits);
                d_hidden[unit] = layers.w2[unit].iter().zip(&d_logits).map(|(w, d)| w * d).sum();
            }
        }
        add_scaled(sums.b1, 1.0, &d_hidden);
        for (row, &pixel) in sums.w1.iter_mut().zip(&example.pixels) {
            add_scaled(row, pixel, &d_hidden);
        }
    }
    loss * scale
}

/// Computes loss and accuracy on `examples`.
///
/// # Panics
/// If `weights` is not of length [`PARAMETERS`].
#[must_use]
pub fn evaluate(weights: &[f32], examples: &[Example]) -> Score {
    let layers = Layers::of(weights);
    let (mut loss, mut right) = (0.0, 0usize);
    for example in examples {
        let Forward { probabilities, .. } = forward(&layers, &example.pixels);
        let truth = probabilities[example.label];
        loss -= libm::logf(truth.max(f32::MIN_POSITIVE));
        // A tie does not count as right, so a network of zeros scores 0.
        right += usize::from(probabilities.iter().enumerate().all(|(k, &p)| k == example.label || p < truth));
    }
    Score { loss: loss / examples.len() as f32, accuracy: right as f32 / examples.len() as f32 }
}

/// The values of a forward pass that the backward pass needs.
struct Forward {
    hidden: [f32; HIDDEN],
    probabilities: [f32; CLASSES],
}

fn forward(layers: &Layers<'_>, pixels: &[f32; INPUTS]) -> Forward {
    let mut hidden = *layers.b1;
    for (row, &pixel) in layers.w1.iter().zip(pixels) {
        add_scaled(&mut hidden, pixel, row);
    }
    hidden.iter_mut().for_each(|h| *h = h.max(0.0));

    let mut logits = *layers.b2;
    for (row, &unit) in layers.w2.iter().zip(&hidden) {
        add_scaled(&mut logits, unit, row);
    }

    // Softmax. The largest logit is subtracted, so that no exponential overflows.
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut probabilities = logits.map(|logit| libm::expf(logit - largest));
    let sum: f32 = probabilities.iter().sum();
    probabilities.iter_mut().for_each(|p| *p /= sum);
    Forward { hidden, probabilities }
}

/// Computes `sum += factor * row`, element by element: the only inner loop of the network. Its elements are independent
/// of each other, so it may run in vector instructions without changing any bit.
fn add_scaled<const N: usize>(sum: &mut [f32; N], factor: f32, row: &[f32; N]) {
    for index in 0..N {
        sum[index] += factor * row[index];
    }
}

/// A flat parameter vector as its four tensors. Weights lie by input: one row holds the contributions of one input to
/// each output.
struct Layers<'a> {
    w1: &'a [[f32; HIDDEN]],
    b1: &'a [f32; HIDDEN],
    w2: &'a [[f32; CLASSES]],
    b2: &'a [f32; CLASSES],
}

/// A writable flat parameter vector as its four tensors; see [`Layers`].
struct LayersMut<'a> {
    w1: &'a mut [[f32; HIDDEN]],
    b1: &'a mut [f32; HIDDEN],
    w2: &'a mut [[f32; CLASSES]],
    b2: &'a mut [f32; CLASSES],
}

/// The start of the second layer. Both layers consist of rows of equal length, the last of which is the bias, so both
/// are cut the same way.
const SECOND: usize = (INPUTS + 1) * HIDDEN;

impl<'a> Layers<'a> {
    fn of(flat: &'a [f32]) -> Layers<'a> {
        assert_eq!(flat.len(), PARAMETERS, "the number of parameters");
        let (first, second) = flat.split_at(SECOND);
        let (w1, b1) = first.as_chunks().0.split_at(INPUTS);
        let (w2, b2) = second.as_chunks().0.split_at(HIDDEN);
        Layers { w1, b1: &b1[0], w2, b2: &b2[0] }
    }
}

impl<'a> LayersMut<'a> {
    fn of(flat: &'a mut [f32]) -> LayersMut<'a> {
        assert_eq!(flat.len(), PARAMETERS, "the number of parameters");
        let (first, second) = flat.split_at_mut(SECOND);
        let (w1, b1) = first.as_chunks_mut().0.split_at_mut(INPUTS);
        let (w2, b2) = second.as_chunks_mut().0.split_at_mut(HIDDEN);
        LayersMut { w1, b1: &mut b1[0], w2, b2: &mut b2[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let data = Dataset::load(1).unwrap();
        let batch = &data.train[..8];
        let weights = initial_weights(1);
        let mut slope = vec![f32::NAN; PARAMETERS];
        let loss = gradient(&weights, batch, &mut slope);
        assert_eq!(loss, evaluate(&weights, batch).loss);

        // Finite differences along random directions: each includes all parameters at once, which f32 measures better
        // than single ones.
        let mut random = Random::new(9);
        for _ in 0..20 {
            let direction: Vec<f32> = (0..PARAMETERS).map(|_| random.symmetric(1.0)).collect();
            let moved = |by: f32| -> f64 {
                let there: Vec<f32> = weights.iter().zip(&direction).map(|(w, d)| w + by * d).collect();
                f64::from(evaluate(&there, batch).loss)
            };
            let measured = (moved(2e-4) - moved(-2e-4)) / 4e-4;
            let expected: f64 = slope.iter().zip(&direction).map(|(s, d)| f64::from(*s) * f64::from(*d)).sum();
            assert!((measured - expected).abs() < 0.02 * expected.abs().max(0.5), "{measured} against {expected}");
        }
    }

    #[test]
    fn gradient_is_right_in_each_layer() {
        // One coordinate in each of the four tensors, in case a random direction hides an error in a small one.
        let data = Dataset::load(1).unwrap();
        let batch = &data.train[..8];
        let weights = initial_weights(1);
        let mut slope = vec![0.0; PARAMETERS];
        gradient(&weights, batch, &mut slope);
        let steepest = |from: usize, to: usize| (from..to).max_by(|&a, &b| slope[a].abs().total_cmp(&slope[b].abs()));
        for range in [
            (0, SECOND - HIDDEN),
            (SECOND - HIDDEN, SECOND),
            (SECOND, PARAMETERS - CLASSES),
            (PARAMETERS - CLASSES, PARAMETERS),
        ] {
            let index = steepest(range.0, range.1).unwrap();
            let moved = |by: f32| -> f64 {
                let mut there = weights.clone();
                there[index] += by;
                f64::from(evaluate(&there, batch).loss)
            };
            let measured = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let expected = f64::from(slope[index]);
            assert!((measured - expected).abs() < 0.02 * expected.abs(), "{index}: {measured} against {expected}");
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bits() {
        let data = Dataset::load(1).unwrap();
        let weights = initial_weights(1);
        let [mut a, mut b] = [vec![0.0; PARAMETERS], vec![1.0; PARAMETERS]];
        gradient(&weights, &data.train[..32], &mut a);
        gradient(&weights, &data.train[..32], &mut b);
        assert!(a.iter().zip(&b).all(|(x, y)| x.to_bits() == y.to_bits()));
    }

    #[test]
    fn network_of_zeros_scores_as_a_guess() {
        let data = Dataset::load(1).unwrap();
        let score = evaluate(&vec![0.0; PARAMETERS], &data.test);
        assert!((score.loss - 10f32.ln()).abs() < 1e-4);
        assert_eq!(score.accuracy, 0.0);
    }
}
