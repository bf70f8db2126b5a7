//! Copies of boxes between memory with strides.

use super::boxes::IndexBox;

/// Copies a box of `size`-byte units. `from` begins with its first unit, whose neighbours lie `strides` units away in each dimension.
/// `to` has all of `dims`, row-major, and the box lies in it at `part`.
pub(crate) fn copy_box(to: &mut [u8], dims: &[u64], part: &IndexBox, size: usize, from: &[u8], strides: &[u64]) {
    if part.volume() == 0 {
        return;
    }
    let (mut first, mut inner) = (0, 1_u64);
    let mut to_strides = vec![0; dims.len()];
    for (dim, len) in dims.iter().enumerate().rev() {
        to_strides[dim] = inner;
        first += part.0[dim].start * inner;
        inner *= len;
    }
    // What lies one behind the other on both sides is one run.
    let (mut run, mut outer) = (1_u64, dims.len());
    while let Some(dim) = outer.checked_sub(1)
        && (part.0[dim].len == 1 || strides[dim] == run && to_strides[dim] == run)
    {
        run *= part.0[dim].len;
        outer = dim;
    }
    let run = run as usize * size;
    let lens: Vec<u64> = part.0[..outer].iter().map(|extent| extent.len).collect();
    let (mut at, mut source, mut target) = (vec![0; outer], 0_u64, first);
    loop {
        let (source_byte, target_byte) = (source as usize * size, target as usize * size);
        to[target_byte..target_byte + run].copy_from_slice(&from[source_byte..source_byte + run]);
        let mut dim = outer;
        loop {
            let Some(next) = dim.checked_sub(1) else { return };
            dim = next;
            at[dim] += 1;
            source += strides[dim];
            target += to_strides[dim];
            if at[dim] < lens[dim] {
                break;
            }
            source -= at[dim] * strides[dim];
            target -= at[dim] * to_strides[dim];
            at[dim] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_land_at_their_place_from_rows_and_from_columns() {
        // A source of [4, 6], of which rows 1 and 3, columns 2 to 4, go to [1:3, 0:3] of [3, 4].
        let source: Vec<u8> = (0..24).collect();
        let mut to = vec![99; 12];
        copy_box(&mut to, &[3, 4], &IndexBox::new(&[1, 0], &[2, 3]), 1, &source[6 + 2..], &[12, 1]);
        assert_eq!(to, [99, 99, 99, 99, 8, 9, 10, 99, 20, 21, 22, 99]);
        // Every second column.
        let mut to = vec![0; 4];
        copy_box(&mut to, &[2, 2], &IndexBox::all(&[2, 2]), 1, &source, &[6, 2]);
        assert_eq!(to, [0, 2, 6, 8]);
        // One element, and none.
        let mut to = vec![0; 2];
        copy_box(&mut to, &[], &IndexBox::all(&[]), 2, &source[4..6], &[]);
        assert_eq!(to, [4, 5]);
        copy_box(&mut to, &[0, 3], &IndexBox::all(&[0, 3]), 2, &[], &[3, 1]);
    }
}
