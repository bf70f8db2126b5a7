//! Receives to be posted together.

use std::{mem, ptr};

use rdma_sys::{ibv_recv_wr, ibv_sge};

use crate::Element;

/// A list of receives, which is posted with one call and can be used again.
#[derive(Default)]
pub struct ReceiveList {
    requests: Vec<ibv_recv_wr>,
    elements: Vec<ibv_sge>,
}

// SAFETY: the pointers in the requests point into the same list. They are set, and followed, only while it is posted,
// which takes it mutably.
unsafe impl Send for ReceiveList {}
// SAFETY: as above: a shared list's pointers are not followed.
unsafe impl Sync for ReceiveList {}

impl ReceiveList {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a receive into `elements`, which may be none: a WRITE with an immediate needs no bytes.
    pub fn push(&mut self, work_id: u64, elements: &[Element]) {
        self.elements.extend(elements.iter().map(Element::raw));
        self.requests.push(ibv_recv_wr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: i32::try_from(elements.len()).unwrap_or(i32::MAX),
        });
    }

    /// Returns the number of receives in the list.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
    }

    /// Links the requests to each other and to their elements, and passes the first one to `post`, whose result is the
    /// code and the first request that was not taken. Empties the list. An error tells how many were taken.
    pub(crate) fn post(
        &mut self,
        post: impl FnOnce(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> libc::c_int,
    ) -> Result<(), Untaken> {
        let len = self.requests.len();
        if len == 0 {
            return Ok(());
        }
        let first = self.requests.as_mut_ptr();
        let mut element = self.elements.as_mut_ptr();
        for (index, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = element;
            element = element.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
            request.next = if index + 1 < len { first.wrapping_add(index + 1) } else { ptr::null_mut() };
        }
        let mut refused = ptr::null_mut();
        let code = post(first, &mut refused);
        let result = if code == 0 { Ok(()) } else { Err(Untaken::new(code, index_of(refused, first, len), len)) };
        self.clear();
        result
    }
}

/// The error of a list that was not taken completely.
#[derive(Debug)]
pub(crate) struct Untaken {
    pub(crate) code: libc::c_int,
    pub(crate) taken: usize,
    pub(crate) of: usize,
}

impl Untaken {
    pub(crate) fn new(code: libc::c_int, taken: usize, of: usize) -> Self {
        Self { code, taken, of }
    }
}

/// Returns which of `len` requests from `first` on the library has named, or 0 if it has named none.
pub(crate) fn index_of<T>(request: *mut T, first: *mut T, len: usize) -> usize {
    let distance = (request as usize).wrapping_sub(first as usize) / mem::size_of::<T>();
    if distance < len { distance } else { 0 }
}

impl std::fmt::Debug for ReceiveList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} receives", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{ReceiveList, index_of};
    use crate::{Element, LocalKey};

    fn element(address: u64) -> Element {
        Element { address, len_bytes: 8, key: LocalKey(3) }
    }

    #[test]
    fn a_list_is_linked_when_it_is_posted_and_empty_afterwards() {
        let mut list = ReceiveList::new();
        list.push(1, &[element(0x1000), element(0x2000)]);
        list.push(2, &[]);
        list.push(3, &[element(0x3000)]);
        let mut seen = Vec::new();
        let posted = list.post(|mut request, _| {
            // SAFETY: the list has linked them.
            unsafe {
                while !request.is_null() {
                    let first = if (*request).num_sge > 0 { (*(*request).sg_list).addr } else { 0 };
                    seen.push(((*request).wr_id, (*request).num_sge, first));
                    request = (*request).next;
                }
            }
            0
        });
        assert!(posted.is_ok() && list.is_empty());
        assert_eq!(seen, [(1, 2, 0x1000), (2, 0, 0), (3, 1, 0x3000)]);
    }

    #[test]
    fn untaken_requests_are_counted() {
        let mut list = ReceiveList::new();
        (0..4).for_each(|work_id| list.push(work_id, &[]));
        let untaken = list
            .post(|first, refused| {
                *refused = first.wrapping_add(3);
                libc::ENOMEM
            })
            .expect_err("refused");
        assert_eq!((untaken.code, untaken.taken, untaken.of), (libc::ENOMEM, 3, 4));
    }

    #[test]
    fn an_empty_list_is_not_posted() {
        assert!(ReceiveList::new().post(|_, _| libc::EINVAL).is_ok());
    }

    #[test]
    fn a_pointer_from_elsewhere_counts_as_the_first() {
        let mut numbers = [0u64; 4];
        let first = numbers.as_mut_ptr();
        assert_eq!(index_of(first.wrapping_add(2), first, 4), 2);
        assert_eq!(index_of(first.wrapping_add(4), first, 4), 0);
        assert_eq!(index_of(std::ptr::null_mut(), first, 4), 0);
    }
}
