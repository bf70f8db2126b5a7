//! The native half of the Python package `transferd`: the module `transferd._native`.
//!
//! Python code around it (`python/transferd`) decides what a value is and gives the calls their shape; what touches memory or waits is here.
//! There is no runtime in it: a call that waits lets go of the interpreter's lock, and looks for signals every 40 ms; asyncio waits on the
//! session's descriptor.
//!
//! # Layout
//! - `client`: the client, and its calls; `options`: what they are told; `pending`: a call under way; `bell`: what asyncio waits on.
//! - `memory`: what an export keeps, in which process; `buffer`, `tensor`: the two kinds of it that Python sees; `report`: how a call went.
//! - `dlpack`, `pybuffer`, `table`: memory given away and taken by DLPack, by the buffer protocol, and as Arrow's C structs. Unsafe code is
//!   there, and in no other file. `strided`: copies what does not lie in one piece.
//! - `dtype`: names of element types; `errors`: the classes that are raised; `programs`: transferd and transferctl; `counters`, `in_place`, `streams`: what their names say.

#![deny(unsafe_code)]

mod bell;
mod buffer;
mod client;
mod counters;
mod dlpack;
mod dtype;
mod errors;
mod in_place;
mod memory;
mod options;
mod pending;
mod programs;
mod pybuffer;
mod report;
mod streams;
mod strided;
mod table;
mod tensor;

use pyo3::prelude::*;

#[pymodule(name = "_native", gil_used = false)]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<bell::Bell>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<counters::Barrier>()?;
    module.add_class::<counters::Counter>()?;
    module.add_class::<counters::Round>()?;
    module.add_class::<in_place::TwoBuffers>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<pybuffer::Foreign>()?;
    module.add_class::<pybuffer::Raw>()?;
    module.add_class::<report::Pushed>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<streams::StreamReader>()?;
    module.add_class::<streams::StreamWriter>()?;
    module.add_class::<table::Rows>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(programs::transferd, module)?)?;
    module.add_function(wrap_pyfunction!(programs::transferctl, module)?)?;
    module.add_function(wrap_pyfunction!(client::embedded_socket, module)?)
}
