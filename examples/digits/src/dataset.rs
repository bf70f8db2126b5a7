//! The handwritten digits: unpacking, normalising, splitting.

use crate::error::Error;
use crate::model::{CLASSES, INPUTS};
use crate::random::Random;
use flate2::read::GzDecoder;
use std::io::Read;

/// The file is small (57 KiB), so the program contains it, and no role needs its path. Source and licence:
/// `data/README.md`.
const DIGITS_CSV_GZ: &[u8] = include_bytes!("../data/digits.csv.gz");

/// The largest pixel value in the file.
const PIXEL_MAX: f32 = 16.0;

/// Pixels along an edge of an image.
const SIDE: usize = 8;

/// An image and its digit.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// 8 by 8 pixels, row by row, from 0 (paper) to 1 (ink).
    pub pixels: [f32; INPUTS],
    /// The digit, 0 to 9.
    pub label: usize,
}

impl Example {
    /// The same digit, moved by a random part of a pixel in a random direction, as by a pen. Training on such copies
    /// gains about one point of accuracy on digits that the network has never seen.
    #[must_use]
    pub fn nudged(&self, random: &mut Random) -> Example {
        // Offsets 0, 1, 2 stand for -1, 0, 1, which avoids signed arithmetic.
        let (across, down, share) = (random.below(3), random.below(3), random.unit());
        let pixels = std::array::from_fn(|index| {
            let (row, column) = (index / SIDE + down, index % SIDE + across);
            let inside = (1..=SIDE).contains(&row) && (1..=SIDE).contains(&column);
            let neighbour = if inside { self.pixels[(row - 1) * SIDE + column - 1] } else { 0.0 };
            self.pixels[index] + share * (neighbour - self.pixels[index])
        });
        Example { pixels, label: self.label }
    }
}

/// The data set, split in two parts that share no row.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Four fifths, for training.
    pub train: Vec<Example>,
    /// One fifth, held out from training.
    pub test: Vec<Example>,
}

impl Dataset {
    /// Unpacks the data set and splits it; the same `seed` gives the same split in every process.
    ///
    /// # Errors
    /// [`Error::Data`] and [`Error::Io`] if the embedded file is damaged.
    pub fn load(seed: u64) -> Result<Dataset, Error> {
        let mut rows = parse(DIGITS_CSV_GZ)?;
        // In the file the labels follow a pattern (0, 1, 2, ...), and neighbours are by the same writer, so the rows
        // are shuffled before the split.
        Random::for_purpose(seed, &[0]).shuffle(&mut rows);
        let test = rows.split_off(rows.len() - rows.len() / 5);
        Ok(Dataset { train: rows, test })
    }

    /// The training examples of worker `rank` of `workers`: every `workers`-th one, so the shards' sizes differ by at
    /// most one.
    #[must_use]
    pub fn shard(&self, rank: usize, workers: usize) -> Vec<Example> {
        self.train.iter().skip(rank).step_by(workers).cloned().collect()
    }
}

/// Every row of a gzipped CSV file of pixels and label, in the file's order.
fn parse(csv_gz: &[u8]) -> Result<Vec<Example>, Error> {
    let mut csv = String::new();
    GzDecoder::new(csv_gz).read_to_string(&mut csv).map_err(Error::io("unpack the data set"))?;
    csv.lines().enumerate().map(|(index, line)| parse_row(line).ok_or(Error::Data { line: index + 1 })).collect()
}

fn parse_row(line: &str) -> Option<Example> {
    let mut fields = line.split(',');
    let mut pixels = [0.0; INPUTS];
    for pixel in &mut pixels {
        *pixel = f32::from(fields.next()?.parse::<u8>().ok()?) / PIXEL_MAX;
    }
    let label = fields.next()?.parse().ok()?;
    (label < CLASSES && fields.next().is_none()).then_some(Example { pixels, label })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_present_and_normalised() {
        let rows = parse(DIGITS_CSV_GZ).unwrap();
        assert_eq!(rows.len(), 1797);
        assert!(rows.iter().all(|row| row.label < 10 && row.pixels.iter().all(|p| (0.0..=1.0).contains(p))));
        // The counts that the authors of the data set publish with it.
        let mut counts = [0; 10];
        rows.iter().for_each(|row| counts[row.label] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn a_fifth_is_held_out_and_the_shards_divide_the_rest() {
        let data = Dataset::load(1).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (1438, 359));
        let shards = [data.shard(0, 2), data.shard(1, 2)];
        assert_eq!((shards[0].len(), shards[1].len()), (719, 719));
        assert_eq!((&shards[0][0], &shards[1][0], &shards[0][1]), (&data.train[0], &data.train[1], &data.train[2]));
        // The held-out part contains every digit, so the split does not follow the labels.
        assert!((0..10).all(|digit| data.test.iter().filter(|e| e.label == digit).count() > 20));
    }

    #[test]
    fn the_split_follows_from_the_seed() {
        let (a, b, c) = (Dataset::load(1).unwrap(), Dataset::load(1).unwrap(), Dataset::load(2).unwrap());
        assert_eq!(a.test, b.test);
        assert_ne!(a.test, c.test);
    }

    #[test]
    fn a_nudge_moves_the_ink_by_less_than_a_pixel() {
        let mut dot = Example { pixels: [0.0; INPUTS], label: 3 };
        dot.pixels[3 * SIDE + 4] = 1.0;
        let mut random = Random::new(1);
        let mut reached = [0.0f32; INPUTS];
        for _ in 0..1000 {
            let nudged = dot.nudged(&mut random);
            assert!((nudged.pixels.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert_eq!(nudged.label, 3);
            nudged.pixels.iter().zip(&mut reached).for_each(|(p, r)| *r = r.max(*p));
        }
        let around = |index: usize| (2..=4).contains(&(index / SIDE)) && (3..=5).contains(&(index % SIDE));
        assert!((0..INPUTS).all(|index| (reached[index] > 0.9) == around(index)));
    }

    #[test]
    fn damaged_row_is_refused() {
        assert!(parse_row("1,2,3").is_none());
        let mut row = "0,".repeat(64);
        assert!(parse_row(&format!("{row}9")).is_some());
        assert!(parse_row(&format!("{row}10")).is_none());
        row.push_str("9,9");
        assert!(parse_row(&row).is_none());
    }
}
