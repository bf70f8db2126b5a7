//! An open device.

use std::ffi::CStr;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};

use crate::sys::{Handle, Verbs};
use crate::{AsyncEvents, Device, DeviceLimits, Gid, GidEntry, GidKind, Guid, NodeType, Port, VerbsError};

/// An open device. Clones are the same device. It is closed when everything that was made from it is gone.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<ContextInner>);

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(crate) functions: &'static Verbs,
    pub(crate) raw: Handle<ibv_context>,
    device: Device,
    system_guid: Guid,
    limits: DeviceLimits,
    /// Held while a list with binds is posted: the library reads, and this crate writes, the key in the windows' own
    /// structs.
    pub(crate) binding: Mutex<()>,
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: everything made from the context holds it, so this is its last use.
        let code = unsafe { (self.functions.ibv_close_device)(self.raw.raw()) };
        if code != 0 {
            tracing::warn!(device = self.device.name(), code, "the device could not be closed");
        }
    }
}

impl Context {
    /// Opens `device`, which is of the library's list and described by `description`.
    pub(crate) fn open(
        library: &'static Verbs,
        device: *mut ibv_device,
        description: &Device,
    ) -> Result<Self, VerbsError> {
        let name = description.name();
        // SAFETY: the device is of a list that was not given back yet.
        let raw = Handle::new(unsafe { (library.ibv_open_device)(device) })
            .map_err(|why| VerbsError::because(name, "ibv_open_device", why))?;
        // SAFETY: plain numbers and texts, for which zeros are valid.
        let mut attr: ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and the attributes may be written.
        let code = unsafe { (library.ibv_query_device)(raw.raw(), &mut attr) };
        let context = Self(Arc::new(ContextInner {
            functions: library,
            raw,
            device: description.clone(),
            system_guid: Guid(u64::from_be(attr.sys_image_guid)),
            limits: DeviceLimits::new(&attr),
            binding: Mutex::new(()),
        }));
        if code == 0 { Ok(context) } else { Err(VerbsError::code(name, "ibv_query_device", code)) }
    }

    /// The kernel's name for the device.
    pub fn device_name(&self) -> &str {
        self.0.device.name()
    }

    /// The device's number.
    pub fn guid(&self) -> Guid {
        self.0.device.guid()
    }

    /// The number of the machine or card that the device is part of.
    pub fn system_guid(&self) -> Guid {
        self.0.system_guid
    }

    /// The type of the device.
    pub fn node_type(&self) -> NodeType {
        self.0.device.node_type()
    }

    /// The limits of the device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Returns the current state of the port of this number. Ports count from 1 to `limits().phys_ports`.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attr: ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the library fills the first part of the struct, which is the one that it is declared with; the rest,
        // `port_cap_flags2`, stays zero and is not used.
        let code = unsafe { (self.0.functions.ibv_query_port)(self.0.raw.raw(), number, (&raw mut attr).cast()) };
        if code != 0 {
            return Err(VerbsError::code(self.device_name(), "ibv_query_port", code));
        }
        Ok(Port::new(number, &attr))
    }

    /// Returns the used entries of a port's table of addresses.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let capacity = (1..=self.0.limits.phys_ports)
            .map(|number| self.port(number).map(|port| port.gid_table_len as usize))
            .sum::<Result<usize, _>>()?;
        // SAFETY: plain numbers, for which zeros are valid.
        let mut entries: Vec<ibv_gid_entry> = (0..capacity).map(|_| unsafe { mem::zeroed() }).collect();
        // SAFETY: there is room for that many entries of that size.
        let count = unsafe {
            (self.0.functions._ibv_query_gid_table)(
                self.0.raw.raw(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| {
            VerbsError::code(self.device_name(), "ibv_query_gid_table", i32::try_from(count).unwrap_or(libc::EIO))
        })?;
        entries.truncate(count);
        Ok(entries.iter().filter(|entry| entry.port_num == u32::from(port)).map(gid_entry).collect())
    }

    /// Returns a port's table of partition keys, with its unused entries, which are 0.
    pub fn pkeys(&self, port: u8) -> Result<Vec<u16>, VerbsError> {
        let len = self.port(port)?.pkey_table_len;
        let mut keys = Vec::with_capacity(usize::from(len));
        for index in 0..len {
            let mut key = 0;
            // SAFETY: the key may be written.
            let code = unsafe { (self.0.functions.ibv_query_pkey)(self.0.raw.raw(), port, i32::from(index), &mut key) };
            if code != 0 {
                return Err(VerbsError::last(self.device_name(), "ibv_query_pkey"));
            }
            keys.push(u16::from_be(key));
        }
        Ok(keys)
    }

    /// Returns the asynchronous events of the device. Every event is delivered once, to the first caller that asks.
    pub fn async_events(&self) -> Result<AsyncEvents, VerbsError> {
        AsyncEvents::new(self.clone())
    }

    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the context is.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.raw()).async_fd) }
    }
}

fn gid_entry(entry: &ibv_gid_entry) -> GidEntry {
    // SAFETY: all of the union's variants are plain bytes.
    let gid = Gid(unsafe { entry.gid.raw });
    let kind = match entry.gid_type {
        0 => GidKind::InfiniBand,
        1 => GidKind::RoceV1,
        _ if gid.is_ipv4() => GidKind::RoceV2Ipv4,
        _ => GidKind::RoceV2Ipv6,
    };
    GidEntry { index: entry.gid_index, gid, kind, netdev: interface_name(entry.ndev_ifindex) }
}

fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the name has the length that the function needs; it ends it with a zero byte, or returns null.
    unsafe {
        let name = libc::if_indextoname(index, name.as_mut_ptr());
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}
