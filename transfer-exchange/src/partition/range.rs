//! Partitions of ranges of values.

use super::prefix::prefixes;
use super::{PartitionError, find};
use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array};
use arrow_cmp::{DynComparator, make_comparator};
use arrow_schema::SortOptions;
use arrow_select::take::take;
use std::cmp::Ordering;
use transfer_client::BatchError;

/// The bounds between partitions of ranges, see [`By::Range`](super::By::Range): one less than there are partitions, in
/// ascending order. Partition 0 has the rows below the first bound, and partition n those from bound n - 1 up to, and
/// without, bound n.
///
/// Rows are compared by the first column, those that are equal there by the second, and so on. The order is Arrow's: a
/// null is less than every value, and floats are in IEEE 754's total order, in which -0.0 is less than 0.0, and NaN is
/// the greatest.
#[derive(Debug, Clone)]
pub struct Bounds {
    columns: Vec<String>,
    keys: Vec<ArrayRef>,
}

impl Bounds {
    /// Makes bounds of columns with these names: one array of values for each.
    ///
    /// # Errors
    /// [`PartitionError`] if the arrays have different lengths, cannot be compared, or do not ascend.
    pub fn new<N: Into<String>>(
        columns: impl IntoIterator<Item = N>,
        keys: Vec<ArrayRef>,
    ) -> Result<Bounds, PartitionError> {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        let lengths: Vec<usize> = keys.iter().map(|array| array.len()).collect();
        if columns.is_empty() {
            return Err(PartitionError::NoColumns);
        }
        if columns.len() != keys.len() || lengths.iter().any(|len| *len != lengths[0]) {
            return Err(PartitionError::BoundsShape { columns: columns.len(), lengths });
        }
        let order = Order::new(&columns, &keys, &keys)?;
        match (1..lengths[0]).find(|at| order.compare(*at, at - 1) == Ordering::Less) {
            Some(at) => Err(PartitionError::BoundsUnsorted { at }),
            None => Ok(Bounds { columns, keys }),
        }
    }

    /// Makes bounds that divide a sample into `partitions` parts of about one size. If the sample has less different
    /// values than that, some partitions stay empty.
    ///
    /// # Errors
    /// [`PartitionError`] if the sample has no rows, or its columns cannot be compared.
    pub fn of_sample(columns: &[&str], sample: &RecordBatch, partitions: u32) -> Result<Bounds, PartitionError> {
        let keys = columns.iter().map(|column| find(sample, column).cloned()).collect::<Result<Vec<_>, _>>()?;
        let rows = sample.num_rows() as u64;
        if rows == 0 {
            return Err(PartitionError::EmptySample);
        }
        let names: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
        let order = Order::new(&names, &keys, &keys)?;
        let mut sorted: Vec<u64> = (0..rows).collect();
        sorted.sort_by(|a, b| order.compare(*a as usize, *b as usize));
        let parts = u128::from(partitions.max(1));
        let at = |n: u128| sorted[(n * u128::from(rows) / parts) as usize];
        let chosen: UInt64Array = (1..parts).map(at).collect::<Vec<_>>().into();
        let keys = keys.iter().map(|key| take(key, &chosen, None)).collect::<Result<Vec<_>, _>>();
        Bounds::new(names, keys.map_err(BatchError::arrow("the bounds of a sample"))?)
    }

    /// The columns that are compared.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = &str> {
        self.columns.iter().map(String::as_str)
    }

    /// The values of each column, one for each bound.
    #[must_use]
    pub fn keys(&self) -> &[ArrayRef] {
        &self.keys
    }

    fn len(&self) -> usize {
        self.keys.first().map_or(0, |keys| keys.len())
    }

    pub(super) fn choose(
        &self,
        batch: &RecordBatch,
        partitions: u32,
        chosen: &mut Vec<u32>,
    ) -> Result<(), PartitionError> {
        let found = self.len();
        if found + 1 != partitions as usize {
            return Err(PartitionError::BoundsCount { found, partitions });
        }
        let columns = self.columns.iter().map(|c| find(batch, c).cloned()).collect::<Result<Vec<_>, _>>()?;
        let order = Order::new(&self.columns, &columns, &self.keys)?;
        let rows = 0..batch.num_rows();
        match (prefixes(&columns[0]), prefixes(&self.keys[0])) {
            (Some(of_rows), Some(of_bounds)) => chosen.extend(rows.map(|row| {
                let prefix = of_rows[row];
                let less = of_bounds.partition_point(|bound| *bound < prefix);
                match of_bounds.get(less) {
                    Some(bound) if *bound == prefix => {
                        let equal = of_bounds[less..].partition_point(|bound| *bound == prefix);
                        order.find(row, less..less + equal)
                    }
                    _ => less as u32,
                }
            })),
            _ => chosen.extend(rows.map(|row| order.find(row, 0..found))),
        }
        Ok(())
    }
}

/// The order of rows by several columns.
pub(super) struct Order(Vec<DynComparator>);

impl Order {
    pub(super) fn new(names: &[String], left: &[ArrayRef], right: &[ArrayRef]) -> Result<Order, PartitionError> {
        let compared = names.iter().zip(left.iter().zip(right)).map(|(column, (left, right))| {
            if left.data_type() != right.data_type() {
                let (column, found, bounds) =
                    (column.clone(), left.data_type().to_string(), right.data_type().to_string());
                return Err(PartitionError::BoundsType { column, found, bounds });
            }
            make_comparator(left, right, SortOptions::default()).map_err(|_| PartitionError::BadKey {
                column: column.clone(),
                data_type: left.data_type().to_string(),
                expected: "a column with bounds must be of a type that has an order",
            })
        });
        compared.collect::<Result<_, _>>().map(Order)
    }

    /// Returns the partition of a row: the number of bounds that are not greater. `among`: all before it are not, and all
    /// behind it are.
    fn find(&self, row: usize, among: std::ops::Range<usize>) -> u32 {
        let (mut low, mut high) = (among.start, among.end);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(row, middle) {
                Ordering::Less => high = middle,
                _ => low = middle + 1,
            }
        }
        low as u32
    }

    pub(super) fn compare(&self, left: usize, right: usize) -> Ordering {
        let mut compared = self.0.iter().map(|column| column(left, right));
        compared.find(|order| *order != Ordering::Equal).unwrap_or(Ordering::Equal)
    }
}
