//! The tensors of a fetch, from the pieces as they come.

use super::copy::copy_box;
use super::plans::Plan;
use super::requests::{Ask, Asked, Output};
use super::roster::Manifest;
use crate::bundle::{FetchedBundle, FetchedSlices};
use crate::error::{BundleError, Error};
use crate::fetch::{FetchedSlice, Tensor};
use crate::request::flow::Io;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::Report;
use transfer_core::tensor::{TensorMeta, Version};
use transfer_core::wire::bundle::BundleTable;
use transfer_memory::view::OwnMemory;

/// See the [module](self).
pub(super) struct Assembly<'a> {
    plan: &'a Plan,
    version: Version,
    /// Of each tensor what one shard has of it, where that is all.
    direct: Vec<Option<FetchedSlice>>,
    /// What several shards make up.
    memory: Option<OwnMemory>,
    report: Report,
}

pub(super) fn no_memory(wanted_bytes: u64, reason: impl ToString) -> Error {
    Error::NoMemory { wanted_bytes, reason: reason.to_string() }
}

/// Memory for what several shards make up.
pub(super) fn own_memory(bytes: usize) -> Result<OwnMemory, Error> {
    OwnMemory::new(bytes as u64).map_err(|e| no_memory(bytes as u64, e))
}

impl<'a> Assembly<'a> {
    pub(super) fn new(manifest: &Manifest, plan: &'a Plan) -> Assembly<'a> {
        let report = Report { fabric: FabricKind::Local, bytes: 0, copied: 0, delta: 0, relayed: 0, ..manifest.report };
        let (version, direct) = (Version(manifest.version), vec![None; plan.outputs.len()]);
        Assembly { plan, version, direct, memory: None, report }
    }

    pub(super) fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Makes sure that there is memory for pieces that are copied.
    pub(super) fn need_memory(&mut self) -> Result<(), Error> {
        if self.memory.is_none() {
            self.memory = Some(own_memory(self.plan.memory_bytes)?);
        }
        Ok(())
    }

    /// Takes the pieces that have come.
    pub(super) fn take(&mut self, ask: &Ask, slices: &FetchedSlices) -> Result<(), Error> {
        let shards = &self.plan.layouts[ask.rank as usize].layout.shards;
        for part in &ask.parts {
            let Asked { output, part: place } = &part.asked;
            let (at, output) = (*output, &self.plan.outputs[*output]);
            let entry = shards[part.shard].entry.as_str();
            let slice = slices.get(entry).ok_or_else(|| BundleError::NoSuchTensor { name: entry.to_owned() })?;
            let expected = TensorMeta::of(output.meta.dtype(), &place.shape())?;
            if *slice.meta() != expected {
                let (found_bytes, expected_bytes) = (slice.meta().len_bytes(), expected.len_bytes());
                return Err(BundleError::WrongLength { expected_bytes, found_bytes }.into());
            }
            self.report.bytes += expected.len_bytes();
            // All or none: one part would keep all of the others in the pool.
            if ask.is_direct && slice.is_contiguous() {
                self.direct[at] = Some(slice.clone());
                continue;
            }
            let Some(memory) = &mut self.memory else { continue };
            let dtype = output.meta.dtype();
            let (size, per_unit) = (dtype.size_bytes() as usize, dtype.elements_per_unit());
            let (mut dims, mut unit_part) = (output.target.counts(), place.clone());
            if let (Some(last), Some(extent)) = (dims.last_mut(), unit_part.0.last_mut()) {
                (*last, extent.start, extent.len) = (*last / per_unit, extent.start / per_unit, extent.len / per_unit);
            }
            let to = &mut memory.as_mut_bytes()[output.at..][..output.meta.len_bytes() as usize];
            copy_box(to, &dims, &unit_part, size, slice.as_bytes(), slice.strides());
            self.report.copied += expected.len_bytes();
        }
        self.note(0, slices.report());
        Ok(())
    }

    /// Notes how pieces of so many bytes have come, which need not be taken.
    pub(super) fn note(&mut self, bytes: u64, Report { copied, fabric, delta, relayed, .. }: &Report) {
        self.report.bytes += bytes;
        self.report.copied += copied;
        self.report.delta += delta;
        self.report.relayed += relayed;
        if *fabric != FabricKind::Local {
            self.report.fabric = *fabric;
        }
    }

    /// The version and the report, when all pieces have come to the memory of the caller.
    pub(super) fn report(self, io: &Io) -> (u64, Report) {
        let Assembly { version, mut report, .. } = self;
        report.in_flight = in_flight(io, &report);
        (version.0, report)
    }

    /// The tensors, when all pieces have come.
    pub(super) fn finish(self, io: &Io) -> Result<FetchedBundle, Error> {
        let Assembly { plan, version, direct, memory, mut report } = self;
        report.in_flight = in_flight(io, &report);
        let bytes = memory.map(OwnMemory::freeze);
        let mut described = Vec::with_capacity(plan.outputs.len());
        let mut tensors = Vec::with_capacity(plan.outputs.len());
        for (Output { name, meta, at, .. }, direct) in plan.outputs.iter().zip(direct) {
            let len = meta.len_bytes() as usize;
            let own = || bytes.as_ref().and_then(|bytes| bytes.slice(*at..at + len));
            let bytes = match direct {
                Some(slice) => slice.into_bytes(),
                None => own()
                    .or_else(|| OwnMemory::new(0).ok().map(OwnMemory::freeze))
                    .ok_or(BundleError::OutOfBody { offset: *at as u64, len: len as u64, body_len: 0 })?,
            };
            described.push((name.clone(), meta.clone()));
            tensors.push(Tensor::of_bytes(bytes, meta.clone(), version, report));
        }
        let table = BundleTable::new(described).map_err(BundleError::from)?;
        Ok(FetchedBundle::new(table, tensors, version, report))
    }
}

/// The time since the fetch began, but for what its report counts already.
fn in_flight(io: &Io, report: &Report) -> Duration {
    io.timeout().saturating_sub(io.left(Duration::MAX)).saturating_sub(report.queued + report.waited)
}
