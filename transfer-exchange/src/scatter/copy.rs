//! The loops that copy rows: for each width one in which the compiler knows it.

use super::layout::VIEW_BYTES;
use super::sources::Views;
use arrow_array::OffsetSizeTrait;
use arrow_buffer::BooleanBuffer;
use bytemuck::Pod;

/// Writes the numbers of rows.
pub(super) fn row_numbers(to: &mut [u8], rows: &[u32], base: u32) {
    let (to, _) = to.as_chunks_mut::<4>();
    for (to, row) in to.iter_mut().zip(rows) {
        *to = base.wrapping_add(*row).to_ne_bytes();
    }
}

/// The first row, if the rows follow one another.
fn run(rows: &[u32]) -> Option<usize> {
    let (first, last) = (*rows.first()?, *rows.last()?);
    // Rows ascend, and each is there once.
    (last as usize - first as usize + 1 == rows.len()).then_some(first as usize)
}

/// Copies values of a fixed width.
pub(super) fn fixed(to: &mut [u8], from: &[u8], rows: &[u32], width: usize) {
    if let Some(first) = run(rows) {
        to[..rows.len() * width].copy_from_slice(&from[first * width..][..rows.len() * width]);
        return;
    }
    match width {
        1 => gather::<1>(to, from, rows),
        2 => gather::<2>(to, from, rows),
        4 => gather::<4>(to, from, rows),
        8 => gather::<8>(to, from, rows),
        16 => gather::<16>(to, from, rows),
        _ => {
            for (to, row) in to.chunks_exact_mut(width).zip(rows) {
                to.copy_from_slice(&from[*row as usize * width..][..width]);
            }
        }
    }
}

fn gather<const WIDTH: usize>(to: &mut [u8], from: &[u8], rows: &[u32]) {
    let ((to, _), (from, _)) = (to.as_chunks_mut::<WIDTH>(), from.as_chunks::<WIDTH>());
    for (to, row) in to.iter_mut().zip(rows) {
        *to = from[*row as usize];
    }
}

/// Writes `count` ones behind the first `at` bits.
pub(super) fn ones(to: &mut [u8], at: usize, count: usize) {
    let end = at + count;
    let whole = (at.next_multiple_of(8)).min(end)..(end / 8 * 8).max(at.next_multiple_of(8).min(end));
    set(to, at, (at..whole.start).map(|_| true));
    if !whole.is_empty() {
        to[whole.start / 8..whole.end / 8].fill(0xff);
    }
    set(to, whole.end, (whole.end..end).map(|_| true));
}

/// Copies bits, `per_row` of each row, behind the first `at` bits. Returns the number of zeros among them.
pub(super) fn bits(to: &mut [u8], at: usize, from: &BooleanBuffer, rows: &[u32], per_row: usize) -> usize {
    match per_row {
        1 => set(to, at, rows.iter().map(|row| from.value(*row as usize))),
        _ => {
            let of_row = |row: &u32| (*row as usize * per_row..(*row as usize + 1) * per_row).map(|at| from.value(at));
            set(to, at, rows.iter().flat_map(of_row))
        }
    }
}

/// Writes bits behind the first `at` bits. Returns the number of zeros among them.
fn set(to: &mut [u8], mut at: usize, bits: impl Iterator<Item = bool>) -> usize {
    // The bits above `at` of a byte that was begun are zeros.
    let mut byte = if at.is_multiple_of(8) { 0 } else { to[at / 8] };
    let mut zeros = 0;
    for bit in bits {
        byte |= u8::from(bit) << (at % 8);
        zeros += usize::from(!bit);
        at += 1;
        if at.is_multiple_of(8) {
            to[at / 8 - 1] = byte;
            byte = 0;
        }
    }
    if !at.is_multiple_of(8) {
        to[at / 8] = byte;
    }
    zeros
}

/// Copies the bytes of rows, and writes their ends. `before` is the number of rows and bytes so far. Returns the number
/// of bytes.
pub(super) fn offsets<O: OffsetSizeTrait + Pod>(
    places: &mut [u8],
    data: &mut [u8],
    before: (usize, usize),
    (offsets, values): (&[O], &[u8]),
    rows: &[u32],
) -> usize {
    let (rows_before, mut used) = before;
    let places = &mut places[rows_before * size_of::<O>()..(rows_before + rows.len() + 1) * size_of::<O>()];
    let places: &mut [O] = bytemuck::cast_slice_mut(places);
    places[0] = O::usize_as(used);
    if let Some(first) = run(rows) {
        let (start, end) = (offsets[first].as_usize(), offsets[first + rows.len()].as_usize());
        data[used..][..end - start].copy_from_slice(&values[start..end]);
        for (place, offset) in places[1..].iter_mut().zip(&offsets[first + 1..]) {
            *place = O::usize_as(used + offset.as_usize() - start);
        }
        return used + end - start;
    }
    for (place, row) in places[1..].iter_mut().zip(rows) {
        let row = *row as usize;
        let value = &values[offsets[row].as_usize()..offsets[row + 1].as_usize()];
        data[used..used + value.len()].copy_from_slice(value);
        used += value.len();
        *place = O::usize_as(used);
    }
    used
}

/// Copies views, and the bytes of those that do not have them inside. Returns the number of bytes.
pub(super) fn views(places: &mut [u8], data: &mut [u8], before: (usize, usize), from: &Views, rows: &[u32]) -> usize {
    let (rows_before, mut used) = before;
    let (places, _) = places[rows_before * VIEW_BYTES..].as_chunks_mut::<VIEW_BYTES>();
    for (place, row) in places.iter_mut().zip(rows) {
        let (view, bytes) = from.get(*row as usize);
        *place = view;
        if !bytes.is_empty() {
            data[used..used + bytes.len()].copy_from_slice(bytes);
            // The block has one buffer, whose number is 0.
            let [_, _, _, _, _, _, _, _, buffer @ ..] = place;
            buffer[..4].fill(0);
            buffer[4..].copy_from_slice(&(used as u32).to_ne_bytes());
            used += bytes.len();
        }
    }
    used
}
