//! The devices of this machine.

use std::ffi::CStr;
use std::fmt;

use rdma_sys::ibv_device;
use serde::{Serialize, Serializer};

use crate::sys::{Handle, Verbs, verbs};
use crate::{Context, VerbsError};

/// A device's globally unique number, from its maker.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The type of a device in its network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeType {
    /// A channel adapter: an InfiniBand or RoCE card, or rxe.
    ChannelAdapter,
    /// An InfiniBand switch.
    Switch,
    /// An InfiniBand router.
    Router,
    /// An iWARP card, or siw.
    Rnic,
    /// Something else: usNIC, or a device without a type.
    Other,
}

impl NodeType {
    /// Converts a code of `enum ibv_node_type`.
    fn from_code(code: i64) -> Self {
        match code {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "InfiniBand channel adapter",
            Self::Switch => "InfiniBand switch",
            Self::Router => "InfiniBand router",
            Self::Rnic => "iWARP NIC",
            Self::Other => "other",
        })
    }
}

/// A device that may be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    name: String,
    guid: Guid,
    node_type: NodeType,
}

impl Device {
    /// The kernel's name for it, such as `mlx5_0` or `rxe0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Its type.
    pub fn node_type(&self) -> NodeType {
        self.node_type
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Context, VerbsError> {
        let list = DeviceList::get()?;
        for &device in list.devices() {
            if list.describe(device) == *self {
                return Context::open(list.functions, device, self);
            }
        }
        // The device has gone since it was listed.
        Err(VerbsError::code(&self.name, "ibv_open_device", libc::ENODEV))
    }
}

/// Returns the devices of this machine, which are none if the kernel has no RDMA.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    let list = match DeviceList::get() {
        // The kernel has no verbs: then there are no devices either.
        Err(VerbsError::Call { why, .. }) if why.raw_os_error() == Some(libc::ENOSYS) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.devices().iter().map(|&device| list.describe(device)).collect())
}

/// The library's list, which is freed on drop.
struct DeviceList {
    functions: &'static Verbs,
    list: Handle<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    fn get() -> Result<Self, VerbsError> {
        let library = verbs()?;
        let mut count = 0;
        // SAFETY: the count may be written.
        let list = unsafe { (library.ibv_get_device_list)(&mut count) };
        let list = Handle::new(list).map_err(|why| VerbsError::because("verbs", "ibv_get_device_list", why))?;
        Ok(Self { functions: library, list, len: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: the list has that many entries until it is given back.
        unsafe { std::slice::from_raw_parts(self.list.raw(), self.len) }
    }

    /// Describes a device of the list.
    fn describe(&self, device: *mut ibv_device) -> Device {
        // SAFETY: the list keeps its devices, whose names end with a zero byte and whose type is never changed.
        unsafe {
            Device {
                name: CStr::from_ptr((self.functions.ibv_get_device_name)(device)).to_string_lossy().into_owned(),
                guid: Guid(u64::from_be((self.functions.ibv_get_device_guid)(device))),
                node_type: NodeType::from_code(i64::from((*device).node_type)),
            }
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is given back once. Open devices stay.
        unsafe { (self.functions.ibv_free_device_list)(self.list.raw()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Guid, NodeType};

    #[test]
    fn a_number_is_shown_as_ibv_devices_shows_it() {
        assert_eq!(Guid(0x0002_c903_00a1_b2c3).to_string(), "0002:c903:00a1:b2c3");
    }

    #[test]
    fn types_are_those_of_the_header() {
        assert_eq!(NodeType::from_code(1), NodeType::ChannelAdapter);
        assert_eq!(NodeType::from_code(4), NodeType::Rnic);
        assert_eq!(NodeType::from_code(-1), NodeType::Other);
    }
}
