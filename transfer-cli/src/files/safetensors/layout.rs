//! The layout of an output file: its header, and the places of its tensors.

use super::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA, dtype};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use transfer_client::TensorMeta;

/// The alignment that a reader of the file may want; the format's own library pads headers to as much.
const ALIGNMENT: usize = 8;

/// The layout of an output file.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The file's first bytes, up to the first element.
    pub(crate) head: Vec<u8>,
    /// The offset of each tensor's elements from the file's start, in bytes; in the order of the arguments.
    pub(crate) offsets: Vec<u64>,
    /// The length of the whole file.
    pub(crate) file_bytes: u64,
}

impl Layout {
    /// Makes the layout. Tensors with the longest elements come first, as in the format's own library, so that all of
    /// them are aligned.
    pub(crate) fn of(
        tensors: &[(String, TensorMeta)],
        metadata: Option<&BTreeMap<String, String>>,
    ) -> io::Result<Layout> {
        let no = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(tensors[*i].1.dtype().size_bytes()), &tensors[*i].0));
        let mut header = Map::new();
        if let Some(metadata) = metadata {
            header.insert(METADATA.to_owned(), json!(metadata));
        }
        let (mut at, mut offsets) = (0u64, vec![0; tensors.len()]);
        for i in order {
            let (name, meta) = &tensors[i];
            let dtype = dtype::name(meta.dtype())
                .ok_or_else(|| no(format!("{name:?} is {meta}: the format has no such element type")))?;
            let end = at.checked_add(meta.len_bytes()).ok_or_else(|| no("2^64 bytes are too many".to_owned()))?;
            let entry: Value = json!({ "dtype": dtype, "shape": meta.shape().dims(), "data_offsets": [at, end] });
            if header.insert(name.clone(), entry).is_some() || name == METADATA {
                return Err(no(format!("two tensors would have the name {name:?}")));
            }
            offsets[i] = at;
            at = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
        if text.len() as u64 > MAX_HEADER_BYTES {
            return Err(no(format!("its header would have {} bytes, and {MAX_HEADER_BYTES} are possible", text.len())));
        }
        let bodies = LENGTH_BYTES + text.len() as u64;
        let head = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        offsets.iter_mut().for_each(|offset| *offset += bodies);
        Ok(Layout { head, offsets, file_bytes: bodies + at })
    }
}

/// Parses the metadata that was published with a file's tensors.
pub(crate) fn parse_metadata(bytes: &[u8]) -> Result<BTreeMap<String, String>, serde_json::Error> {
    serde_json::from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_client::DType;

    #[test]
    fn layouts_are_read_back_here_and_by_the_library() {
        let tensors: Vec<_> = DType::ALL
            .into_iter()
            .enumerate()
            .map(|(i, dtype)| (format!("t/\"{i}\"/ü"), TensorMeta::of(dtype, &[i as u64, 6]).unwrap()))
            .filter(|(_, meta)| dtype::name(meta.dtype()).is_some())
            .chain([("scalar".to_owned(), TensorMeta::of(DType::F64, &[]).unwrap())])
            .collect();
        let metadata = BTreeMap::from([("format".to_owned(), "pt \"x\"".to_owned())]);
        let layout = Layout::of(&tensors, Some(&metadata)).unwrap();
        assert!(layout.head.len().is_multiple_of(8));
        let mut file = layout.head.clone();
        file.resize(layout.file_bytes as usize, 0);
        for ((i, (_, meta)), at) in tensors.iter().enumerate().zip(&layout.offsets) {
            assert!(at.is_multiple_of(meta.dtype().size_bytes()), "{meta} is aligned");
            file[*at as usize..][..meta.len_bytes() as usize].fill(i as u8 + 1);
        }
        let ours = super::super::read(&mut &file[..], file.len() as u64).unwrap();
        assert_eq!(ours.metadata.as_ref(), Some(&metadata));
        let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!((theirs.len(), ours.tensors.len()), (tensors.len(), tensors.len()));
        for (i, (name, meta)) in tensors.iter().enumerate() {
            let entry = ours.tensors.iter().find(|entry| entry.name == *name).unwrap();
            assert_eq!((&entry.meta, entry.offset), (meta, layout.offsets[i]));
            assert!(theirs.tensor(name).unwrap().data().iter().all(|byte| *byte == i as u8 + 1));
        }
    }

    #[test]
    fn impossible_layouts_are_errors() {
        let u8s = |name: &str| (name.to_owned(), TensorMeta::of(DType::U8, &[1]).unwrap());
        let wide = vec![("z".to_owned(), TensorMeta::of(DType::C128, &[1]).unwrap())];
        let tables = [
            (vec![u8s("a"), u8s("a")], "\"a\""),
            (vec![u8s(METADATA)], METADATA),
            (wide, "\"z\" is c128[1]: the format has no such element type"),
        ];
        for (tensors, word) in tables {
            let said = Layout::of(&tensors, None).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
