//! Batches, made of messages: each message is checked, and its dictionaries are kept for later messages.

use super::arrays::Arrays;
use super::encode::CONTINUATION;
use super::schema::{check_schema, dictionary_id};
use super::{ALIGNMENT, BatchError, MAX_DEPTH};
use crate::gathered::Body;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_ipc::{DictionaryBatch, Message, MetadataVersion, root_as_message_with_opts};
use arrow_schema::{DataType, Field, SchemaRef};
use flatbuffers::VerifierOptions;
use std::collections::HashMap;
use std::sync::Arc;
use transfer_core::wire::digests::MARK;

/// The limit of tables in the flatbuffer of one message: a field with its type is two. A small flatbuffer can refer to
/// one table many times, so this bounds the cost of a small message.
const MAX_TABLES: usize = 1 << 16;

/// The state of decoding: of one push, or of the pushes of a stream so far.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    schema: Option<Arc<Known>>,
    dictionaries: HashMap<i64, ArrayRef>,
}

#[derive(Debug)]
struct Known {
    schema: SchemaRef,
    /// The message as it was sent.
    message: Buffer,
    /// The values of each dictionary.
    dictionaries: HashMap<i64, DataType>,
}

/// The result of one push.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
    /// Whether it was the last of its stream.
    pub(super) ended: bool,
}

/// What of the metadata is behind the messages, or what is no message.
pub(super) fn behind_messages(metadata: &[u8]) -> &[u8] {
    let mut rest = metadata;
    while let Some((prefix, after)) = rest.split_first_chunk::<8>()
        && let ([marker @ .., _, _, _, _], [_, _, _, _, len @ ..]) = (prefix, prefix)
        && *marker == CONTINUATION
        && let Some((_, after)) = after.split_at_checked(u32::from_le_bytes(*len) as usize)
    {
        rest = after;
    }
    rest
}

/// The length of the bodies of all messages of the metadata, as they say it.
pub(super) fn body_len(metadata: &[u8]) -> Result<u64, BatchError> {
    let (mut rest, mut sum) = (metadata, 0_u64);
    while let Some((prefix, after)) = rest.split_first_chunk::<8>()
        && let ([marker @ .., _, _, _, _], [_, _, _, _, len @ ..]) = (prefix, prefix)
        && *marker == CONTINUATION
        && let Some((bytes, after)) = after.split_at_checked(u32::from_le_bytes(*len) as usize)
    {
        rest = after;
        if bytes.is_empty() {
            break;
        }
        let len = message_of(&Buffer::from(bytes))?.bodyLength();
        let end = u64::try_from(len).ok().and_then(|len| sum.checked_add(len)).filter(|end| *end < 1 << 63);
        let (what, expected) = ("the length of a body", "0 or more, and less than 2^63 together");
        sum = end.ok_or(BatchError::Metadata { what, found: len, expected })?;
    }
    Ok(sum)
}

/// Reads a message, whose bytes are aligned.
fn message_of(bytes: &Buffer) -> Result<Message<'_>, BatchError> {
    let options =
        VerifierOptions { max_depth: 2 * MAX_DEPTH + 8, max_tables: MAX_TABLES, ..VerifierOptions::default() };
    root_as_message_with_opts(&options, bytes)
        .map_err(|e| BatchError::Arrow { what: "a message of the batches' metadata", why: e.to_string() })
}

impl Decoder {
    /// A decoder of other messages with the same schema, which do not have to repeat it.
    pub(crate) fn again(&self) -> Decoder {
        Decoder { schema: self.schema.clone(), dictionaries: HashMap::new() }
    }

    pub(crate) fn decode(&mut self, body: &Body) -> Result<Decoded, BatchError> {
        let mut rest = &body.metadata[..];
        let (mut batches, mut ended, mut at) = (Vec::new(), false, 0);
        while let Some((prefix, after)) = rest.split_first_chunk::<8>() {
            if rest.starts_with(&MARK) {
                // The digests are the reader's business.
                rest = &[];
                break;
            }
            let ([marker @ .., _, _, _, _], [_, _, _, _, len @ ..]) = (prefix, prefix);
            let len = u32::from_le_bytes(*len) as usize;
            if *marker != CONTINUATION {
                let (what, found) = ("the marker in front of a message", i64::from(u32::from_le_bytes(*marker)));
                return Err(BatchError::Metadata { what, found, expected: "0xffffffff" });
            }
            ended = len == 0;
            if ended {
                rest = after;
                break;
            }
            let (message, after) = after.split_at_checked(len).ok_or(BatchError::Cut { missing: "a message" })?;
            rest = after;
            // A copy, because flatbuffers must be aligned.
            let message = Buffer::from(message);
            at += self.message(&message, body, at, &mut batches)?;
        }
        if !rest.is_empty() {
            let (what, found) = ("what is left behind the last message", rest.len() as i64);
            return Err(BatchError::Metadata { what, found, expected: "nothing" });
        }
        if at != body.len {
            let (what, found) = ("the sum of all bodies", at as i64);
            return Err(BatchError::Metadata { what, found, expected: "the length of what was pushed" });
        }
        let known = self.schema.as_ref().ok_or(BatchError::Cut { missing: "a schema" })?;
        Ok(Decoded { schema: known.schema.clone(), batches, ended })
    }

    /// Decodes one message, whose body starts at `at`. Returns the length of the body.
    fn message(
        &mut self,
        bytes: &Buffer,
        body: &Body,
        at: u64,
        batches: &mut Vec<RecordBatch>,
    ) -> Result<u64, BatchError> {
        if self.schema.as_ref().is_some_and(|known| known.message == *bytes) {
            return Ok(0);
        }
        let message = message_of(bytes)?;
        if message.version() != MetadataVersion::V5 {
            let (what, found) = ("the version", i64::from(message.version().0));
            return Err(BatchError::Metadata { what, found, expected: "4, which is V5" });
        }
        let len = u64::try_from(message.bodyLength()).ok().filter(|len| len.is_multiple_of(ALIGNMENT as u64));
        let len = len.filter(|len| at.checked_add(*len).is_some_and(|end| end <= body.len));
        let Some(len) = len else {
            let (what, found) = ("the length of a body", message.bodyLength());
            return Err(BatchError::Metadata { what, found, expected: "a multiple of 64 within what was pushed" });
        };
        if message.header_as_schema().is_some() {
            self.take_schema(&message, bytes)?;
            return Ok(len);
        }
        let Some(known) = &self.schema else { return Err(BatchError::Cut { missing: "a schema" }) };
        if let Some(batch) = message.header_as_dictionary_batch() {
            let (id, values) = dictionary(known, &self.dictionaries, &batch, body, (at, len))?;
            self.take_dictionary(id, batch.isDelta(), values)?;
        } else if let Some(batch) = message.header_as_record_batch() {
            let mut arrays = Arrays::new(&batch, body, (at, len), &self.dictionaries)?;
            let columns =
                known.schema.fields().iter().map(|field| arrays.array(field)).collect::<Result<Vec<_>, _>>()?;
            arrays.end()?;
            let options = RecordBatchOptions::new().with_row_count(Some(arrays.rows));
            let made = RecordBatch::try_new_with_options(known.schema.clone(), columns, &options);
            batches.push(made.map_err(BatchError::arrow("a record batch"))?);
        } else {
            let (what, found) = ("the kind of a message", i64::from(message.header_type().0));
            return Err(BatchError::Metadata { what, found, expected: "schema, dictionary or record batch" });
        }
        Ok(len)
    }

    fn take_schema(&mut self, message: &Message<'_>, bytes: &Buffer) -> Result<(), BatchError> {
        let schema = message.header_as_schema().ok_or(BatchError::Cut { missing: "a schema" })?;
        if !schema.endianness().equals_to_target_endianness() {
            let (what, found) = ("the order of bytes", i64::from(schema.endianness().0));
            return Err(BatchError::Metadata { what, found, expected: "that of this machine" });
        }
        let schema = arrow_ipc::convert::try_fb_to_schema(schema).map_err(BatchError::arrow("the schema"))?;
        check_schema(&schema)?;
        if let Some(known) = &self.schema {
            let (expected, found) = (known.schema.to_string(), schema.to_string());
            return match *known.schema == schema {
                true => Ok(()),
                false => Err(BatchError::OtherSchema { expected, found }),
            };
        }
        let mut dictionaries = HashMap::new();
        schema.fields().iter().try_for_each(|field| name_dictionaries(field, &mut dictionaries))?;
        let known = Known { schema: Arc::new(schema), message: bytes.clone(), dictionaries };
        self.schema = Some(Arc::new(known));
        Ok(())
    }

    fn take_dictionary(&mut self, id: i64, is_delta: bool, values: ArrayRef) -> Result<(), BatchError> {
        let values = match self.dictionaries.get(&id).filter(|_| is_delta) {
            Some(before) if !can_be_joined(&before.to_data(), &values.to_data()) => {
                let (what, found) = ("the length of a dictionary that was added to", id);
                return Err(BatchError::Metadata { what, found, expected: "one that its offsets can tell" });
            }
            Some(before) => arrow_select::concat::concat(&[before, &values])
                .map_err(BatchError::arrow("a dictionary that was added to"))?,
            None if is_delta => {
                let what = "the number of a dictionary that is added to";
                return Err(BatchError::Metadata { what, found: id, expected: "one that was sent before" });
            }
            None => values,
        };
        self.dictionaries.insert(id, values);
        Ok(())
    }
}

/// Whether the concatenation of both fits 32-bit offsets. Arrow panics if it does not, and wrong offsets can claim much
/// with few bytes.
fn can_be_joined(a: &ArrayData, b: &ArrayData) -> bool {
    let span = |data: &ArrayData| match data.data_type() {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) if !data.is_empty() => {
            let offsets = data.buffers()[0].typed_data::<i32>();
            i64::from(offsets[data.offset() + data.len()]) - i64::from(offsets[data.offset()])
        }
        _ => 0,
    };
    let children = a.child_data().iter().zip(b.child_data());
    span(a) + span(b) <= i64::from(i32::MAX) && children.into_iter().all(|(a, b)| can_be_joined(a, b))
}

/// The values of a dictionary: the one column of its batch.
fn dictionary(
    known: &Known,
    dictionaries: &HashMap<i64, ArrayRef>,
    batch: &DictionaryBatch<'_>,
    body: &Body,
    range: (u64, u64),
) -> Result<(i64, ArrayRef), BatchError> {
    let id = batch.id();
    let unknown = BatchError::Metadata { what: "the number of a dictionary", found: id, expected: "one of the schema" };
    let data_type = known.dictionaries.get(&id).ok_or(unknown)?;
    let data = batch.data().ok_or(BatchError::Cut { missing: "a dictionary's values" })?;
    let mut arrays = Arrays::new(&data, body, range, dictionaries)?;
    let values = arrays.array(&Field::new("", data_type.clone(), true))?;
    arrays.end()?;
    match values.len() == arrays.rows {
        true => Ok((id, values)),
        false => {
            let (what, found) = ("the length of a dictionary", arrays.rows as i64);
            Err(BatchError::Metadata { what, found, expected: "that of its values" })
        }
    }
}

/// Collects the dictionaries to which the columns refer.
fn name_dictionaries(field: &Field, all: &mut HashMap<i64, DataType>) -> Result<(), BatchError> {
    if let (DataType::Dictionary(_, value), Some(id)) = (field.data_type(), dictionary_id(field)) {
        let known = all.entry(id).or_insert_with(|| value.as_ref().clone());
        if known != value.as_ref() {
            let (field, data_type) = (field.name().clone(), value.to_string());
            let expected = "the dictionary of that number has another one elsewhere";
            return Err(BatchError::BadType { field, data_type, expected });
        }
        return name_inner(value, all);
    }
    name_inner(field.data_type(), all)
}

fn name_inner(data_type: &DataType, all: &mut HashMap<i64, DataType>) -> Result<(), BatchError> {
    match data_type {
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => name_dictionaries(f, all),
        DataType::Struct(fields) => fields.iter().try_for_each(|f| name_dictionaries(f, all)),
        DataType::Union(fields, _) => fields.iter().try_for_each(|(_, f)| name_dictionaries(f, all)),
        DataType::RunEndEncoded(_, values) => name_dictionaries(values, all),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ListArray, NullArray, StringArray, StructArray};
    use arrow_buffer::OffsetBuffer;

    #[test]
    fn dictionaries_beyond_32_bit_offsets_are_not_joined() {
        let list = |len: i32| {
            let item = Arc::new(Field::new("item", DataType::Null, true));
            let nulls = Arc::new(NullArray::new(len as usize));
            ListArray::new(item, OffsetBuffer::new(vec![0, len].into()), nulls, None)
        };
        let (most, one, few) = (list(i32::MAX).to_data(), list(1).to_data(), list(i32::MAX - 1).to_data());
        assert!(!can_be_joined(&most, &one) && can_be_joined(&few, &one));
        let inside = |list: ListArray| {
            let field = Arc::new(Field::new("a", list.data_type().clone(), true));
            StructArray::from(vec![(field, Arc::new(list) as ArrayRef)]).to_data()
        };
        assert!(!can_be_joined(&inside(list(i32::MAX)), &inside(list(1))));
        let (texts, none) =
            (StringArray::from(vec!["a", "b"]).to_data(), StringArray::from(Vec::<&str>::new()).to_data());
        assert!(can_be_joined(&texts, &texts) && can_be_joined(&none, &texts));
    }
}
