//! Checks of schemas. Arrow's own checks assume that a type has passed them.

use super::{BatchError, MAX_DEPTH};
use arrow_schema::{DataType, Field, Schema};

/// The requirement for decimals.
const DECIMALS: &str = "the precision must be 1 or more and, like the scale, no more than the width holds";

/// Checks that arrays of all its fields can exist.
pub(super) fn check_schema(schema: &Schema) -> Result<(), BatchError> {
    schema.fields().iter().try_for_each(|field| check(field, field.data_type(), 1))
}

fn check(field: &Field, data_type: &DataType, depth: usize) -> Result<(), BatchError> {
    if depth > MAX_DEPTH {
        return Err(BatchError::TooDeep { field: field.name().clone(), limit: MAX_DEPTH });
    }
    let bad =
        |expected| Err(BatchError::BadType { field: field.name().clone(), data_type: data_type.to_string(), expected });
    let inner = |field: &Field| check(field, field.data_type(), depth + 1);
    match data_type {
        DataType::Null if !field.is_nullable() => bad("a field of nulls must be one that can be null"),
        DataType::FixedSizeBinary(width) if *width < 0 => bad("the width must not be negative"),
        DataType::FixedSizeList(_, size) if *size < 0 => bad("the size must not be negative"),
        DataType::Decimal32(p, s) => precise(*p, *s, 9).map_or_else(|| bad(DECIMALS), Ok),
        DataType::Decimal64(p, s) => precise(*p, *s, 18).map_or_else(|| bad(DECIMALS), Ok),
        DataType::Decimal128(p, s) => precise(*p, *s, 38).map_or_else(|| bad(DECIMALS), Ok),
        DataType::Decimal256(p, s) => precise(*p, *s, 76).map_or_else(|| bad(DECIMALS), Ok),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _) => inner(f),
        DataType::Struct(fields) => fields.iter().try_for_each(|f| inner(f)),
        DataType::Union(fields, _) => fields.iter().try_for_each(|(_, f)| inner(f)),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 && !fields[0].is_nullable() && !entries.is_nullable() => {
                inner(entries)
            }
            _ => bad("entries must be a struct of a key that is never null, and a value, and never null"),
        },
        DataType::RunEndEncoded(ends, values) => match ends.data_type() {
            DataType::Int16 | DataType::Int32 | DataType::Int64 if !ends.is_nullable() => inner(values),
            _ => bad("the ends of runs must be Int16, Int32 or Int64, and never null"),
        },
        DataType::Dictionary(key, value) => match (key.is_dictionary_key_type(), value.as_ref()) {
            (false, _) => bad("keys must be integers"),
            (_, DataType::Dictionary(..)) => bad("values must not be a dictionary themselves"),
            (true, value) => check(field, value, depth + 1),
        },
        _ => Ok(()),
    }
}

fn precise(precision: u8, scale: i8, max: u8) -> Option<()> {
    ((1..=max).contains(&precision) && i16::from(scale).abs() <= i16::from(max)).then_some(())
}

/// Whether a type has views below runs.
pub(super) fn has_views(data_type: &DataType, below_runs: bool) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => below_runs,
        DataType::RunEndEncoded(_, values) => has_views(values.data_type(), true),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => has_views(f.data_type(), below_runs),
        DataType::Struct(fields) => fields.iter().any(|f| has_views(f.data_type(), below_runs)),
        DataType::Union(fields, _) => fields.iter().any(|(_, f)| has_views(f.data_type(), below_runs)),
        _ => false,
    }
}

/// The number of a field's dictionary in the messages.
#[expect(deprecated, reason = "Arrow keeps the number there, and has no other place yet")]
pub(super) fn dictionary_id(field: &Field) -> Option<i64> {
    field.dict_id()
}
