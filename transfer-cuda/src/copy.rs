//! Copies between a GPU and the host.

use crate::context::Entered;
use crate::event::Event;
use crate::registration::{NotRegistered, pieces, register};
use crate::{Copying, CudaError, DeviceMemory, HostMemory, Stream};
use std::fmt;
use std::sync::Arc;
use transfer_memory::arena::Block;
use transfer_memory::segment::Mapping;
use transfer_memory::view::Bytes;

/// What a copy copies, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyReport {
    /// The length, in bytes.
    pub bytes: u64,
    /// The part of it that the GPU copies by itself, because the host's memory is registered, in bytes.
    pub registered_bytes: u64,
    /// The reason why the driver copies the rest through memory of its own.
    pub not_registered: Option<NotRegistered>,
}

/// A copy that was not made. It contains what was to be copied, unless the GPU may still use it.
#[derive(Debug)]
pub struct CopyError<T> {
    /// The reason.
    pub error: CudaError,
    /// What was to be copied. `None` if the driver cannot say whether the GPU has stopped; then it is leaked.
    pub owned: Option<T>,
}

impl<T> fmt::Display for CopyError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for CopyError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> From<Box<CopyError<T>>> for CudaError {
    fn from(error: Box<CopyError<T>>) -> CudaError {
        error.error
    }
}

/// The result of a copy that was begun.
type Begun<T> = Result<Copying<T>, Box<CopyError<T>>>;

/// Copies immutable bytes to a GPU, behind the work that is in `stream`. Returns at once, if the bytes are registered.
///
/// # Errors
/// [`CudaError::WrongLength`], [`CudaError::OtherDevice`], [`CudaError::Capturing`], [`CudaError::Forked`],
/// [`CudaError::Call`].
pub fn copy_to_device(from: Bytes, to: DeviceMemory, stream: &Stream) -> Begun<(Bytes, DeviceMemory)> {
    let host = Host {
        start: from.as_ptr().cast_mut(),
        len_bytes: from.len() as u64,
        mapping: from.in_mapping().map(|(mapping, offset)| (mapping.clone(), offset)),
    };
    // SAFETY: the bytes are valid for reads, and nobody writes them, while `from` lives.
    unsafe { begin(Direction::ToDevice, &host, (from, to), |owned| &owned.1, stream) }
}

/// Copies a GPU's memory to a block of the arena, behind the work that is in `stream`. Returns at once, if the block is
/// registered.
///
/// # Errors
/// Those of [`copy_to_device`].
pub fn copy_from_device(from: DeviceMemory, mut to: Block, stream: &Stream) -> Begun<(DeviceMemory, Block)> {
    let mapping = (to.arena().mapping().clone(), to.slice().offset);
    let bytes = to.as_bytes_mut();
    let host = Host { start: bytes.as_mut_ptr(), len_bytes: bytes.len() as u64, mapping: Some(mapping) };
    // SAFETY: the block is valid for writes, and nothing else accesses it, while `to` lives.
    unsafe { begin(Direction::ToHost, &host, (from, to), |owned| &owned.0, stream) }
}

/// Copies other host memory to a GPU. See [`copy_to_device`].
///
/// # Errors
/// Those of [`copy_to_device`].
pub fn copy_from_host(from: HostMemory, to: DeviceMemory, stream: &Stream) -> Begun<(HostMemory, DeviceMemory)> {
    let bytes = from.as_bytes();
    let host = Host { start: bytes.as_ptr().cast_mut(), len_bytes: bytes.len() as u64, mapping: None };
    // SAFETY: the bytes lie on the heap, and are valid for reads, and nobody writes them, while `from` lives.
    unsafe { begin(Direction::ToDevice, &host, (from, to), |owned| &owned.1, stream) }
}

/// Copies a GPU's memory to other host memory. See [`copy_from_device`].
///
/// # Errors
/// Those of [`copy_to_device`].
pub fn copy_to_host(from: DeviceMemory, mut to: HostMemory, stream: &Stream) -> Begun<(DeviceMemory, HostMemory)> {
    let bytes = to.as_bytes_mut();
    let host = Host { start: bytes.as_mut_ptr(), len_bytes: bytes.len() as u64, mapping: None };
    // SAFETY: the bytes lie on the heap, and are valid for writes, and nothing else accesses them, while `to` lives.
    unsafe { begin(Direction::ToHost, &host, (from, to), |owned| &owned.0, stream) }
}

/// Copies between other host memory and a GPU with the driver's functions alone, and waits: what a program does without
/// this crate. Benchmarks compare with it.
///
/// # Errors
/// Those of [`copy_to_device`]. Then both ends are leaked, if the GPU may still use them.
pub fn copy_plainly(
    mut host: HostMemory,
    device: DeviceMemory,
    to_device: bool,
    stream: &Stream,
) -> Result<(HostMemory, DeviceMemory), CudaError> {
    let bytes = host.as_bytes_mut();
    let end = Host { start: bytes.as_mut_ptr(), len_bytes: bytes.len() as u64, mapping: None };
    let entered = stream.gpu().enter()?;
    check(&end, &device, stream, &entered)?;
    let direction = if to_device { Direction::ToDevice } else { Direction::ToHost };
    // SAFETY: both ends are owned here until the stream has ended, or are leaked.
    let copied = unsafe { enqueue(direction, &end, &device, stream, &entered, &mut CopyReport::default()) };
    drop(entered);
    match copied.and_then(|()| stream.synchronize()) {
        Ok(()) => Ok((host, device)),
        Err(error) => {
            std::mem::forget((host, device));
            Err(error)
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    ToDevice,
    ToHost,
}

/// The host's end of a copy.
struct Host {
    start: *mut u8,
    len_bytes: u64,
    /// The mapping that it lies in, and its place there, in bytes from the mapping's start.
    mapping: Option<(Arc<Mapping>, u64)>,
}

/// Begins a copy, which owns `owned` until its end.
///
/// # Safety
/// Until `owned` is dropped, the host's end is valid for reads, or for writes if the copy writes it, and no other code
/// accesses it in conflict with that. It does not move with `owned`.
unsafe fn begin<T: Send + 'static>(
    direction: Direction,
    host: &Host,
    owned: T,
    device: impl Fn(&T) -> &DeviceMemory,
    stream: &Stream,
) -> Begun<T> {
    let mut report = CopyReport { bytes: host.len_bytes, ..CopyReport::default() };
    let ready = stream.gpu().enter().and_then(|entered| {
        check(host, device(&owned), stream, &entered)?;
        Ok((Event::new(stream.gpu(), &entered)?, entered))
    });
    let (event, entered) = match ready {
        Ok(ready) => ready,
        Err(error) => return Err(Box::new(CopyError { error, owned: Some(owned) })),
    };
    // SAFETY: the caller's contract. `owned` is dropped below, after the stream has ended, or by `Copying`, after the
    // event has come.
    let enqueued = unsafe { enqueue(direction, host, device(&owned), stream, &entered, &mut report) };
    let recorded = enqueued.and_then(|()| event.record(stream, &entered));
    drop(entered);
    match recorded {
        Ok(()) => Ok(Copying::new(event, owned, report)),
        Err(error) => match stream.synchronize() {
            Ok(()) => Err(Box::new(CopyError { error, owned: Some(owned) })),
            Err(_) => {
                // A piece may be under way, and nobody knows until when.
                std::mem::forget(owned);
                Err(Box::new(CopyError { error, owned: None }))
            }
        },
    }
}

fn check(host: &Host, device: &DeviceMemory, stream: &Stream, entered: &Entered<'_>) -> Result<(), CudaError> {
    if host.len_bytes != device.len_bytes() {
        return Err(CudaError::WrongLength { host_bytes: host.len_bytes, device_bytes: device.len_bytes() });
    }
    if device.gpu() != stream.gpu() {
        let (memory, stream) = (device.gpu().ordinal(), stream.gpu().ordinal());
        return Err(CudaError::OtherDevice { memory, stream });
    }
    stream.check_not_capturing(entered)
}

/// Puts the copy into the stream, piece by piece. No copy may cross the border between two registrations.
///
/// # Safety
/// Both ends stay valid until the stream has done this, the host's end as [`begin`] demands. `entered` is of the stream's
/// GPU.
unsafe fn enqueue(
    direction: Direction,
    host: &Host,
    device: &DeviceMemory,
    stream: &Stream,
    entered: &Entered<'_>,
    report: &mut CopyReport,
) -> Result<(), CudaError> {
    let copy = |at: u64, len: u64| {
        // SAFETY: the piece lies within both ends, whose lengths are equal; the caller promises the rest.
        unsafe {
            let (here, there) = (host.start.add(at as usize).cast(), device.address() + at);
            match direction {
                Direction::ToDevice => {
                    let status = (entered.driver.copy_to_device)(there, here, len as usize, stream.raw());
                    entered.check("cuMemcpyHtoDAsync", status)
                }
                Direction::ToHost => {
                    let status = (entered.driver.copy_to_host)(here, there, len as usize, stream.raw());
                    entered.check("cuMemcpyDtoHAsync", status)
                }
            }
        }
    };
    let Some((mapping, offset)) = &host.mapping else {
        report.not_registered = (host.len_bytes > 0).then_some(NotRegistered::NoSegment);
        return if host.len_bytes > 0 { copy(0, host.len_bytes) } else { Ok(()) };
    };
    for (chunk, piece) in pieces(*offset..*offset + host.len_bytes) {
        let len = piece.end - piece.start;
        match register(stream.gpu(), mapping, chunk) {
            Ok(()) => report.registered_bytes += len,
            Err(why) => report.not_registered = Some(why),
        }
        copy(piece.start - offset, len)?;
    }
    Ok(())
}
