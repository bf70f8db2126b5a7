//! Making a delta.

use super::{BLOCK_BYTES, Buffers, Form, LAYOUT, LENGTH_BITS, MAGIC, SKIP, head_bytes, section};
use xxhash_rust::xxh3::Xxh3;

/// One block in this many is looked at before the others.
const SAMPLED: u64 = 128;

/// A delta, and how much of the version has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// How much has changed.
    pub density: Density,
}

/// How many bytes of those that were looked at have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Density {
    /// Bytes in elements of two bytes that have changed.
    pub changed: u64,
    /// All bytes that were looked at.
    pub of: u64,
}

impl std::ops::AddAssign for Density {
    fn add_assign(&mut self, other: Density) {
        self.changed += other.changed;
        self.of += other.of;
    }
}

/// Too much of a version has changed: its delta would be longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDense(pub Density);

/// Makes the delta by which the version `new` comes from `base`. Both have `len` bytes, and are read in blocks: each function fills
/// the slice with the bytes from this place on. The delta has at most `limit` bytes. Several threads do the same by [`sample`],
/// [`encode_section`] and [`front`].
///
/// # Errors
/// [`TooDense`].
pub fn encode(
    len: u64,
    base: impl Fn(u64, &mut [u8]),
    new: impl Fn(u64, &mut [u8]),
    limit: u64,
) -> Result<Encoded, TooDense> {
    sample(len, &base, &new, limit)?;
    let (mut sections, mut bytes, mut density) = (Vec::new(), head_bytes(len), Density::default());
    let mut buffers = Buffers::default();
    for number in 0..section::count(len) {
        let section = encode_section((len, number), &mut buffers, &base, &new);
        bytes += section.parts.len() as u64;
        density += section.density;
        if bytes > limit {
            return Err(TooDense(density));
        }
        sections.push(section);
    }
    let mut bytes = front(len, &sections);
    sections.iter().for_each(|section| bytes.extend_from_slice(&section.parts));
    Ok(Encoded { bytes, density })
}

/// What less than 1 % of a long version says about its delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// How long the delta will be, in bytes.
    pub bytes: u64,
    /// How much of the sample has changed.
    pub density: Density,
}

/// Looks at less than 1 % of a long version, to see whether a delta of at most `limit` bytes is worth to be made. `None`: the version is
/// short.
///
/// # Errors
/// [`TooDense`].
pub fn sample(
    len: u64,
    base: impl Fn(u64, &mut [u8]),
    new: impl Fn(u64, &mut [u8]),
    limit: u64,
) -> Result<Option<Sample>, TooDense> {
    let blocks = len.div_ceil(BLOCK_BYTES as u64);
    let mut sampled = None;
    if blocks >= SAMPLED {
        let (mut sample, mut buffers) = (Encoder::default(), Buffers::default());
        for block in (0..blocks).step_by(SAMPLED as usize) {
            let (old, fresh) = read_block((len, block), &mut buffers, &base, &new);
            sample.block(old, fresh);
        }
        if sample.parts.len() as u64 > limit / SAMPLED {
            return Err(TooDense(sample.density));
        }
        let parts = sample.parts.len() as u64 * SAMPLED;
        sampled = Some(Sample { bytes: head_bytes(len) + parts, density: sample.density });
    }
    if head_bytes(len) > limit { Err(TooDense(Density::default())) } else { Ok(sampled) }
}

/// The part of a delta for one section of its version.
#[derive(Debug)]
pub struct Section {
    digest: [u8; 16],
    index: Vec<u32>,
    /// The parts of its blocks. A delta has those of all sections behind its front, in their order.
    pub parts: Vec<u8>,
    /// How much has changed.
    pub density: Density,
}

/// Makes the part of a delta for a section; see [`encode`].
pub fn encode_section(
    (len, number): (u64, u64),
    buffers: &mut Buffers,
    base: impl Fn(u64, &mut [u8]),
    new: impl Fn(u64, &mut [u8]),
) -> Section {
    let (mut encoder, mut digest) = (Encoder::default(), Xxh3::new());
    let (first, blocks) = (number * section::BLOCKS as u64, len.div_ceil(BLOCK_BYTES as u64));
    let encode = |block| {
        let (old, fresh) = read_block((len, block), buffers, &base, &new);
        digest.update(fresh);
        encoder.block(old, fresh)
    };
    let index = (first..(first + section::BLOCKS as u64).min(blocks)).map(encode).collect();
    let Encoder { parts, density, .. } = encoder;
    Section { digest: digest.digest128().to_be_bytes(), index, parts, density }
}

/// What stands in front of the parts of the sections, of which all are given.
#[must_use]
pub fn front(len: u64, sections: &[Section]) -> Vec<u8> {
    let mut front = Vec::with_capacity(head_bytes(len) as usize);
    front.extend_from_slice(&MAGIC.to_le_bytes());
    front.extend_from_slice(&LAYOUT.to_le_bytes());
    front.extend_from_slice(&len.to_le_bytes());
    sections.iter().for_each(|section| front.extend_from_slice(&section.digest));
    sections.iter().flat_map(|section| &section.index).for_each(|entry| front.extend_from_slice(&entry.to_le_bytes()));
    front
}

/// Reads a block of the base and of the version.
fn read_block(
    (len, number): (u64, u64),
    buffers: &mut Buffers,
    base: impl Fn(u64, &mut [u8]),
    new: impl Fn(u64, &mut [u8]),
) -> (&[u8], &[u8]) {
    let at = number * BLOCK_BYTES as u64;
    let bytes = (len - at).min(BLOCK_BYTES as u64) as usize;
    let (old, fresh) = (&mut buffers.block[..bytes], &mut buffers.other[..bytes]);
    base(at, old);
    new(at, fresh);
    (old, fresh)
}

#[derive(Default)]
struct Encoder {
    parts: Vec<u8>,
    density: Density,
    /// The places of the changed elements of the block.
    places: Vec<u16>,
    heads: Vec<u8>,
    /// The places of those that have risen or fallen by one, and which of them have fallen.
    steps: Vec<u16>,
    fallen: Vec<u8>,
}

impl Encoder {
    /// Adds the part of a block. Returns its entry in the index.
    fn block(&mut self, old: &[u8], new: &[u8]) -> u32 {
        self.density.of += new.len() as u64;
        let (mut count, single) = self.find(old, new);
        let odd = old.len() % 2 == 1 && old.last() != new.last();
        self.density.changed += 2 * count as u64 + u64::from(odd);
        let is_of_steps = !odd && count > 0 && self.is_of_steps(old, new, single);
        // An element takes a byte for its gap, and its bytes.
        let width = if odd || 2 * single > count && !is_of_steps { 1 } else { 2 };
        if width == 1 && (odd || count > 0) {
            count = self.find_bytes(old, new);
        }
        let form = match count {
            0 => Form::Unchanged,
            _ if is_of_steps => {
                count = self.places.len();
                Form::Steps
            }
            _ => self.part(new, count, width),
        };
        let before = self.parts.len();
        match form {
            Form::Unchanged => {}
            Form::Whole => self.parts.extend_from_slice(new),
            Form::Places(_) | Form::Runs(_) | Form::Steps => {
                self.parts.extend_from_slice(&self.heads);
                self.values(new, count, width);
            }
        }
        form.number() << LENGTH_BITS | (self.parts.len() - before) as u32
    }

    /// Finds the elements of two bytes that have changed. Returns their number, and how many of them have changed in one byte.
    fn find(&mut self, old: &[u8], new: &[u8]) -> (usize, usize) {
        self.places.clear();
        let mut single = 0;
        let (old, new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
        let ((groups, _), (new_groups, _)) = (old.as_chunks::<GROUP>(), new.as_chunks::<GROUP>());
        let mut note = |at: usize| {
            self.places.push(at as u16);
            single += usize::from((old[at][0] != new[at][0]) != (old[at][1] != new[at][1]));
        };
        for (group, (old, new)) in groups.iter().zip(new_groups).enumerate() {
            let mut changed = changed(old, new);
            while changed != 0 {
                note(group * GROUP + changed.trailing_zeros() as usize);
                changed &= changed - 1;
            }
        }
        (groups.len() * GROUP..old.len()).filter(|at| old[*at] != new[*at]).for_each(note);
        (self.places.len(), single)
    }

    /// Takes the elements that have risen or fallen by one from the places, and writes into `heads` what stands in front of the values of the
    /// others. Returns false, and leaves the places as they are, if they are less than half of the elements, or another form is shorter.
    /// `single` elements have changed in one byte.
    fn is_of_steps(&mut self, old: &[u8], new: &[u8], single: usize) -> bool {
        let Encoder { places, steps, fallen, heads, .. } = self;
        let (old, new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
        let step = |place: &u16| {
            let at = usize::from(*place);
            u16::from_le_bytes(new[at]).wrapping_sub(u16::from_le_bytes(old[at]))
        };
        let is_step = |place: &u16| matches!(step(place), 1 | u16::MAX);
        // A few tell whether it is worth to look at all.
        let first = &places[..places.len().min(64)];
        if first.iter().filter(|place| is_step(place)).count() * 2 < first.len() {
            return false;
        }
        steps.clear();
        steps.extend(places.iter().filter(|place| is_step(place)));
        let runs = 1 + places.windows(2).filter(|pair| pair[1] - pair[0] != 1).count();
        let (skips, others, count) = (2 * (old.len() / usize::from(SKIP)), places.len() - steps.len(), places.len());
        let len = 12 + count + steps.len().div_ceil(8) + 2 * others;
        // At places, elements of two bytes or of one, and in runs. Gaps that skip elements are in all of them.
        let other = 4 + (3 * count).min(2 * (2 * count - single)).min(2 * runs + 2 * count);
        if others > steps.len() || len > other || len + skips >= 2 * new.len() {
            return false;
        }
        fallen.clear();
        fallen.resize(steps.len().div_ceil(8), 0);
        for (number, place) in steps.iter().enumerate() {
            fallen[number / 8] |= u8::from(step(place) != 1) << (number % 8);
        }
        places.retain(|place| !is_step(place));
        heads.clear();
        heads.extend_from_slice(&(steps.len() as u32).to_le_bytes());
        heads.extend_from_slice(&[0; 4]);
        gaps(heads, steps);
        let len = (heads.len() - 8) as u32;
        heads[4..8].copy_from_slice(&len.to_le_bytes());
        heads.extend_from_slice(fallen);
        heads.extend_from_slice(&(places.len() as u32).to_le_bytes());
        gaps(heads, places);
        true
    }

    /// As [`Encoder::find`], of bytes.
    fn find_bytes(&mut self, old: &[u8], new: &[u8]) -> usize {
        self.places.resize(BLOCK_BYTES, 0);
        let mut count = 0;
        for (place, (old, new)) in old.iter().zip(new).enumerate() {
            self.places[count] = place as u16;
            count += usize::from(old != new);
        }
        count
    }

    /// Writes what stands in front of the values into `heads`. Returns the form.
    fn part(&mut self, new: &[u8], count: usize, width: usize) -> Form {
        let Encoder { places, heads, .. } = self;
        let places = &places[..count];
        let runs = 1 + places.windows(2).filter(|pair| pair[1] - pair[0] != 1).count();
        heads.clear();
        // A run takes at least two bytes, an element at a place one.
        let form = if runs * 2 < count { Form::Runs(width) } else { Form::Places(width) };
        if form == Form::Places(width) {
            heads.extend_from_slice(&(count as u32).to_le_bytes());
            gaps(heads, places);
        } else {
            heads.extend_from_slice(&(runs as u32).to_le_bytes());
            let (mut next, mut rest) = (0, places);
            while let Some(first) = rest.first().map(|place| u32::from(*place)) {
                let len = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] == 1).count();
                leb128(heads, first - next);
                leb128(heads, len as u32);
                (next, rest) = (first + len as u32, &rest[len..]);
            }
        }
        if heads.len() + count * width < new.len() { form } else { Form::Whole }
    }

    fn values(&mut self, new: &[u8], count: usize, width: usize) {
        let Encoder { places, parts, .. } = self;
        if width == 1 {
            parts.extend(places[..count].iter().map(|place| new[usize::from(*place)]));
        } else {
            let (elements, _) = new.as_chunks::<2>();
            places[..count].iter().for_each(|place| parts.extend_from_slice(&elements[usize::from(*place)]));
        }
    }
}

/// The number of elements that are compared together.
const GROUP: usize = 64;

/// Returns a bit for each element of a group, which is set where it has changed. Nothing here branches on the bytes: which ones have
/// changed cannot be foretold. The compiler makes vectors of the comparison.
fn changed(old: &[[u8; 2]; GROUP], new: &[[u8; 2]; GROUP]) -> u64 {
    // Moves the lowest bits of the eight bytes of a word to its highest eight.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut differs = [0_u8; GROUP];
    for (differs, (old, new)) in differs.iter_mut().zip(old.iter().zip(new)) {
        *differs = u8::from(u16::from_le_bytes(*old) != u16::from_le_bytes(*new));
    }
    let (words, _) = differs.as_chunks();
    words.iter().rev().fold(0, |mask, word| mask << 8 | u64::from_le_bytes(*word).wrapping_mul(GATHER) >> 56)
}

/// Writes the gaps between places.
fn gaps(bytes: &mut Vec<u8>, places: &[u16]) {
    let mut next = 0;
    for place in places.iter().map(|place| u32::from(*place)) {
        let mut gap = place - next;
        while gap >= SKIP.into() {
            bytes.push(SKIP);
            gap -= u32::from(SKIP);
        }
        bytes.push(gap as u8);
        next = place + 1;
    }
}

fn leb128(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
