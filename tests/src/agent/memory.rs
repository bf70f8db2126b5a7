//! The place of bytes in shared memory, as the kernel reports it.

use crate::order::MappedBytes;

/// Returns the place of bytes in a mapping of this process, or `None` if they lie in no file.
pub(super) fn place_of(bytes: &[u8]) -> Option<MappedBytes> {
    let at = bytes.as_ptr().addr() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        // start-end permissions offset device inode path
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        if !(start..end).contains(&at) {
            return None;
        }
        let permissions = fields.next()?;
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let writable = permissions.contains('w');
        (inode != 0).then(|| MappedBytes { inode, offset: offset + (at - start), writable })
    })
}
