//! How the rows of a schema lie in a block: which buffers there are, and where each begins in a block of a given size.

use crate::block::{ALIGNMENT, HEADER_BYTES, record_batch_message};
use arrow_schema::{DataType, Schema};

/// The number of rows for which a block has room at least, unless their values of fixed width are too long for it.
const FEWEST_ROWS: usize = 16;

/// Sizes of blocks are multiples of a page.
const PAGE: usize = 4096;

/// One buffer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The numbers of the rows. Arrow does not know of them.
    RowNumbers,
    /// The validity bits of a node. A field that is never null has none: its buffer is listed, and empty.
    Validity { node: usize, per_row: usize, is_nullable: bool },
    /// Values of a fixed width in bytes.
    Fixed { width: usize },
    /// Booleans.
    Bits { per_row: usize },
    /// Offsets of so many bytes into the `Data` that follows, which has this index.
    Offsets { width: usize, data: usize },
    /// Views, whose longer values are in the `Data` that follows, which has this index.
    Views { data: usize },
    /// Bytes, as many as the rows have.
    Data { index: usize },
}

/// The width of a view, in bytes.
pub(super) const VIEW_BYTES: usize = 16;

impl Slot {
    /// The length of the buffer with so many rows. That of `Data` is not known from the rows.
    pub(super) fn len(self, rows: usize) -> usize {
        match self {
            Slot::RowNumbers => rows * 4,
            Slot::Validity { is_nullable: false, .. } | Slot::Data { .. } => 0,
            Slot::Validity { per_row, .. } | Slot::Bits { per_row } => (rows * per_row).div_ceil(8),
            Slot::Fixed { width } => rows * width,
            Slot::Offsets { width, .. } => (rows + 1) * width,
            Slot::Views { .. } => rows * VIEW_BYTES,
        }
    }

    fn bits_per_row(self) -> usize {
        match self {
            Slot::RowNumbers => 32,
            Slot::Validity { is_nullable: false, .. } | Slot::Data { .. } => 0,
            Slot::Validity { per_row, .. } | Slot::Bits { per_row } => per_row,
            Slot::Fixed { width } | Slot::Offsets { width, .. } => width * 8,
            Slot::Views { .. } => VIEW_BYTES * 8,
        }
    }
}

/// The buffers of a schema's blocks, in the order in which an Arrow message lists them, behind the row numbers.
#[derive(Debug)]
pub(super) struct Layout {
    slots: Vec<Slot>,
    /// The arrays, in the message's order: the number of values that each has per row.
    nodes: Vec<usize>,
    /// The number of `Data` slots.
    data: usize,
    /// The number of arrays of views.
    views: usize,
    /// The length of the message, in bytes.
    message_len: usize,
    bits_per_row: usize,
}

/// Where the buffers of one block lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// The number of rows that the block has room for.
    pub(super) rows: usize,
    /// The start of each slot.
    pub(super) starts: Vec<usize>,
    /// The room of each `Data` slot, in bytes.
    pub(super) room: Vec<usize>,
    /// The length of the block.
    pub(super) size: usize,
}

impl Layout {
    /// Makes the layout of a schema. `None` if it has a type whose rows are not copied into a block one by one.
    pub(super) fn new(schema: &Schema) -> Option<Layout> {
        let mut layout = Layout {
            slots: vec![Slot::RowNumbers],
            nodes: Vec::new(),
            data: 0,
            views: 0,
            message_len: 0,
            bits_per_row: 0,
        };
        schema.fields().iter().try_for_each(|f| layout.add(f.data_type(), f.is_nullable(), 1))?;
        layout.bits_per_row = layout.slots.iter().map(|slot| slot.bits_per_row()).sum();
        // Numbers that are 0 take no room in a message.
        let (nodes, buffers) = (vec![(1, 1); layout.nodes.len()], vec![(1, 1); layout.slots.len() - 1]);
        layout.message_len = record_batch_message(1, &nodes, &buffers, &vec![1; layout.views], 1).len();
        Some(layout)
    }

    fn add(&mut self, data_type: &DataType, is_nullable: bool, per_row: usize) -> Option<()> {
        let node = self.nodes.len();
        self.nodes.push(per_row);
        if *data_type == DataType::Null {
            return Some(());
        }
        self.slots.push(Slot::Validity { node, per_row, is_nullable });
        let fixed =
            |width: usize| width.checked_mul(per_row).filter(|width| *width > 0).map(|width| Slot::Fixed { width });
        match data_type {
            DataType::Boolean => self.slots.push(Slot::Bits { per_row }),
            DataType::FixedSizeBinary(width) => self.slots.push(fixed(usize::try_from(*width).ok()?)?),
            DataType::FixedSizeList(field, size) => {
                let per_row = usize::try_from(*size).ok()?.checked_mul(per_row).filter(|per_row| *per_row > 0)?;
                self.add(field.data_type(), field.is_nullable(), per_row)?;
            }
            DataType::Struct(fields) => {
                fields.iter().try_for_each(|f| self.add(f.data_type(), f.is_nullable(), per_row))?;
            }
            DataType::Utf8 | DataType::Binary if per_row == 1 => self.add_data(|data| Slot::Offsets { width: 4, data }),
            DataType::LargeUtf8 | DataType::LargeBinary if per_row == 1 => {
                self.add_data(|data| Slot::Offsets { width: 8, data })
            }
            DataType::Utf8View | DataType::BinaryView if per_row == 1 => {
                self.views += 1;
                self.add_data(|data| Slot::Views { data });
            }
            DataType::Dictionary(..) => return None,
            primitive => self.slots.push(fixed(primitive.primitive_width()?)?),
        }
        Some(())
    }

    fn add_data(&mut self, places: fn(usize) -> Slot) {
        self.slots.extend([places(self.data), Slot::Data { index: self.data }]);
        self.data += 1;
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// The number of `Data` slots.
    pub(super) fn data(&self) -> usize {
        self.data
    }

    pub(super) fn views(&self) -> usize {
        self.views
    }

    /// The length of the message, and the start of the first slot.
    pub(super) fn message_len(&self) -> usize {
        self.message_len
    }

    /// The bytes that so many rows need without those of `Data`, about.
    pub(super) fn bytes_of_rows(&self, rows: usize) -> usize {
        self.overhead().saturating_add((rows as u128 * self.bits_per_row as u128 / 8) as usize)
    }

    /// The bytes of a block besides its rows, at most.
    pub(super) fn overhead(&self) -> usize {
        HEADER_BYTES + self.message_len + (self.slots.len() + 1) * (ALIGNMENT + 8)
    }

    /// Makes the shape of a block of `target` bytes, for rows that have about `mean` bytes in each `Data`, and of which
    /// the first has `first`. The block has room for that one, even if it has to be larger for it.
    pub(super) fn shape(&self, target: usize, mean: &[usize], first: &[usize]) -> Shape {
        // A few very long values do not make a block for each row.
        let most = target / FEWEST_ROWS / mean.len().max(1);
        let mean: Vec<usize> = mean.iter().map(|bytes| *bytes.min(&most)).collect();
        let bits = self.bits_per_row as u128 + mean.iter().map(|bytes| *bytes as u128 * 8).sum::<u128>();
        let room = target.saturating_sub(self.overhead()) as u128 * 8;
        let mut rows = (room / bits.max(1)).min(u128::from(u32::MAX)).max(1) as usize;
        loop {
            let room = first.iter().zip(&mean).map(|(first, mean)| rows.saturating_mul(*mean).max(*first)).collect();
            let shape = self.place(rows, room, target);
            if shape.size <= target || rows == 1 {
                break shape;
            }
            rows /= 2;
        }
    }

    /// Places the buffers. What is left of `target` is divided among those whose lengths are only estimated.
    fn place(&self, rows: usize, mut room: Vec<usize>, target: usize) -> Shape {
        let (starts, end) = self.starts(rows, &room);
        if room.is_empty() || end >= target {
            let size = end.next_multiple_of(PAGE);
            return Shape { rows, starts, room, size };
        }
        let more = (target - end) / room.len() / ALIGNMENT * ALIGNMENT;
        room.iter_mut().for_each(|room| *room += more);
        let (starts, end) = self.starts(rows, &room);
        Shape { rows, starts, room, size: end.next_multiple_of(PAGE) }
    }

    fn starts(&self, rows: usize, room: &[usize]) -> (Vec<usize>, usize) {
        let mut at = HEADER_BYTES + self.message_len.next_multiple_of(ALIGNMENT);
        let starts = self.slots.iter().map(|slot| {
            let start = at;
            let len = match slot {
                Slot::Data { index } => room[*index],
                other => other.len(rows),
            };
            at = start.saturating_add(len).next_multiple_of(ALIGNMENT);
            start
        });
        (starts.collect(), at)
    }
}
