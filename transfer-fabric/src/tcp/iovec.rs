//! Vectored socket calls on mapped memory.
//!
//! Other processes may write mapped memory at any time, so no slice of it is ever formed: the kernel gets raw
//! pointers.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::ffi::c_void;
use std::marker::PhantomData;
use transfer_memory::segment::{Access, MapError, Mapping};

/// The most elements in one call; Linux takes 1024 (`UIO_MAXIOV`).
pub(super) const MAX_ELEMENTS: usize = 512;

fn element(base: *mut c_void, len: usize) -> libc::iovec {
    libc::iovec { iov_base: base, iov_len: len }
}

/// Converts the result of a libc call that returns a count or -1.
fn counted(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// The bytes that one call sends. Everything in it stays borrowed, and mapped, for `'a`.
pub(super) struct SendList<'a> {
    elements: Vec<libc::iovec>,
    len: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> SendList<'a> {
    pub(super) fn with_capacity(elements: usize) -> SendList<'a> {
        SendList { elements: Vec::with_capacity(elements), len: 0, borrowed: PhantomData }
    }

    pub(super) fn is_full(&self) -> bool {
        self.elements.len() >= MAX_ELEMENTS
    }

    /// Returns the number of listed bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push_bytes(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.elements.push(element(bytes.as_ptr().cast_mut().cast(), bytes.len()));
            self.len += bytes.len();
        }
    }

    pub(super) fn push_mapped(&mut self, mapping: &'a Mapping, offset: u64, len: usize) -> Result<(), MapError> {
        let base = mapping.ptr_at(offset, len as u64)?;
        if len > 0 {
            self.elements.push(element(base.cast(), len));
            self.len += len;
        }
        Ok(())
    }

    /// Copies the listed bytes, from `skip` on, until `to` is full. The part of `to` beyond the end of the list does
    /// not change.
    pub(super) fn copy_out(&self, mut skip: usize, mut to: &mut [u8]) {
        for element in &self.elements {
            let len = element.iov_len.saturating_sub(skip).min(to.len());
            if len > 0 {
                let from = element.iov_base.cast::<u8>().cast_const();
                // SAFETY: the element was made by `push_bytes` or `push_mapped` of memory that is valid for reads of
                // its length for 'a, and skip + len is at most that. `to` is a unique reference of at least len bytes,
                // to memory of this process's own. A process that writes mapped memory meanwhile changes the copied
                // bytes and nothing else: no reference to it is formed.
                unsafe { std::ptr::copy_nonoverlapping(from.add(skip), to.as_mut_ptr(), len) };
                to = &mut to[len..];
            }
            skip = skip.saturating_sub(element.iov_len);
        }
    }

    /// Sends as much as the socket takes now. Returns the number of bytes.
    pub(super) fn send(&self, socket: impl AsFd) -> Result<usize, Errno> {
        // SAFETY: msghdr consists of integers and pointers, for which zero is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.elements.as_ptr().cast_mut();
        message.msg_iovlen = self.elements.len();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the descriptor is open for the call; the message has no name and no control data, and msg_iovlen
        // elements. Each of them was made by `push_bytes` or `push_mapped` of memory that is valid for reads of that
        // length for 'a. sendmsg only reads it, through the pointers, so a process that writes mapped memory meanwhile
        // changes the sent bytes and nothing else.
        counted(unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) })
    }
}

/// The memory that one call receives into, in order. Everything in it stays borrowed, and mapped, for `'a`.
pub(super) struct ReceiveList<'a> {
    elements: [libc::iovec; 2],
    count: usize,
    len: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> ReceiveList<'a> {
    pub(super) fn new() -> ReceiveList<'a> {
        let none = element(std::ptr::null_mut(), 0);
        ReceiveList { elements: [none; 2], count: 0, len: 0, borrowed: PhantomData }
    }

    /// Returns the number of bytes that fit.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn push(&mut self, base: *mut c_void, len: usize) {
        // At most one of each kind is pushed, so there is a place.
        if let Some(place) = self.elements.get_mut(self.count).filter(|_| len > 0) {
            *place = element(base, len);
            self.count += 1;
            self.len += len;
        }
    }

    pub(super) fn push_bytes(&mut self, bytes: &'a mut [u8]) {
        self.push(bytes.as_mut_ptr().cast(), bytes.len());
    }

    pub(super) fn push_mapped(&mut self, mapping: &'a Mapping, offset: u64, len: usize) -> Result<(), MapError> {
        let base = mapping.ptr_at(offset, len as u64)?;
        if mapping.access() != Access::ReadWrite {
            return Err(MapError::ReadOnly { offset, len: len as u64 });
        }
        self.push(base.cast(), len);
        Ok(())
    }

    /// Copies bytes to where a call would receive them, behind the first `skip` bytes. Returns the number of bytes
    /// that had room.
    pub(super) fn copy_in(&mut self, mut skip: usize, bytes: &[u8]) -> usize {
        let mut copied = 0;
        for element in &self.elements[..self.count] {
            let len = element.iov_len.saturating_sub(skip).min(bytes.len() - copied);
            if len > 0 {
                let to = element.iov_base.cast::<u8>();
                // SAFETY: the element was made by `push_bytes` of a slice that is exclusively borrowed for 'a, or by
                // `push_mapped` of a writable mapping that lives for 'a, and is valid for writes of its length; skip +
                // len is at most that. `bytes` has that many left and is of this process's own. There is no reference
                // to mapped memory that a peer may write (see `Mapping`).
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(copied), to.add(skip), len) };
                copied += len;
            }
            skip = skip.saturating_sub(element.iov_len);
        }
        copied
    }

    /// Receives the bytes that are there now. Returns their number, which is 0 at the end of the stream.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        // SAFETY: msghdr consists of integers and pointers, for which zero is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.elements.as_mut_ptr();
        message.msg_iovlen = self.count;
        // SAFETY: the descriptor is open for the call; the message has no name and no control data, and msg_iovlen
        // elements. Each of them was made by `push_bytes` of a slice that is exclusively borrowed for 'a, or by
        // `push_mapped` of a writable mapping that lives for 'a, and valid for writes of that length. There is no
        // reference to mapped memory that a peer may write (see `Mapping`).
        counted(unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
    }
}
