//! The native half of the Python package `transferd`: the module `transferd._native`.
//!
//! The Python code around it (`python/transferd`) classifies values and defines the calls' signatures. Everything that
//! touches memory or waits is here. The module has no runtime. A call that waits releases the interpreter's lock, and
//! checks for signals every 40 ms; asyncio waits on the session's descriptor.
//!
//! # Layout
//! - `client`: the client, and its calls; `connecting`: how it connects; `options`, `fetch_options`: their options; `fetches`: fetches of tensors and
//!   bundles; `into`, `state_into`: those into buffers, and `into_call`: one of these in progress; `pending`: any call in progress; `bell`: the
//!   descriptors on which asyncio waits.
//! - `memory`: the memory that an export keeps; `buffer`, `tensor`: its two kinds in Python; `report`: the report of a
//!   call.
//! - `dlpack`, `pybuffer`, `table`: memory exported and imported by DLPack, by the buffer protocol, and as Arrow's C
//!   structs. `metadata`: what of an Arrow schema has to be text. `gpu`: copies to GPUs and from there. Unsafe code is in
//!   these files, in `strided`, and in `buffer` and `tensor`. `strided`: copies of elements that may not lie in one piece.
//! - `taken`: buffers that a push of several takes. `lent`: bases for deltas. `slices`: slices as numpy writes them; `dtype`: names of element types; `errors`: the raised classes; `programs`: transferd and transferctl; `counters`:
//!   counters and barriers; `in_place`: weights that are updated in place; `streams`: streams of record batches;
//!   `exchange`: exchanges of them.

#![deny(unsafe_code)]

mod bell;
mod buffer;
mod claims;
mod client;
mod connecting;
mod counters;
mod dlpack;
mod dtype;
mod errors;
mod exchange;
mod fetch_options;
mod fetches;
mod gpu;
mod in_place;
mod into;
mod into_call;
mod lent;
mod memory;
mod metadata;
mod options;
mod pending;
mod pinned;
mod programs;
mod pybuffer;
mod report;
mod sharded;
mod slices;
mod state_into;
mod streams;
mod strided;
mod table;
mod taken;
mod tensor;

use pyo3::prelude::*;

#[pymodule(name = "_native", gil_used = false)]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("_DTYPES", pyo3::types::PyTuple::new(module.py(), dtype::names())?)?;
    module.add("_FLOATS", pyo3::types::PyTuple::new(module.py(), strided::FLOATS.map(dtype::name))?)?;
    module.add("_PACKED", pyo3::types::PyTuple::new(module.py(), dtype::packed_names())?)?;
    module.add_class::<bell::Bell>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<counters::Barrier>()?;
    module.add_class::<counters::Counter>()?;
    module.add_class::<counters::Round>()?;
    module.add_class::<exchange::Exchange>()?;
    module.add_class::<exchange::ExchangeReader>()?;
    module.add_class::<exchange::ExchangeTask>()?;
    module.add_class::<in_place::TwoBuffers>()?;
    module.add_class::<in_place::TwoBundleBuffers>()?;
    module.add_class::<into::PyFetchedInto>()?;
    module.add_class::<lent::LentBase>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<pybuffer::Foreign>()?;
    module.add_class::<pybuffer::Raw>()?;
    module.add_class::<report::Pushed>()?;
    module.add_class::<report::PushedDelta>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<streams::StreamReader>()?;
    module.add_class::<streams::StreamWriter>()?;
    module.add_class::<table::Rows>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(dtype::cast_type, module)?)?;
    module.add_function(wrap_pyfunction!(gpu::check, module)?)?;
    module.add_function(wrap_pyfunction!(lent::lend_base, module)?)?;
    module.add_function(wrap_pyfunction!(pinned::register, module)?)?;
    module.add_function(wrap_pyfunction!(pinned::check, module)?)?;
    module.add_function(wrap_pyfunction!(pinned::regained, module)?)?;
    module.add_function(wrap_pyfunction!(pinned::unregister, module)?)?;
    module.add_function(wrap_pyfunction!(pinned::push, module)?)?;
    module.add_function(wrap_pyfunction!(sharded::layout, module)?)?;
    module.add_function(wrap_pyfunction!(state_into::in_buffer, module)?)?;
    module.add_function(wrap_pyfunction!(options::whole_of, module)?)?;
    module.add_function(wrap_pyfunction!(options::check_seconds, module)?)?;
    module.add_function(wrap_pyfunction!(options::seconds_of, module)?)?;
    module.add_function(wrap_pyfunction!(programs::transferd, module)?)?;
    module.add_function(wrap_pyfunction!(programs::transferctl, module)?)?;
    module.add_function(wrap_pyfunction!(connecting::embedded_address, module)?)?;
    module.add_function(wrap_pyfunction!(connecting::embedded_socket, module)?)
}
