//! What ranks publish about their shards, and what is published about all ranks.
//!
//! The *record of a rank* is the tensor behind the shards in the bundle with them, `u8`, with the name [`RECORD`]:
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 3 | `TSHD` |
//! | 4 | layout, 2 |
//! | 5 to 7 | the kind of the shards' digests, as in [`transfer_core::wire::digests`], 0 for none; whether deltas of the shards may follow, 0 or 1; zero |
//! | 8 to 11 | the number of shards |
//! | then, for each shard | length u16 and name of its global tensor; length u16 and name in the bundle; description; then of each dimension offset and global length, u64 |
//!
//! If the shards have digests, the bundle has one more tensor, `u8`, with the name [`DIGESTS`]: the digest of the bytes of each shard, in order.
//!
//! The *manifest* of a version is a bundle under the state's key with two tensors, `u8`. [`LAYOUTS`] has the records of all ranks.
//! [`MANIFEST`] has these:
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 3 | `TRNK` |
//! | 4 to 7 | layout, 3; zeros |
//! | 8 to 11 | the number of ranks |
//! | 12 to 19 | the restart with which its versions have begun |
//! | 20 to 27 | the number of shards whose box other ranks have, too, and that were compared with none of those |
//! | then, for each rank | the number in the key of its shards u64; the digest of its layout u64; length u16 and name of its node |
//!
//! All numbers have the lowest byte first. Both are another worker's, and not trusted.

use super::boxes::IndexBox;
use crate::error::{BundleError, Error, ShardedError};
use transfer_core::op::{CommittedRank, MAX_WORLD_SIZE};
use transfer_core::tensor::{DType, Digest, Key, Name, TensorMeta, TensorName};
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::{Reader, WireError, Writer};
use xxhash_rust::xxh64::xxh64;

/// The name of a rank's record in its bundle.
pub(crate) const RECORD: &str = "__shards__";

/// The name of the manifest's ranks.
pub(crate) const MANIFEST: &str = "__ranks__";

/// The name of the layouts of all ranks in the manifest.
pub(crate) const LAYOUTS: &str = "__layouts__";

/// The name of the digests of a rank's shards in its bundle.
pub(crate) const DIGESTS: &str = "__digests__";

const RECORD_START: [u8; 5] = *b"TSHD\x02";
const MANIFEST_START: [u8; 8] = *b"TRNK\x03\0\0\0";

/// A shard of a rank: where the tensor of its bundle lies in which global tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankShard {
    /// The name of the global tensor.
    pub(crate) name: TensorName,
    /// The name in the rank's bundle.
    pub(crate) entry: TensorName,
    pub(crate) global: TensorMeta,
    pub(crate) place: IndexBox,
}

impl RankShard {
    /// Element type and shape of the shard.
    pub(crate) fn meta(&self) -> Result<TensorMeta, Error> {
        Ok(TensorMeta::of(self.global.dtype(), &self.place.shape())?)
    }
}

/// What there is of shards beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kinds {
    /// The kind of their digests, if they have some.
    pub(crate) hash: Option<Digest>,
    /// Whether deltas of them may follow: who wants all of them asks for all together.
    pub(crate) has_deltas: bool,
}

/// The shards of a rank, and the digest of their record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RankLayout {
    pub(crate) shards: Vec<RankShard>,
    pub(crate) kinds: Kinds,
    pub(crate) digest: u64,
}

fn bad(name: &TensorName, shard: &TensorMeta, offset: &[u64], global: &[u64], why: &'static str) -> ShardedError {
    let (name, shard) = (name.as_str().to_owned(), shard.clone());
    ShardedError::BadShard { name, shard, offset: offset.to_vec(), global_shape: global.to_vec(), why }
}

/// Checks where a shard lies.
pub(crate) fn shard(
    name: TensorName,
    entry: TensorName,
    meta: &TensorMeta,
    offset: &[u64],
    global: &[u64],
) -> Result<RankShard, ShardedError> {
    let bad = |why| bad(&name, meta, offset, global, why);
    let dims = meta.shape().dims();
    if offset.len() != dims.len() || global.len() != dims.len() {
        return Err(bad("shard, offset and global shape need equally many dimensions"));
    }
    let fits = |((at, len), all): ((&u64, &u64), &u64)| at.checked_add(*len).is_some_and(|end| end <= *all);
    if !offset.iter().zip(dims).zip(global).all(fits) {
        return Err(bad("it ends behind the end of its tensor"));
    }
    let per_unit = meta.dtype().elements_per_unit();
    if offset.last().is_some_and(|last| !last.is_multiple_of(per_unit)) {
        return Err(bad("two elements share a byte, so its last offset has to be even"));
    }
    let global = TensorMeta::of(meta.dtype(), global).map_err(|_| bad("the global shape is too large"))?;
    Ok(RankShard { name, entry, global, place: IndexBox::new(offset, dims) })
}

/// The names of a rank's shards in its bundle: those of their tensors, with a number behind the second shard of a tensor and all
/// others.
pub(crate) fn entries(names: &[TensorName]) -> Result<Vec<TensorName>, Error> {
    let mut taken: std::collections::HashSet<TensorName> = names.iter().cloned().collect();
    let mut seen: std::collections::HashMap<&TensorName, u64> = std::collections::HashMap::new();
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        let count = seen.entry(name).or_default();
        *count += 1;
        if *count == 1 {
            entries.push(name.clone());
            continue;
        }
        let (mut number, mut entry) = (*count, name.clone());
        while taken.contains(&entry) {
            entry = TensorName::new(&format!("{name}#{number}"))?;
            number += 1;
        }
        taken.insert(entry.clone());
        entries.push(entry);
    }
    Ok(entries)
}

/// The bytes of a rank's record.
pub(crate) fn record_bytes(shards: &[RankShard], Kinds { hash, has_deltas }: Kinds) -> Result<Vec<u8>, Error> {
    let mut w = Writer::new();
    w.raw(&RECORD_START)
        .u8(hash.map_or(0, |hash| hash as u8))
        .u8(has_deltas.into())
        .u8(0)
        .u32(u32::try_from(shards.len()).unwrap_or(u32::MAX));
    for shard in shards {
        w.text(shard.name.as_str()).text(shard.entry.as_str()).meta(&shard.meta()?);
        for (extent, len) in shard.place.0.iter().zip(shard.global.shape().dims()) {
            w.u64(extent.start).u64(*len);
        }
    }
    Ok(w.into_vec())
}

/// The layout that a record describes.
pub(crate) fn layout(shards: Vec<RankShard>, kinds: Kinds, record: &[u8]) -> RankLayout {
    RankLayout { shards, kinds, digest: xxh64(record, 0) }
}

/// Reads a rank's record.
pub(crate) fn read_record(key: &Key, rank: u32, record: &[u8]) -> Result<RankLayout, Error> {
    let invalid = |why| Error::from(ShardedError::InvalidRecord { key: key.as_str().to_owned(), rank, why });
    let mut r = Reader::new("the record of a rank", record);
    let one = |r: &mut Reader<'_>| -> Result<Result<RankShard, ShardedError>, WireError> {
        let (name, entry) = (TensorName::from_bytes(r.text()?)?, TensorName::from_bytes(r.text()?)?);
        let meta = r.meta()?;
        let (mut offset, mut global) = (Vec::new(), Vec::new());
        for _ in meta.shape().dims() {
            offset.push(r.u64()?);
            global.push(r.u64()?);
        }
        Ok(shard(name, entry, &meta, &offset, &global))
    };
    let cut_off = |_: WireError| invalid("it is cut off, or a name or a description is not valid");
    let start = r.raw(8).map_err(cut_off)?;
    if start[..5] != RECORD_START || start[6] > 1 || start[7] != 0 {
        return Err(invalid("it begins with another mark"));
    }
    let hash = match start[5] {
        0 => None,
        kind => Some(Digest::from_wire(kind).ok_or_else(|| invalid("its digests are of an unknown kind"))?),
    };
    let kinds = Kinds { hash, has_deltas: start[6] == 1 };
    let count = r.u32().map_err(cut_off)?;
    let mut shards = Vec::new();
    for _ in 0..count {
        shards.push(one(&mut r).map_err(cut_off)??);
    }
    r.end().map_err(|_| invalid("it is too long"))?;
    Ok(layout(shards, kinds, record))
}

/// The bytes of a manifest. The ranks are all of them, in order, and `unproved` shards were compared with no replica.
pub(crate) fn manifest_bytes(restart: u64, unproved: u64, ranks: &[CommittedRank]) -> Vec<u8> {
    let mut w = Writer::new();
    w.raw(&MANIFEST_START).u32(u32::try_from(ranks.len()).unwrap_or(u32::MAX)).u64(restart).u64(unproved);
    for CommittedRank { instance, layout, node, .. } in ranks {
        w.u64(*instance).u64(*layout).text(node.as_str());
    }
    w.into_vec()
}

/// The bytes of the records of all ranks, in order, each with its length u32 before it.
pub(crate) fn layouts_bytes<'a>(records: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut w = Writer::new();
    for record in records {
        w.u32(u32::try_from(record.len()).unwrap_or(u32::MAX)).raw(record);
    }
    w.into_vec()
}

/// Reads the records of this number of ranks.
pub(crate) fn read_layouts<'a>(key: &Key, bytes: &'a [u8], ranks: usize) -> Result<Vec<&'a [u8]>, Error> {
    let mut r = Reader::new("the records of all ranks", bytes);
    let mut records = Vec::new();
    for rank in 0..ranks {
        let record = r.u32().and_then(|len| r.raw(len as usize));
        records.push(record.map_err(|_| {
            let (key, why) = (key.as_str().to_owned(), "it is cut off in the list of all");
            ShardedError::InvalidRecord { key, rank: u32::try_from(rank).unwrap_or(u32::MAX), why }
        })?);
    }
    Ok(records)
}

/// Reads a manifest: the restart, the number of shards that were compared with no replica, and the ranks.
pub(crate) fn read_manifest(key: &Key, bytes: &[u8]) -> Result<(u64, u64, Vec<CommittedRank>), Error> {
    let invalid = |rank, why| Error::from(ShardedError::InvalidRecord { key: key.as_str().to_owned(), rank, why });
    let mut r = Reader::new("a manifest", bytes);
    let start = r.raw(8).map_err(|_| invalid(0, "it is cut off"))?;
    let count = r.u32().map_err(|_| invalid(0, "it is cut off"))?;
    if start != MANIFEST_START || !(1..=MAX_WORLD_SIZE).contains(&count) {
        return Err(invalid(0, "the manifest begins with another mark, or has no ranks, or too many"));
    }
    let mut number = || r.u64().map_err(|_| invalid(0, "it is cut off"));
    let (restart, unproved) = (number()?, number()?);
    // Not more memory than there are bytes.
    let mut ranks = Vec::new();
    for rank in 0..count {
        let mut read = || -> Result<CommittedRank, WireError> {
            let (instance, layout) = (r.u64()?, r.u64()?);
            Ok(CommittedRank { rank, instance, layout, node: Name::from_bytes(r.text()?)? })
        };
        ranks.push(read().map_err(|_| invalid(rank, "it is cut off, or a node's name is not valid"))?);
    }
    r.end().map_err(|_| invalid(count, "the manifest is too long"))?;
    Ok((restart, unproved, ranks))
}

/// The key of a rank's shards.
pub(crate) fn shards_key(key: &Key, rank: u32, instance: u64) -> Result<Key, Error> {
    Ok(Key::new(&format!("{key}/rank-{rank}/{instance:016x}"))?)
}

/// The key of the state, if this is one of shards.
pub(crate) fn state_of(shards: &str) -> Option<&str> {
    let (rest, instance) = shards.rsplit_once('/')?;
    let (state, rank) = rest.rsplit_once("/rank-")?;
    let is_instance = instance.len() == 16 && instance.bytes().all(|digit| digit.is_ascii_hexdigit());
    (is_instance && rank.parse::<u32>().is_ok()).then_some(state)
}

/// The table of a rank's bundle.
pub(crate) fn table(layout: &RankLayout, record: &[u8]) -> Result<BundleTable, Error> {
    let mut described = Vec::with_capacity(layout.shards.len() + 2);
    for shard in &layout.shards {
        described.push((shard.entry.clone(), shard.meta()?));
    }
    let mut bytes = |name, len: usize| {
        described.push((TensorName::new(name)?, TensorMeta::of(DType::U8, &[len as u64])?));
        Ok::<_, Error>(())
    };
    bytes(RECORD, record.len())?;
    if let Some(hash) = layout.kinds.hash {
        bytes(DIGESTS, layout.shards.len() * hash.len_bytes())?;
    }
    Ok(BundleTable::new(described).map_err(BundleError::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_fuzz::Target;

    fn key() -> Key {
        Key::new("policy").unwrap()
    }

    fn example(kinds: Kinds) -> Vec<u8> {
        let name = |text: &str| TensorName::new(text).unwrap();
        let meta = |dims: &[u64]| TensorMeta::of(DType::BF16, dims).unwrap();
        let names = [name("w"), name("w#2"), name("w"), name("s")];
        let entries = entries(&names).unwrap();
        assert_eq!(entries, ["w", "w#2", "w#3", "s"].map(name));
        let shards = [
            shard(names[0].clone(), entries[0].clone(), &meta(&[4, 8]), &[0, 8], &[8, 16]),
            shard(names[1].clone(), entries[1].clone(), &meta(&[3]), &[0], &[3]),
            shard(names[2].clone(), entries[2].clone(), &meta(&[4, 8]), &[4, 0], &[8, 16]),
            shard(names[3].clone(), entries[3].clone(), &meta(&[]), &[], &[]),
        ];
        let shards: Vec<_> = shards.into_iter().collect::<Result<_, _>>().unwrap();
        let record = record_bytes(&shards, kinds).unwrap();
        let table = table(&layout(shards, kinds, &record), &record).unwrap();
        let behind: Vec<_> = table.entries()[4..].iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(behind, [RECORD, DIGESTS][..1 + usize::from(kinds.hash.is_some())]);
        record
    }

    fn ranks() -> Vec<CommittedRank> {
        let rank = |rank| CommittedRank { rank, instance: 5, layout: u64::from(rank), node: Name::new("n0").unwrap() };
        (0..3).map(rank).collect()
    }

    #[test]
    fn records_and_manifests_read_back() {
        for (hash, has_deltas) in [(None, true), (Some(Digest::Xxh3), false), (Some(Digest::Blake3), true)] {
            let kinds = Kinds { hash, has_deltas };
            let record = example(kinds);
            let layout = read_record(&key(), 1, &record).unwrap();
            assert_eq!((layout.shards.len(), layout.kinds), (4, kinds));
            assert_eq!(record_bytes(&layout.shards, kinds), Ok(record));
        }
        assert_eq!(read_manifest(&key(), &manifest_bytes(3, 2, &ranks())), Ok((3, 2, ranks())));
        let records = [&b"one"[..], b"", b"three"];
        let bytes = layouts_bytes(records.into_iter());
        assert_eq!(read_layouts(&key(), &bytes, 3), Ok(records.to_vec()));
        assert!(read_layouts(&key(), &bytes[..bytes.len() - 1], 3).is_err());
    }

    #[test]
    fn keys_of_shards_name_their_state() {
        let key = Key::new("jobs/7/rank-3").unwrap();
        assert_eq!(state_of(shards_key(&key, 12, 0xab).unwrap().as_str()), Some("jobs/7/rank-3"));
        for other in
            ["policy", "policy/rank-1", "policy/rank-1/7", "policy/rank-x/00000000000000ab", "rank-1/00000000000000ab"]
        {
            assert_eq!(state_of(other), None, "{other}");
        }
    }

    #[test]
    fn shard_that_does_not_fit_is_refused_with_its_numbers() {
        let (name, meta) = (TensorName::new("w").unwrap(), TensorMeta::of(DType::F32, &[4, 4]).unwrap());
        let refused = |offset: &[u64], global: &[u64]| {
            shard(name.clone(), name.clone(), &meta, offset, global).unwrap_err().to_string()
        };
        assert!(refused(&[0], &[8, 8]).contains("equally many dimensions"));
        assert!(refused(&[0, 5], &[8, 8]).contains("f32[4, 4] at [0, 5] of [8, 8]"), "{}", refused(&[0, 5], &[8, 8]));
        assert!(refused(&[u64::MAX, 0], &[8, 8]).contains("ends behind"));
        let packed = TensorMeta::of(DType::I4, &[4, 4]).unwrap();
        let odd = shard(name.clone(), name, &packed, &[0, 3], &[8, 8]).unwrap_err();
        assert!(odd.to_string().contains("even"), "{odd}");
    }

    #[test]
    fn fuzz_shard_record() {
        let proved = Kinds { hash: Some(Digest::Xxh3), has_deltas: true };
        Target::new("shard_record", [example(Kinds::default()), example(proved)]).run(|bytes| {
            match read_record(&key(), 0, bytes) {
                Err(_) => "refused".into(),
                Ok(layout) => {
                    assert_eq!(record_bytes(&layout.shards, layout.kinds).unwrap(), bytes);
                    "read".into()
                }
            }
        });
    }

    #[test]
    fn fuzz_manifest() {
        Target::new("shard_manifest", [manifest_bytes(3, 2, &ranks())]).run(|bytes| {
            match read_manifest(&key(), bytes) {
                Err(_) => "refused".into(),
                Ok((restart, unproved, ranks)) => {
                    assert_eq!(manifest_bytes(restart, unproved, &ranks), bytes);
                    format!("{} ranks", ranks.len().min(9))
                }
            }
        });
    }
}
