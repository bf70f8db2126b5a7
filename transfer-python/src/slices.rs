//! Slices, as numpy writes them.

use crate::errors;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};
use transfer_client::{Slice, SliceDim, SliceRange};

/// Reads a slice: one entry, or a tuple of one for each dimension, the outermost first. An ellipsis at the end stands for
/// the dimensions that are not named, which are whole anyway; elsewhere it would need the shape, which the owner has.
pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<Slice> {
    let entries: Vec<Bound<'_, PyAny>> = match value.cast::<PyTuple>() {
        Ok(entries) => entries.iter().collect(),
        Err(_) => vec![value.clone()],
    };
    let mut dims = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        if !entry.is_instance_of::<PyEllipsis>() {
            dims.push(dim(entry).ok_or_else(|| invalid(value, entry, ENTRY))?);
        } else if at + 1 < entries.len() {
            return Err(invalid(value, entry, "an ellipsis is the last one, since the shape is not known here"));
        }
    }
    Ok(Slice::new(dims))
}

const ENTRY: &str = "an entry is a whole number below 2^63, or a range of such, as np.s_[0:1024, -512:] has them";

fn invalid(value: &Bound<'_, PyAny>, entry: &Bound<'_, PyAny>, right: &str) -> PyErr {
    let shown = |of: &Bound<'_, PyAny>| of.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    errors::invalid(value.py(), &format!("slice={} has the entry {}: {right}", shown(value), shown(entry)))
}

fn dim(entry: &Bound<'_, PyAny>) -> Option<SliceDim> {
    let Ok(range) = entry.cast::<PySlice>() else { return Some(SliceDim::Index(index(entry)?)) };
    let bound = |name| {
        let bound = range.getattr(name).ok()?;
        if bound.is_none() { Some(None) } else { index(&bound).map(Some) }
    };
    Some(SliceDim::Range(SliceRange {
        start: bound("start")?,
        stop: bound("stop")?,
        step: bound("step")?.unwrap_or(1),
    }))
}

/// A whole number, also one of numpy's. A bool is none, since numpy takes it for a mask.
fn index(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.extract().ok().filter(|_| !value.is_instance_of::<PyBool>())
}
