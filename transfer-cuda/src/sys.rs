//! The driver's functions, looked up at run time, so that a program starts even if the library is missing.
//!
//! Their signatures are those of cuda.h (CUDA 12 and 13; all have been there since CUDA 11.1). A name with `_v2` is the
//! version that cuda.h maps the plain name to.

use crate::CudaError;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The driver's library, as the loader finds it. The driver installs it; the CUDA toolkit does not.
pub(crate) const LIBRARY: &str = "libcuda.so.1";

/// `CUresult`.
pub(crate) type Status = c_int;
/// `CUdevice`.
pub(crate) type Device = c_int;
/// `CUdeviceptr`.
pub(crate) type DevicePointer = u64;
/// `CUcontext`.
pub(crate) type Context = *mut c_void;
/// `CUstream`.
pub(crate) type RawStream = *mut c_void;
/// `CUevent`.
pub(crate) type RawEvent = *mut c_void;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
pub(crate) const NOT_READY: Status = 600;

/// `CUdevice_attribute`.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(crate) const HOST_REGISTER_SUPPORTED: c_int = 99;
    pub(crate) const POSIX_DESCRIPTOR_SUPPORTED: c_int = 103;
    pub(crate) const READ_ONLY_HOST_REGISTER_SUPPORTED: c_int = 113;
}

/// Declares the table of functions, and the function that fills it.
macro_rules! driver {
    ($($name:ident = $symbol:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The driver's functions.
        pub(crate) struct Driver {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> Status,)*
            /// Keeps the functions. It is never closed.
            _library: libloading::Library,
            /// The process that has initialised the driver. A forked child cannot use it.
            process: u32,
        }

        impl Driver {
            fn load(library_name: &'static str) -> Result<Driver, CudaError> {
                let missing = |why: libloading::Error| CudaError::NoDriver { library: library_name, why: words(&why) };
                // SAFETY: the library's initialisers only set up its own state.
                let library = unsafe { libloading::Library::new(library_name) }.map_err(missing)?;
                // SAFETY: each function has the signature that cuda.h declares under this name.
                unsafe {
                    $(let $name = *library
                        .get::<unsafe extern "C" fn($($type),*) -> Status>(concat!(stringify!($symbol), "\0").as_bytes())
                        .map_err(missing)?;)*
                    Ok(Driver { $($name,)* _library: library, process: std::process::id() })
                }
            }
        }
    };
}

driver! {
    init = cuInit(flags: c_uint);
    get_error_name = cuGetErrorName(status: Status, name: *mut *const c_char);
    get_error_string = cuGetErrorString(status: Status, text: *mut *const c_char);
    driver_get_version = cuDriverGetVersion(version: *mut c_int);
    device_get_count = cuDeviceGetCount(count: *mut c_int);
    device_get = cuDeviceGet(device: *mut Device, ordinal: c_int);
    device_get_name = cuDeviceGetName(name: *mut c_char, len: c_int, device: Device);
    device_get_pci_bus_id = cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: Device);
    device_get_attribute = cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: Device);
    device_total_mem = cuDeviceTotalMem_v2(bytes: *mut usize, device: Device);
    primary_context_retain = cuDevicePrimaryCtxRetain(context: *mut Context, device: Device);
    primary_context_release = cuDevicePrimaryCtxRelease_v2(device: Device);
    context_push = cuCtxPushCurrent_v2(context: Context);
    context_pop = cuCtxPopCurrent_v2(context: *mut Context);
    mem_get_info = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    mem_alloc = cuMemAlloc_v2(pointer: *mut DevicePointer, len: usize);
    mem_free = cuMemFree_v2(pointer: DevicePointer);
    mem_host_alloc = cuMemHostAlloc(pointer: *mut *mut c_void, len: usize, flags: c_uint);
    mem_free_host = cuMemFreeHost(pointer: *mut c_void);
    mem_host_register = cuMemHostRegister_v2(pointer: *mut c_void, len: usize, flags: c_uint);
    mem_host_unregister = cuMemHostUnregister(pointer: *mut c_void);
    copy_to_device = cuMemcpyHtoDAsync_v2(to: DevicePointer, from: *const c_void, len: usize, stream: RawStream);
    copy_to_host = cuMemcpyDtoHAsync_v2(to: *mut c_void, from: DevicePointer, len: usize, stream: RawStream);
    stream_create = cuStreamCreate(stream: *mut RawStream, flags: c_uint);
    stream_destroy = cuStreamDestroy_v2(stream: RawStream);
    stream_synchronize = cuStreamSynchronize(stream: RawStream);
    stream_is_capturing = cuStreamIsCapturing(stream: RawStream, status: *mut c_int);
    exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    event_create = cuEventCreate(event: *mut RawEvent, flags: c_uint);
    event_record = cuEventRecord(event: RawEvent, stream: RawStream);
    event_query = cuEventQuery(event: RawEvent);
    event_synchronize = cuEventSynchronize(event: RawEvent);
    event_destroy = cuEventDestroy_v2(event: RawEvent);
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

/// The loader's words, which libloading keeps in the source of its error.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The initialised driver. It is opened once; a failure stays.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoGpu`], [`CudaError::Forked`], [`CudaError::Call`].
pub(crate) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        let driver = Driver::load(LIBRARY)?;
        // SAFETY: the function has no condition.
        match unsafe { (driver.init)(0) } {
            NO_DEVICE => Err(CudaError::NoGpu),
            status => driver.check("cuInit", status).map(|()| driver),
        }
    });
    let driver = driver.as_ref().map_err(CudaError::clone)?;
    if driver.is_forked() { Err(CudaError::Forked) } else { Ok(driver) }
}

impl Driver {
    /// Whether this process is a forked child of the one that has initialised the driver.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Lets the calling thread use the driver while another thread captures a graph, which its calls would spoil
    /// otherwise.
    pub(crate) fn leave_captures_alone(&self) {
        // CU_STREAM_CAPTURE_MODE_RELAXED.
        let mut mode = 2;
        // SAFETY: the function exchanges a number.
        let _ = unsafe { (self.exchange_capture_mode)(&raw mut mode) };
    }

    /// Turns the status of `call`, a name of cuda.h, into a result.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        let text = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut found = ptr::null();
            // SAFETY: the function stores a pointer to a static text, or null for a status that it does not know.
            let known = unsafe { get(status, &raw mut found) } == SUCCESS && !found.is_null();
            // SAFETY: the text is static, and ends with a zero byte.
            known.then(|| unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
        };
        let name = text(self.get_error_name).unwrap_or_else(|| "an unknown status".to_owned());
        Err(CudaError::Call { call, status, name, text: text(self.get_error_string).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::Driver;
    use crate::CudaError;

    #[test]
    fn a_missing_library_is_named_with_the_loaders_words() {
        let error = Driver::load("libnowhere.so.7").expect_err("it is not there");
        assert!(matches!(error, CudaError::NoDriver { library: "libnowhere.so.7", .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("libnowhere.so.7") && text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_library_without_the_functions_is_named_with_the_function() {
        let CudaError::NoDriver { library, why } = Driver::load("libc.so.6").expect_err("another library") else {
            panic!("another error")
        };
        assert!(library == "libc.so.6" && why.contains("cuInit"), "{why}");
    }
}
