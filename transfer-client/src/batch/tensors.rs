//! Columns of tensors: `arrow.fixed_shape_tensor`, a canonical extension type of Arrow.
//!
//! A column of it is a fixed-size list with as many numbers as a tensor has. Its field's metadata contains the shape
//! (Arrow columnar format, "Canonical Extension Types", "Fixed shape tensor"). arrow-schema 60.1 has a type of that
//! name whose metadata other libraries do not read, so this module writes the metadata by the specification.

use super::BatchError;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, cast::AsArray};
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

const NAME: &str = "arrow.fixed_shape_tensor";

/// The type of a column of tensors, which all have the same shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedShapeTensor {
    /// The type of the elements.
    pub value_type: DataType,
    /// The dimensions of each tensor, in elements, in memory order: row-major, outermost first.
    pub shape: Vec<usize>,
    /// The names of the dimensions.
    pub dim_names: Option<Vec<String>>,
    /// The logical order of the dimensions: the place in `shape` of each.
    pub permutation: Option<Vec<usize>>,
}

impl FixedShapeTensor {
    /// Makes a type of those elements and dimensions.
    #[must_use]
    pub fn new(value_type: DataType, shape: impl Into<Vec<usize>>) -> FixedShapeTensor {
        FixedShapeTensor { value_type, shape: shape.into(), dim_names: None, permutation: None }
    }

    /// Makes a field of such tensors.
    ///
    /// # Errors
    /// [`BatchError::BadType`] if the parts do not fit each other, or a tensor would have 2^31 elements or more.
    pub fn field(&self, name: &str, nullable: bool) -> Result<Field, BatchError> {
        let size = self.check(name)?;
        let mut said = Map::from_iter([("shape".to_owned(), json!(self.shape))]);
        if let Some(names) = &self.dim_names {
            said.insert("dim_names".into(), json!(names));
        }
        if let Some(permutation) = &self.permutation {
            said.insert("permutation".into(), json!(permutation));
        }
        let metadata =
            [(EXTENSION_TYPE_NAME_KEY, NAME.into()), (EXTENSION_TYPE_METADATA_KEY, Value::from(said).to_string())];
        let metadata: HashMap<String, String> = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        let item = Arc::new(Field::new("item", self.value_type.clone(), true));
        Ok(Field::new(name, DataType::FixedSizeList(item, size), nullable).with_metadata(metadata))
    }

    /// The type of a field's tensors. `None` if it has none.
    ///
    /// # Errors
    /// [`BatchError::BadType`] if its metadata is not valid.
    pub fn of_field(field: &Field) -> Result<Option<FixedShapeTensor>, BatchError> {
        if field.extension_type_name() != Some(NAME) {
            return Ok(None);
        }
        let bad =
            |expected| BatchError::BadType { field: field.name().clone(), data_type: field.to_string(), expected };
        let DataType::FixedSizeList(item, size) = field.data_type() else {
            return Err(bad("tensors of one shape lie in fixed-size lists"));
        };
        let said = field.extension_type_metadata().unwrap_or_default();
        let said: Map<String, Value> =
            serde_json::from_str(said).map_err(|_| bad("its metadata must be a JSON object"))?;
        let numbers = |key| said.get(key).filter(|value| !value.is_null()).map(numbers);
        let tensor = FixedShapeTensor {
            value_type: item.data_type().clone(),
            shape: numbers("shape").flatten().ok_or(bad("its metadata must have a shape: a list of numbers"))?,
            dim_names: match said.get("dim_names").filter(|value| !value.is_null()) {
                Some(names) => Some(texts(names).ok_or(bad("dim_names must be a list of strings"))?),
                None => None,
            },
            permutation: match numbers("permutation") {
                Some(found) => Some(found.ok_or(bad("permutation must be a list of numbers"))?),
                None => None,
            },
        };
        match tensor.check(field.name())? == *size {
            true => Ok(Some(tensor)),
            false => Err(bad("the shape must have as many elements as each list")),
        }
    }

    /// Makes a column of such tensors. Their elements lie one tensor behind the other in `values`: no byte is copied.
    ///
    /// # Errors
    /// [`BatchError::BadType`]; [`BatchError::Arrow`] if the values have another type, or are no whole number of
    /// tensors.
    pub fn array(&self, values: ArrayRef) -> Result<FixedSizeListArray, BatchError> {
        let size = self.check("values")?;
        let item = Arc::new(Field::new("item", self.value_type.clone(), true));
        let array = FixedSizeListArray::try_new(item, size, values, None);
        array.map_err(BatchError::arrow("the values are no such tensors"))
    }

    /// The elements of a column of such tensors, one tensor behind the other: no byte is copied.
    ///
    /// # Errors
    /// [`BatchError::WrongColumn`] if the column has another type.
    pub fn values(&self, column: &dyn Array) -> Result<ArrayRef, BatchError> {
        let size = self.check("values")?;
        match column.data_type() {
            DataType::FixedSizeList(item, found) if *found == size && *item.data_type() == self.value_type => {
                Ok(column.as_fixed_size_list().values().clone())
            }
            other => Err(BatchError::WrongColumn {
                column: "tensors".into(),
                found: other.to_string(),
                used_as: format!("tensors of {} with the shape {:?}", self.value_type, self.shape),
            }),
        }
    }

    /// Checks the type. Returns the number of elements of a tensor.
    fn check(&self, field: &str) -> Result<i32, BatchError> {
        let bad = |expected| BatchError::BadType {
            field: field.to_owned(),
            data_type: format!("{NAME} of {} with the shape {:?}", self.value_type, self.shape),
            expected,
        };
        let size = self.shape.iter().try_fold(1_usize, |n, d| n.checked_mul(*d)).and_then(|n| i32::try_from(n).ok());
        if self.dim_names.as_ref().is_some_and(|names| names.len() != self.shape.len()) {
            return Err(bad("every dimension needs a name where one has"));
        }
        if let Some(permutation) = &self.permutation {
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..self.shape.len()) {
                return Err(bad("the permutation must name every dimension once, from 0"));
            }
        }
        size.ok_or(bad("a tensor of a column has at most 2^31 - 1 elements"))
    }
}

fn numbers(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}
