//! Writing and reading little-endian fields.

use crate::tensor::{DType, InvalidName, InvalidShape, MAX_RANK, MetaParts, TensorMeta};

/// Bytes from outside that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("{what} is cut short: {need} more bytes expected, {have} left")]
    Short {
        /// What was being read.
        what: &'static str,
        /// Bytes that the next field needs.
        need: usize,
        /// Bytes left.
        have: usize,
    },
    /// Bytes are left over.
    #[error("{what} has {extra} bytes too many")]
    Long {
        /// What was being read.
        what: &'static str,
        /// How many.
        extra: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{what} is {value}, expected {expected}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it holds.
        value: u64,
        /// What would be right.
        expected: &'static str,
    },
    /// The checksum does not fit the bytes.
    #[error("{what} has checksum {found:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// What was being read.
        what: &'static str,
        /// As sent.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// A key or name that cannot be.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A shape that cannot be.
    #[error(transparent)]
    Shape(#[from] InvalidShape),
}

/// The bit beside a rank that says that the length of the metadata follows the dimensions.
const WITH_METADATA: u8 = 0x80;

/// Appends little-endian fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty one.
    #[must_use]
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Writes into `bytes`, which is cleared first: its memory is used again.
    #[must_use]
    pub fn reusing(mut bytes: Vec<u8>) -> Writer {
        bytes.clear();
        Writer { bytes }
    }

    /// One byte.
    pub fn u8(&mut self, v: u8) -> &mut Writer {
        self.bytes.push(v);
        self
    }

    /// Two bytes.
    pub fn u16(&mut self, v: u16) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Four bytes.
    pub fn u32(&mut self, v: u32) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Eight bytes.
    pub fn u64(&mut self, v: u64) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Bytes as they are.
    pub fn raw(&mut self, v: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(v);
        self
    }

    /// A 16-bit length and the bytes. Longer texts are cut at a character's edge.
    pub fn text(&mut self, v: &str) -> &mut Writer {
        let mut end = v.len().min(usize::from(u16::MAX));
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(u16::try_from(end).unwrap_or(u16::MAX));
        self.raw(&v.as_bytes()[..end])
    }

    /// Element type, rank, dimensions; then how much metadata lies in front of the body, where there is some.
    pub fn meta(&mut self, v: &TensorMeta) -> &mut Writer {
        let MetaParts { dtype, dims, metadata_bytes } = v.parts();
        let metadata = if metadata_bytes > 0 { WITH_METADATA } else { 0 };
        self.u8(dtype as u8);
        self.u8(u8::try_from(dims.len()).unwrap_or(u8::MAX) | metadata);
        for d in dims {
            self.u64(*d);
        }
        if metadata_bytes > 0 {
            self.u32(metadata_bytes);
        }
        self
    }

    /// The bytes so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Overwrites four bytes at `at`, which must have been written before.
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Overwrites two bytes at `at`, which must have been written before.
    pub fn patch_u16(&mut self, at: usize, v: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// The buffer.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes little-endian fields from bytes that nobody vouches for.
#[derive(Debug)]
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; `what` names them in errors.
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { what, rest: bytes }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn raw(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(n) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(WireError::Short { what: self.what, need: n, have: self.rest.len() }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N)?);
        Ok(out)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// One byte that says yes or no; `what` names it.
    ///
    /// # Errors
    /// [`WireError::Short`], [`WireError::Value`] for anything but 0 and 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(WireError::Value { what, value: u64::from(n), expected: "0 or 1" }),
        }
    }

    /// Refuses a field that has no meaning here and is not zero.
    ///
    /// # Errors
    /// [`WireError::Value`].
    pub(super) fn zero(what: &'static str, value: u64) -> Result<(), WireError> {
        if value == 0 { Ok(()) } else { Err(WireError::Value { what, value, expected: "0" }) }
    }

    /// The bytes of a text: a 16-bit length, then as many bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn text(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u16()?;
        self.raw(usize::from(len))
    }

    /// Element type, rank, dimensions.
    ///
    /// # Errors
    /// [`WireError`] for an unknown element type, too high a rank, or a size that does not fit.
    pub fn meta(&mut self) -> Result<TensorMeta, WireError> {
        let n = self.u8()?;
        let dtype = DType::from_wire(n).ok_or(WireError::Value {
            what: "element type",
            value: u64::from(n),
            expected: "1 to 16",
        })?;
        let rank = self.u8()?;
        let (has_metadata, rank) = (rank & WITH_METADATA != 0, usize::from(rank & !WITH_METADATA));
        if rank > MAX_RANK {
            return Err(InvalidShape::RankTooHigh { rank }.into());
        }
        let mut dims = [0; MAX_RANK];
        for d in &mut dims[..rank] {
            *d = self.u64()?;
        }
        let metadata_bytes = if has_metadata { self.u32()? } else { 0 };
        if has_metadata && metadata_bytes == 0 {
            let what = "length of the metadata in front of a tensor";
            return Err(WireError::Value { what, value: 0, expected: "above 0, or not there" });
        }
        Ok(TensorMeta::from_parts(&MetaParts { dtype, dims: &dims[..rank], metadata_bytes })?)
    }

    /// What is left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends the reading: nothing may be left.
    ///
    /// # Errors
    /// [`WireError::Long`].
    pub fn end(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::Long { what: self.what, extra }),
        }
    }
}
