//! Parses unchecked headers.
//!
//! No part of a header is trusted: each length is compared with the file's before memory is allocated for it, and the
//! entries must describe every byte of the file exactly once.

use super::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA, dtype};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, Read};
use transfer_client::TensorMeta;

/// The most dimensions of a header's tensor; a tensor with more is refused before all of them are read.
const MAX_RANK: usize = 32;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name in the file.
    pub(crate) name: String,
    /// Element type and shape.
    pub(crate) meta: TensorMeta,
    /// The offset of its elements in the file, in bytes.
    pub(crate) offset: u64,
}

/// The contents of a header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its tensors, in the order of their elements.
    pub(crate) tensors: Vec<Entry>,
    /// Its metadata.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
}

/// The reason why a file is no safetensors file, or cannot be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadHeader {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The file is too short for a header.
    #[error("it has {file_bytes} bytes; a safetensors file has at least 10")]
    TooShort {
        /// The file's length in bytes.
        file_bytes: u64,
    },
    /// The announced length of the header exceeds the file, or the limit.
    #[error(
        "its first 8 bytes say that its header has {header_bytes} bytes; at most {most} are possible in a file of {file_bytes}"
    )]
    HeaderLength {
        /// The announced length.
        header_bytes: u64,
        /// The greatest possible length.
        most: u64,
        /// The file's length in bytes.
        file_bytes: u64,
    },
    /// The header is not valid JSON of this form.
    #[error("invalid safetensors header: {0}")]
    Json(#[source] serde_json::Error),
    /// A tensor has an element type without a counterpart here.
    #[error(
        "its tensor {name:?} has the element type {dtype}, which cannot be published; convert it to one of {known}"
    )]
    DType {
        /// The tensor.
        name: String,
        /// The element type.
        dtype: String,
        /// The types that can be published.
        known: String,
    },
    /// The shape of a tensor is not valid.
    #[error("its tensor {name:?}: {why}")]
    Shape {
        /// The tensor.
        name: String,
        /// The reason.
        why: String,
    },
    /// A tensor's place in the file does not fit its shape.
    #[error("its tensor {name:?} is {meta} of {expected} bytes, and its data_offsets {start} to {end} are {found}")]
    Length {
        /// The tensor.
        name: String,
        /// Its description.
        meta: Box<TensorMeta>,
        /// Its length, in bytes.
        expected: u64,
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
        /// The length between, in words.
        found: String,
    },
    /// Tensors overlap, or leave a hole.
    #[error(
        "its tensor {name:?} starts at {start}, and the one before it ends at {expected}: they overlap, or leave a hole"
    )]
    Place {
        /// The tensor.
        name: String,
        /// Its start.
        start: u64,
        /// The expected start.
        expected: u64,
    },
    /// The tensors do not fill the file.
    #[error("its tensors have {expected} bytes, and {found} lie behind its header: was it written to its end?")]
    Rest {
        /// The length by the header.
        expected: u64,
        /// The actual length.
        found: u64,
    },
}

/// Reads the header at the beginning of a file of `file_bytes`, and no byte after it.
pub(crate) fn read(file: &mut impl Read, file_bytes: u64) -> Result<Header, BadHeader> {
    let mut length = [0; LENGTH_BYTES as usize];
    if file_bytes < LENGTH_BYTES + 2 {
        return Err(BadHeader::TooShort { file_bytes });
    }
    file.read_exact(&mut length).map_err(BadHeader::Read)?;
    let (header_bytes, most) = (u64::from_le_bytes(length), (file_bytes - LENGTH_BYTES).min(MAX_HEADER_BYTES));
    if header_bytes > most {
        return Err(BadHeader::HeaderLength { header_bytes, most, file_bytes });
    }
    // Fits: it is at most 100 MB.
    let mut text = vec![0; header_bytes as usize];
    file.read_exact(&mut text).map_err(BadHeader::Read)?;
    let bodies = LENGTH_BYTES + header_bytes;
    let said: Said = serde_json::from_slice(&text).map_err(BadHeader::Json)?;
    drop(text);
    let Said { mut tensors, metadata } = said;
    // Empty tensors start where another one does.
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut at = 0;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        let meta = describe(&name, &info)?;
        let expected = meta.len_bytes();
        let len = end.checked_sub(start);
        if len != Some(expected) {
            let found = len.map_or_else(|| "backwards".to_owned(), |n| format!("{n} bytes apart"));
            return Err(BadHeader::Length { name, meta: Box::new(meta), expected, start, end, found });
        }
        if start != at {
            return Err(BadHeader::Place { name, start, expected: at });
        }
        at = end;
        // This cannot overflow for a file of the right length; any other is refused below.
        entries.push(Entry { name, meta, offset: bodies.saturating_add(start) });
    }
    match file_bytes - bodies {
        found if found == at => Ok(Header { tensors: entries, metadata }),
        found => Err(BadHeader::Rest { expected: at, found }),
    }
}

fn describe(name: &str, info: &Info) -> Result<TensorMeta, BadHeader> {
    let Some(dtype) = dtype::of(&info.dtype) else {
        let known = transfer_client::DType::ALL.into_iter().filter_map(dtype::name).collect::<Vec<_>>().join(", ");
        return Err(BadHeader::DType { name: name.to_owned(), dtype: info.dtype.clone(), known });
    };
    TensorMeta::of(dtype, &info.shape.0).map_err(|why| BadHeader::Shape { name: name.to_owned(), why: why.to_string() })
}

/// The header as it is written. A duplicate name is an error.
struct Said {
    tensors: Vec<(String, Info)>,
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Dims,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Said, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Said;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
                let (mut said, mut seen) = (Said { tensors: Vec::new(), metadata: None }, HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("the name {name:?} stands there twice")));
                    }
                    match name == METADATA {
                        true => said.metadata = Some(map.next_value()?),
                        false => said.tensors.push((name, map.next_value()?)),
                    }
                }
                Ok(said)
            }
        }
        from.deserialize_map(Names)
    }
}

/// Dimensions, at most [`MAX_RANK`].
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Dims, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_RANK} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format_args!("a shape has more than {MAX_RANK} dimensions")));
                    }
                    dims.push(dim);
                }
                Ok(Dims(dims))
            }
        }
        from.deserialize_seq(Numbers)
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
