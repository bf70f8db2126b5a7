//! The GPUs of this process, and the driver's version.

use crate::CudaError;
use crate::sys::{self, Driver, attribute, driver};
use serde::Serialize;
use std::ffi::{c_char, c_int};
use std::fmt;

/// A GPU, as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Its number in this process, from 0. `CUDA_VISIBLE_DEVICES` changes it.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its PCI address, as domain, bus, device and function.
    pub pci_address: String,
    /// The size of its memory, in bytes.
    pub memory_bytes: u64,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Whether it reads host memory that was allocated elsewhere and then registered.
    pub host_registration: bool,
    /// Whether such memory may be mapped read-only. Without this, fetched tensors are copied as pageable memory.
    pub read_only_host_registration: bool,
    /// Whether its memory can be exported to another process by a descriptor.
    pub posix_descriptor_export: bool,
}

/// The highest version of CUDA that the driver supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl DriverVersion {
    /// Of the driver's number: 13000 is 13.0, 12080 is 12.8.
    fn of(number: c_int) -> DriverVersion {
        let number = number.unsigned_abs();
        DriverVersion { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The version of CUDA that the driver supports.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoGpu`], [`CudaError::Forked`].
pub fn driver_version() -> Result<DriverVersion, CudaError> {
    let (driver, mut number) = (driver()?, 0);
    // SAFETY: the function stores a number.
    driver.check("cuDriverGetVersion", unsafe { (driver.driver_get_version)(&raw mut number) })?;
    Ok(DriverVersion::of(number))
}

/// The GPUs that this process sees, by number; at least one.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoGpu`], [`CudaError::Forked`], [`CudaError::Call`].
pub fn devices() -> Result<Vec<DeviceReport>, CudaError> {
    let driver = driver()?;
    match count(driver)? {
        0 => Err(CudaError::NoGpu),
        count => (0..count).map(|ordinal| describe(driver, ordinal)).collect(),
    }
}

fn count(driver: &Driver) -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: the function stores a number.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The driver's handle of the GPU of this number.
pub(crate) fn find(driver: &Driver, ordinal: u32) -> Result<sys::Device, CudaError> {
    let count = count(driver)?;
    let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or(CudaError::NoSuchDevice { asked: ordinal, count })?;
    let mut device = 0;
    // SAFETY: the function stores a handle, which is a number.
    driver.check("cuDeviceGet", unsafe { (driver.device_get)(&raw mut device, number) })?;
    Ok(device)
}

/// An attribute of a GPU; 0 where the driver does not know the attribute.
pub(crate) fn attribute(driver: &Driver, device: sys::Device, which: c_int) -> c_int {
    let mut value = 0;
    // SAFETY: the function stores a number.
    let status = unsafe { (driver.device_get_attribute)(&raw mut value, which, device) };
    if status == sys::SUCCESS { value } else { 0 }
}

fn describe(driver: &Driver, ordinal: u32) -> Result<DeviceReport, CudaError> {
    let device = find(driver, ordinal)?;
    let (mut name, mut address, mut memory) = ([0 as c_char; 256], [0 as c_char; 32], 0usize);
    // SAFETY: each function stores at most as many bytes as it is told, and ends a text with a zero byte.
    unsafe {
        driver.check("cuDeviceGetName", (driver.device_get_name)(name.as_mut_ptr(), 256, device))?;
        driver.check("cuDeviceGetPCIBusId", (driver.device_get_pci_bus_id)(address.as_mut_ptr(), 32, device))?;
        driver.check("cuDeviceTotalMem", (driver.device_total_mem)(&raw mut memory, device))?;
    }
    let number = |which| attribute(driver, device, which).unsigned_abs();
    Ok(DeviceReport {
        ordinal,
        name: text(&name),
        pci_address: text(&address),
        memory_bytes: memory as u64,
        compute_capability: (number(attribute::COMPUTE_CAPABILITY_MAJOR), number(attribute::COMPUTE_CAPABILITY_MINOR)),
        host_registration: number(attribute::HOST_REGISTER_SUPPORTED) != 0,
        read_only_host_registration: number(attribute::READ_ONLY_HOST_REGISTER_SUPPORTED) != 0,
        posix_descriptor_export: number(attribute::POSIX_DESCRIPTOR_SUPPORTED) != 0,
    })
}

/// The text in a field of fixed length.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::DriverVersion;

    #[test]
    fn versions_are_read_from_the_drivers_number() {
        for (number, text) in [(13000, "13.0"), (12080, "12.8"), (11010, "11.1")] {
            assert_eq!(DriverVersion::of(number).to_string(), text);
        }
    }
}
