//! Batches that are built in the arena, so that pushing them moves nothing.

mod column;
mod room;

pub use column::ColumnMut;

use super::BatchError;
use crate::error::Error;
use crate::session::Session;
use arrow_array::{RecordBatch, RecordBatchOptions, make_array};
use arrow_schema::SchemaRef;
use column::Column;
use std::sync::Arc;

/// A builder of a record batch in the arena, from where it is pushed. Columns grow as needed; with
/// [`rows`](BatchBuilder::rows) they have room from the beginning, and nothing moves while they are written.
///
/// ```
/// # use transfer_client::{Client, Error};
/// # use std::sync::Arc;
/// # use arrow_schema::{DataType, Field, Schema};
/// # use arrow_array::types::Float32Type;
/// # async fn example(client: Client) -> Result<(), Error> {
/// let schema = Schema::new(vec![
///     Field::new("loss", DataType::Float32, false),
///     Field::new("name", DataType::Utf8, true),
/// ]);
/// let mut builder = client.batch_builder(&Arc::new(schema))?.rows(2)?;
/// builder.column("loss")?.append_slice::<Float32Type>(&[0.5, 0.25])?;
/// builder.column("name")?.append_str("first")?;
/// builder.column("name")?.append_null()?;
/// let batch = builder.finish()?;
/// let pushed = client.push_batch("step", &batch).await?;
/// assert_eq!(pushed.report.copied, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BatchBuilder {
    session: Arc<Session>,
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
}

impl BatchBuilder {
    pub(crate) fn new(session: Arc<Session>, schema: &SchemaRef) -> Result<BatchBuilder, Error> {
        super::schema::check_schema(schema)?;
        let columns = schema.fields().iter().map(|field| Column::new(field, &session)).collect::<Result<_, _>>()?;
        Ok(BatchBuilder { session, schema: schema.clone(), columns, rows: 0 })
    }

    /// Makes room for `rows` rows in every column; in a column of strings, bytes, or lists, for its offsets. In a batch
    /// without columns, it sets the number of rows.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::TooLargeForArena`].
    pub fn rows(mut self, rows: usize) -> Result<Self, Error> {
        let session = &self.session;
        self.columns.iter_mut().try_for_each(|column| column.reserve(session, rows))?;
        self.rows = rows;
        Ok(self)
    }

    /// The column of that name, writable.
    ///
    /// # Errors
    /// [`Error::Batch`] if there is none.
    pub fn column(&mut self, name: &str) -> Result<ColumnMut<'_>, Error> {
        let at = self.schema.index_of(name).map_err(BatchError::arrow("no such column"))?;
        self.column_at(at)
    }

    /// The column at that index, writable.
    ///
    /// # Errors
    /// [`Error::Batch`] if there is none.
    pub fn column_at(&mut self, at: usize) -> Result<ColumnMut<'_>, Error> {
        let (session, count) = (&self.session, self.columns.len());
        match self.columns.get_mut(at) {
            Some(column) => Ok(ColumnMut::new(column, session)),
            None => Err(BatchError::WrongColumn {
                column: at.to_string(),
                found: format!("one of {count}"),
                used_as: "one that is there".into(),
            }
            .into()),
        }
    }

    /// Returns the batch. Its memory is free again when the last array and the last push of it are gone.
    ///
    /// # Errors
    /// [`Error::Batch`] if columns have different lengths, a value is missing, or a value is null in a non-nullable
    /// column.
    pub fn finish(self) -> Result<RecordBatch, Error> {
        let options = RecordBatchOptions::new();
        let options = options.with_row_count(self.columns.is_empty().then_some(self.rows));
        let columns = self.columns.into_iter().map(|column| Ok(make_array(column.finish()?)));
        let columns = columns.collect::<Result<Vec<_>, BatchError>>()?;
        let batch = RecordBatch::try_new_with_options(self.schema, columns, &options);
        Ok(batch.map_err(BatchError::arrow("the batch cannot be built"))?)
    }
}
