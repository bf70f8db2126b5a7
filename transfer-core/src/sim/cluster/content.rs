//! The contents of tensors. They identify the push that they came from.

use super::super::World;
use super::Cluster;
use crate::memory::LocalSlice;
use crate::protocol::Tenant;
use crate::tensor::{DType, Key, Packing, Slice, TensorMeta, Version};
use crate::trace::TraceContext;

/// The bytes of each version that are fetched together with those of others.
pub(super) const GATHERED_BYTES: u64 = 64;

/// A push that was made.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) key: Key,
    pub(super) meta: TensorMeta,
    /// The tenant of the worker that pushed it.
    pub(super) tenant: Tenant,
    /// Another tenant that may read it.
    pub(super) reader: Option<Tenant>,
    /// The version, once its pusher or a reader has learned it.
    pub(super) version: Option<Version>,
}

impl Pushed {
    /// Returns whether workers of a tenant may get this push.
    fn is_for(&self, tenant: Tenant) -> bool {
        self.tenant == tenant || self.reader == Some(tenant)
    }
}

/// Into how many parts a push is divided. Each has other bytes than that of the push before in one of so many pushes, so that
/// deltas depend on their base.
const PARTS: u64 = 8;

/// Returns the bytes of the push with this number. The first eight are the number, if there is room.
pub(super) fn bytes_of(number: usize, len: u64) -> Vec<u8> {
    let mut out = (number as u64).to_le_bytes().to_vec();
    while (out.len() as u64) < len {
        let at = out.len() as u64;
        let part = at * PARTS / len;
        let changes = (number as u64 + part) / PARTS;
        let mut x = ((changes * PARTS + part) << 16 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(usize::try_from(len).unwrap());
    out
}

/// Returns the trace context of the push or fetch with this number. One in four has one.
pub(super) fn context_of(number: usize) -> Option<TraceContext> {
    let id = number as u64 + 1;
    (number % 4 == 1).then(|| TraceContext::new([1; 16], id.to_be_bytes(), 1).unwrap())
}

/// Overwrites a range with bytes that no push has.
pub(super) fn scribble(world: &World, memory: super::MemoryId, offset: u64, len: u64) {
    let junk = vec![0xee; usize::try_from(len).unwrap()];
    assert!(world.write(memory, offset, &junk), "the range is a worker's own");
}

impl Cluster {
    /// Checks a tensor that a worker of this tenant has found or fetched. Returns the number of its push, if the bytes
    /// contain it.
    pub(super) fn identify(
        &mut self,
        (node, tenant): (usize, Tenant),
        key: &Key,
        version: Version,
        meta: &TensorMeta,
        slice: LocalSlice,
    ) -> Result<Option<usize>, String> {
        let bytes = self.bytes_in(node, &[slice])?;
        self.identify_bytes(tenant, key, version, meta, &bytes)
    }

    /// Returns the bytes that lie in these ranges, one behind the other.
    pub(super) fn bytes_in(&self, node: usize, slices: &[LocalSlice]) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        for slice in slices {
            let Some((memory, _)) = self.nodes[node].segments.get(&slice.segment).copied() else {
                return Err(format!("a lease lies in {}, which is not there", slice.segment));
            };
            let bytes = self.world.read(memory, slice.offset, slice.len);
            if bytes.len() as u64 != slice.len {
                return Err(format!("a lease on {slice} leaves its segment"));
            }
            all.extend(bytes);
        }
        Ok(all)
    }

    /// Checks the bytes of a version that a worker of this tenant has.
    pub(super) fn identify_bytes(
        &mut self,
        tenant: Tenant,
        key: &Key,
        version: Version,
        meta: &TensorMeta,
        bytes: &[u8],
    ) -> Result<Option<usize>, String> {
        if bytes.len() as u64 != meta.len_bytes() {
            return Err(format!("a lease on {meta} has {} bytes", bytes.len()));
        }
        let Some(number) = bytes.first_chunk::<8>() else {
            let known = |p: &Pushed| {
                (&p.key, &p.meta) == (key, meta) && p.is_for(tenant) && p.version.is_none_or(|v| v == version)
            };
            let found = self.pushed.iter().any(known);
            return if found { Ok(None) } else { Err(format!("nobody pushed {meta} as {version} of {key}")) };
        };
        let number = usize::try_from(u64::from_le_bytes(*number)).unwrap_or(usize::MAX);
        let Some(push) = self.pushed.get_mut(number) else {
            return if self.play.late_packets > 0 {
                Ok(None)
            } else {
                Err(format!("{key} {version} has bytes that nobody pushed: {:x?}", &bytes[..bytes.len().min(32)]))
            };
        };
        if self.play.late_packets > 0 {
            // The peer may write any bytes, as long as it writes them before the delivery.
            return Ok(None);
        }
        if push.key != *key || push.meta != *meta {
            return Err(format!("{key} {version} {meta} has the bytes of push {number}: {} {}", push.key, push.meta));
        }
        if !push.is_for(tenant) {
            return Err(format!("a worker of {tenant:?} gets {key} {version}, push {number} of {:?}", push.tenant));
        }
        if bytes != bytes_of(number, meta.len_bytes()) {
            return Err(format!("{key} {version} has some bytes of push {number} and others"));
        }
        if *push.version.get_or_insert(version) != version {
            return Err(format!("push {number} of {key} is {:?} and {version}", push.version));
        }
        Ok(Some(number))
    }

    /// Checks a slice of a version that a worker of this tenant has fetched, and its description.
    pub(super) fn identify_slice(
        &self,
        (node, tenant): (usize, Tenant),
        key: &Key,
        version: Version,
        (part, meta): (&Slice, &TensorMeta),
        slices: &[LocalSlice],
    ) -> Result<(), String> {
        let bytes = self.bytes_in(node, slices)?;
        let is_it = |(number, push): (usize, &Pushed)| {
            let is_of_version = push.key == *key && push.is_for(tenant) && push.version.is_none_or(|v| v == version);
            let Some(found) = part.of(&push.meta).ok().filter(|found| is_of_version && found.meta() == meta) else {
                return false;
            };
            let all = bytes_of(number, push.meta.len_bytes());
            let packing = Packing::new(found.bytes(push.meta.body_offset()).into_iter().collect());
            let expected = packing.flat_map(|run| all[run.from as usize..][..run.len as usize].to_vec());
            // With late packets, the peer may write any bytes, as long as it writes them before the delivery.
            self.play.late_packets > 0 || expected.eq(bytes.iter().copied())
        };
        match self.pushed.iter().enumerate().any(is_it) {
            true => Ok(()),
            false => Err(format!("nobody pushed {bytes:x?} as {part} of {version} of {key}, {meta}")),
        }
    }

    /// Checks the first bytes of versions of these keys, which a worker of this tenant has fetched together.
    pub(super) fn identify_all(
        &self,
        (node, tenant): (usize, Tenant),
        keys: &[Key],
        meta: &TensorMeta,
        slice: LocalSlice,
    ) -> Result<(), String> {
        let len = keys.len() as u64 * GATHERED_BYTES;
        if slice.len != len || TensorMeta::of(DType::U8, &[len]).as_ref() != Ok(meta) {
            return Err(format!("the beginnings of {} keys are {meta} in {slice}", keys.len()));
        }
        let Some((memory, _)) = self.nodes[node].segments.get(&slice.segment) else {
            return Err(format!("a lease lies in {}, which is not there", slice.segment));
        };
        let bytes = self.world.read(*memory, slice.offset, slice.len);
        if self.play.late_packets > 0 {
            // The peer may write any bytes, as long as it writes them before the delivery.
            return Ok(());
        }
        for (key, bytes) in keys.iter().zip(bytes.chunks(GATHERED_BYTES as usize)) {
            let is_it = |(number, push): (usize, &Pushed)| {
                // Metadata lies in front of the body.
                let body = bytes_of(number, push.meta.len_bytes()).split_off(push.meta.body_offset() as usize);
                push.key == *key && push.is_for(tenant) && body.starts_with(bytes)
            };
            if !self.pushed.iter().enumerate().any(is_it) {
                return Err(format!("nobody pushed {bytes:x?} as the beginning of {key} for {tenant:?}"));
            }
        }
        Ok(())
    }
}
