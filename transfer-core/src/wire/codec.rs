//! Writing and reading little-endian fields.

use crate::tensor::{
    DType, InvalidExcerpt, InvalidGathered, InvalidName, InvalidShape, MAX_RANK, MetaParts, TensorMeta,
};

/// The error for malformed bytes from another process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("{what} is cut short: {need} more bytes expected, {have} left")]
    Short {
        /// The thing that was being read.
        what: &'static str,
        /// The number of bytes that the next field needs.
        need: usize,
        /// The number of bytes left.
        have: usize,
    },
    /// Bytes are left over.
    #[error("{what} has {extra} bytes too many")]
    Long {
        /// The thing that was being read.
        what: &'static str,
        /// The number of bytes left over.
        extra: usize,
    },
    /// A field has a value that is not allowed.
    #[error("{what} is {value}, expected {expected}")]
    Value {
        /// The field.
        what: &'static str,
        /// The value of the field.
        value: u64,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The checksum does not match the bytes.
    #[error("{what} has checksum {found:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// The thing that was being read.
        what: &'static str,
        /// The checksum that was sent.
        found: u32,
        /// The checksum that was computed.
        computed: u32,
    },
    /// A key or name is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A shape is not valid.
    #[error(transparent)]
    Shape(#[from] InvalidShape),
    /// The ranges of an excerpt are not valid.
    #[error(transparent)]
    Excerpt(#[from] InvalidExcerpt),
    /// Parts cannot be asked for together.
    #[error(transparent)]
    Gathered(#[from] InvalidGathered),
}

/// A bit beside the rank. If it is set, the length of the metadata follows the dimensions.
const WITH_METADATA: u8 = 0x80;

/// Appends little-endian fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates an empty writer.
    #[must_use]
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Clears `bytes` and writes into it, so that its memory is reused.
    #[must_use]
    pub fn reusing(mut bytes: Vec<u8>) -> Writer {
        bytes.clear();
        Writer { bytes }
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) -> &mut Writer {
        self.bytes.push(v);
        self
    }

    /// Appends two bytes.
    pub fn u16(&mut self, v: u16) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Appends four bytes.
    pub fn u32(&mut self, v: u32) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, v: u64) -> &mut Writer {
        self.bytes.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Appends bytes unchanged.
    pub fn raw(&mut self, v: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(v);
        self
    }

    /// Appends a 16-bit length and the bytes of a text. A text above 65,535 bytes is cut at a character boundary.
    pub fn text(&mut self, v: &str) -> &mut Writer {
        let mut end = v.len().min(usize::from(u16::MAX));
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(u16::try_from(end).unwrap_or(u16::MAX));
        self.raw(&v.as_bytes()[..end])
    }

    /// Appends element type, rank and dimensions, then the length of the metadata in front of the body, if there is
    /// any.
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

    /// Returns the bytes written so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Overwrites the four bytes at `at`. They must have been written before.
    pub fn patch_u32(&mut self, at: usize, v: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Overwrites the two bytes at `at`. They must have been written before.
    pub fn patch_u16(&mut self, at: usize, v: u16) {
        if let Some(place) = self.bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Returns the buffer.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads little-endian fields from untrusted bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`. Errors name the bytes as `what`.
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { what, rest: bytes }
    }

    /// Reads the next `n` bytes.
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

    /// Reads one byte.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads two bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads one byte as a boolean. Errors name it as `what`.
    ///
    /// # Errors
    /// [`WireError::Short`]; [`WireError::Value`] for any byte except 0 and 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(WireError::Value { what, value: u64::from(n), expected: "0 or 1" }),
        }
    }

    /// Refuses a field that must be zero here and is not.
    ///
    /// # Errors
    /// [`WireError::Value`].
    pub(super) fn zero(what: &'static str, value: u64) -> Result<(), WireError> {
        if value == 0 { Ok(()) } else { Err(WireError::Value { what, value, expected: "0" }) }
    }

    /// Reads the bytes of a text: a 16-bit length, then that number of bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn text(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u16()?;
        self.raw(usize::from(len))
    }

    /// Reads element type, rank and dimensions, then the length of the metadata in front of the body, if the rank's
    /// byte says so.
    ///
    /// # Errors
    /// [`WireError`] for an unknown element type, a rank that is too high, a size that does not fit, or a metadata
    /// length of 0.
    pub fn meta(&mut self) -> Result<TensorMeta, WireError> {
        let n = self.u8()?;
        let dtype = DType::from_wire(n).ok_or(WireError::Value {
            what: "element type",
            value: u64::from(n),
            expected: "1 to 21",
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

    /// Returns the bytes that are not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends the reading. No bytes may be left.
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
