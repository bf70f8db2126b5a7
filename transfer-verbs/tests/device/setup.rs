//! Memory, and two connected queue pairs of one process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use transfer_verbs::*;

/// Pages of this process. Only raw pointers look at them.
pub(crate) struct Pages {
    start: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: the pages are plain memory that is accessed by volatile reads and writes only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: the mapping lives as long as the value and is as writable as it says.
unsafe impl DeviceMemory for Pages {
    fn range(&self) -> (*mut u8, usize) {
        (self.start, self.len)
    }

    fn writable(&self) -> bool {
        self.writable
    }
}

impl Pages {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        Self::with(len, true)
    }

    pub(crate) fn with(len: usize, writable: bool) -> Arc<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, which nothing else knows.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }.unwrap();
        Arc::new(Self { start: start.cast(), len, writable })
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (place, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping.
            unsafe { self.start.add(offset + place).write_volatile(*byte) }
        }
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping.
        (0..len).map(|place| unsafe { self.start.add(offset + place).read_volatile() }).collect()
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is the mapping's last use.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}

pub(crate) const LEN: usize = 1 << 16;

/// One end: a queue pair with memory, a domain and a completion queue of its own.
pub(crate) struct End {
    pub(crate) pair: QueuePair<ReadyToSend>,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: Arc<Pages>,
    pub(crate) region: MemoryRegion,
}

pub(crate) fn chosen() -> choose::Chosen {
    choose::port(&choose::Wanted::default()).unwrap()
}

pub(crate) const OPEN: Access =
    Access { local_write: true, window_bind: true, remote_write: true, remote_read: true, remote_atomic: true };
pub(crate) const ALL: RemoteAccess = RemoteAccess { write: true, read: true, atomic: true };

pub(crate) fn options(queue: &CompletionQueue) -> QueuePairOptions {
    QueuePairOptions {
        send_queue: queue.clone(),
        receive_queue: queue.clone(),
        shared_receives: None,
        max_send: 64,
        max_receive: 64,
        max_send_elements: 8,
        max_receive_elements: 2,
        max_inline: 128,
    }
}

/// A queue pair in RESET with what it needs.
pub(crate) struct Fresh {
    pub(crate) pair: QueuePair<Reset>,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) context: Context,
}

pub(crate) fn fresh() -> Fresh {
    let context = chosen().context;
    let domain = ProtectionDomain::new(&context).unwrap();
    let queue = CompletionQueue::new(&context, 256, None).unwrap();
    let pair = QueuePair::create(&domain, &options(&queue)).unwrap();
    Fresh { pair, queue, domain, context }
}

pub(crate) fn init_attributes() -> InitAttributes {
    InitAttributes { port: chosen().port.number, pkey_index: 0, access: ALL }
}

pub(crate) fn receive_attributes(peer: u32) -> ReceiveAttributes {
    let chosen = chosen();
    let gid = chosen.gid.unwrap();
    ReceiveAttributes {
        destination: Destination {
            gid: Some(gid.gid),
            gid_index: u8::try_from(gid.index).unwrap(),
            traffic_class: 96,
            ..Destination::default()
        },
        queue_pair: peer,
        packet_number: 77,
        path_mtu: chosen.port.mtu_active,
        max_rd_atomic: 8,
        min_rnr_timer: 12,
    }
}

pub(crate) const SEND: SendAttributes =
    SendAttributes { packet_number: 77, timeout: 14, retry_count: 6, rnr_retry: 6, max_rd_atomic: 8 };

pub(crate) fn connect(pair: QueuePair<Reset>, peer: u32) -> QueuePair<ReadyToSend> {
    let pair = pair.init(&init_attributes()).unwrap();
    pair.ready_to_receive(&receive_attributes(peer)).unwrap().ready_to_send(&SEND).unwrap()
}

/// Two ends with the same options but for what `change` does to them.
pub(crate) fn ends_with(
    channel: impl Fn(&Context) -> Option<CompletionChannel>,
    change: impl Fn(&ProtectionDomain, &mut QueuePairOptions),
) -> (End, End) {
    let made = [(); 2].map(|()| {
        let context = chosen().context;
        let domain = ProtectionDomain::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 256, channel(&context).as_ref()).unwrap();
        let memory = Pages::new(LEN);
        let region = MemoryRegion::register(&domain, memory.clone(), OPEN).unwrap();
        let mut options = options(&queue);
        change(&domain, &mut options);
        let pair = QueuePair::create(&domain, &options).unwrap();
        (pair, queue, domain, memory, region)
    });
    let numbers = [made[0].0.number(), made[1].0.number()];
    let mut ends = made.into_iter().zip([numbers[1], numbers[0]]).map(|(made, peer)| {
        let (pair, queue, domain, memory, region) = made;
        End { pair: connect(pair, peer), queue, domain, memory, region }
    });
    (ends.next().unwrap(), ends.next().unwrap())
}

pub(crate) fn ends() -> (End, End) {
    ends_with(|_| None, |_, _| ())
}

impl End {
    pub(crate) fn element(&self, offset: usize, len: usize) -> Element {
        self.region.element(offset, len).unwrap()
    }

    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.region.address() + offset as u64
    }

    pub(crate) fn receive(&mut self, work_id: u64, offset: usize, len: usize) {
        let mut list = ReceiveList::new();
        list.push(work_id, &[self.element(offset, len)]);
        self.pair.post_receive(&mut list).unwrap();
    }

    pub(crate) fn post(&mut self, kinds: &[SendKind<'_>]) {
        let mut list = SendList::new();
        for (work_id, kind) in (0..).zip(kinds) {
            list.push(SendRequest { work_id, signaled: true, fence: false, kind: *kind });
        }
        self.pair.post_send(&mut list).unwrap();
        assert!(list.is_empty());
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> Completion {
        next_of(&self.queue)
    }

    /// The next completion, which is a success.
    pub(crate) fn done(&self) -> Done {
        let completion = self.completion();
        completion.result.unwrap_or_else(|status| panic!("work request {}: {status}", completion.work_id))
    }

    /// Posts one work request and waits for it.
    pub(crate) fn run(&mut self, kind: SendKind<'_>) -> Done {
        self.post(&[kind]);
        self.done()
    }
}

pub(crate) fn next_of(queue: &CompletionQueue) -> Completion {
    let until = Instant::now() + Duration::from_secs(30);
    let mut list = [Completion::EMPTY];
    while queue.poll(&mut list).unwrap() == 0 {
        assert!(Instant::now() < until, "no completion");
        std::thread::yield_now();
    }
    list[0]
}
