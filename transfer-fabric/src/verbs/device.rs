//! The open device: its properties, its limits, and the making of its queue pairs.

use super::config::VerbsConfig;
use super::device_error;
use super::offer::Endpoint;
use transfer_core::fabric::FabricError;
use transfer_verbs::choose::{self, Wanted};
use transfer_verbs::{
    Atomics, CompletionChannel, CompletionQueue, Context, Destination, Gid, GidEntry, GidKind, InitAttributes, Mtu,
    Port, ProtectionDomain, QueuePair, QueuePairOptions, ReceiveAttributes, RemoteAccess, Reset, SendAttributes,
};

/// The most READs and atomic operations that are requested for a queue pair.
const MAX_READS: u32 = 16;

/// The longest write, whatever the port says: some devices take a length of 2 GiB for another one.
const MAX_WRITE_BYTES: u64 = 1 << 30;

/// The most routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// One port of a device.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) channel: CompletionChannel,
    pub(super) port: Port,
    /// `None` only on InfiniBand, where the LID is the address.
    pub(super) gid: Option<GidEntry>,
    pub(super) kind: GidKind,
    pub(super) mtu: Mtu,
    wanted_mtu: Option<Mtu>,
    wanted_gid: Option<u32>,
    pub(super) max_elements: u32,
    pub(super) inline_bytes: u32,
    /// The READs and atomic operations that a queue pair answers at a time.
    pub(super) answers_reads: u8,
    /// The READs and atomic operations that a queue pair may have in flight.
    pub(super) posts_reads: u8,
    pub(super) atomics: bool,
    pub(super) windows: bool,
    pkey_index: u16,
    traffic_class: u8,
    service_level: u8,
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    min_rnr_timer: u8,
}

impl Device {
    pub(super) fn open(config: &VerbsConfig) -> Result<Device, FabricError> {
        let wanted = Wanted { device: config.device.clone(), port: config.port, gid_index: config.gid_index };
        let chosen = choose::port(&wanted).map_err(device_error("choosing an RDMA device"))?;
        let (context, port, gid) = (chosen.context, chosen.port, chosen.gid);
        let channel = CompletionChannel::new(&context).map_err(device_error("making a completion channel"))?;
        let limits = context.limits().clone();
        let reads = |limit: u32| limit.min(MAX_READS) as u8;
        let atomics = limits.atomic != Atomics::None && limits.max_qp_rd_atom > 0 && limits.max_qp_init_rd_atom > 0;
        let mut device = Device {
            context,
            channel,
            kind: gid.as_ref().map_or(GidKind::InfiniBand, |gid| gid.kind),
            mtu: port.mtu_active,
            wanted_mtu: config.mtu,
            wanted_gid: config.gid_index,
            port,
            gid,
            max_elements: limits.max_sge.max(1),
            inline_bytes: 0,
            answers_reads: reads(limits.max_qp_rd_atom),
            posts_reads: reads(limits.max_qp_init_rd_atom),
            atomics,
            windows: limits.memory_windows_2b,
            pkey_index: config.pkey_index,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            timeout: config.timeout,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            min_rnr_timer: config.min_rnr_timer,
        };
        device.limit_mtu();
        device.find_limits(config)?;
        Ok(device)
    }

    fn limit_mtu(&mut self) {
        self.mtu = self.wanted_mtu.map_or(self.port.mtu_active, |mtu| mtu.min(self.port.mtu_active));
    }

    /// Looks at the port again, before a link is made. A port that went down and up may have its address at another
    /// index, or another address. Over a port that is down, no link need be tried.
    pub(super) fn look_again(&mut self) -> Result<(), FabricError> {
        let found = choose::again(&self.context, self.port.number, self.wanted_gid);
        let found = found.map_err(device_error("looking at the RDMA port"))?;
        self.kind = found.gid.as_ref().map_or(GidKind::InfiniBand, |gid| gid.kind);
        (self.port, self.gid) = (found.port, found.gid);
        self.limit_mtu();
        Ok(())
    }

    /// Finds the longest gather list and the most inline bytes that a queue pair of the configured length can have.
    /// The device's own numbers are upper bounds that need not hold together.
    fn find_limits(&mut self, config: &VerbsConfig) -> Result<(), FabricError> {
        let domain = ProtectionDomain::new(&self.context).map_err(device_error("making a protection domain"))?;
        let queue = CompletionQueue::new(&self.context, 16, None).map_err(device_error("making a completion queue"))?;
        let (sends, receives) = (config.send_queue, config.receive_slots + super::SPARE_RECEIVES);
        let most = self.max_elements;
        let mut refused = None;
        self.max_elements = 0;
        for elements in [most, 30, 16, 8, 4, 2, 1].into_iter().filter(|n| *n <= most) {
            let options = self.options(&queue, sends, receives, elements, 0);
            match QueuePair::create(&domain, &options) {
                Ok(_) => {
                    self.max_elements = elements;
                    break;
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let Some(error) = refused.filter(|_| self.max_elements == 0) {
            return Err(device_error("making a queue pair")(error));
        }
        let mut inline = config.inline_bytes;
        while inline > 0 {
            let options = self.options(&queue, sends, receives, self.max_elements, inline);
            if QueuePair::create(&domain, &options).is_ok() {
                break;
            }
            inline /= 2;
        }
        self.inline_bytes = inline;
        Ok(())
    }

    fn options(
        &self,
        queue: &CompletionQueue,
        max_send: u32,
        max_receive: u32,
        elements: u32,
        max_inline: u32,
    ) -> QueuePairOptions {
        QueuePairOptions {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            shared_receives: None,
            max_send,
            max_receive,
            max_send_elements: elements,
            max_receive_elements: 1,
            max_inline,
        }
    }

    /// Makes a queue pair that completes everything in `queue`.
    pub(super) fn queue_pair(
        &self,
        domain: &ProtectionDomain,
        queue: &CompletionQueue,
        max_send: u32,
        max_receive: u32,
    ) -> Result<QueuePair<Reset>, FabricError> {
        let options = self.options(queue, max_send, max_receive, self.max_elements, self.inline_bytes);
        QueuePair::create(domain, &options).map_err(device_error("making a queue pair"))
    }

    /// Returns the rights of a peer that has a key, through a queue pair.
    pub(super) fn access(&self) -> RemoteAccess {
        RemoteAccess { write: true, read: self.atomics, atomic: self.atomics }
    }

    pub(super) fn init_attributes(&self) -> InitAttributes {
        InitAttributes { port: self.port.number, pkey_index: self.pkey_index, access: self.access() }
    }

    /// Returns the data that a peer needs of a queue pair of this port.
    pub(super) fn endpoint(&self, queue_pair: u32, packet_number: u32) -> Endpoint {
        Endpoint {
            kind: self.kind,
            gid: self.gid.as_ref().map_or(Gid([0; 16]), |gid| gid.gid),
            lid: self.port.lid,
            queue_pair,
            packet_number,
            mtu: self.mtu,
            read_depth: self.answers_reads,
        }
    }

    /// Returns the way to a port.
    pub(super) fn destination(&self, gid: Gid, lid: u16) -> Destination {
        let routed = self.kind != GidKind::InfiniBand;
        let index = self.gid.as_ref().map_or(0, |gid| gid.index);
        Destination {
            gid: routed.then_some(gid),
            gid_index: u8::try_from(index).unwrap_or(u8::MAX),
            lid,
            hop_limit: HOP_LIMIT,
            traffic_class: self.traffic_class,
            flow_label: 0,
            service_level: self.service_level,
        }
    }

    pub(super) fn receive_attributes(&self, peer: &Endpoint) -> ReceiveAttributes {
        let destination = self.destination(peer.gid, peer.lid);
        ReceiveAttributes {
            destination,
            queue_pair: peer.queue_pair,
            packet_number: peer.packet_number,
            path_mtu: self.mtu.min(peer.mtu),
            max_rd_atomic: self.answers_reads,
            min_rnr_timer: self.min_rnr_timer,
        }
    }

    pub(super) fn send_attributes(&self, packet_number: u32, peer_answers_reads: u8) -> SendAttributes {
        SendAttributes {
            packet_number,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.posts_reads.min(peer_answers_reads),
        }
    }

    pub(super) fn pkey_index(&self) -> u16 {
        self.pkey_index
    }

    pub(super) fn max_write_bytes(&self) -> u64 {
        u64::from(self.port.max_message_bytes).clamp(4096, MAX_WRITE_BYTES)
    }

    pub(super) fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    pub(super) fn timeout(&self) -> u8 {
        self.timeout
    }

    pub(super) fn retries(&self) -> (u8, u8) {
        (self.retry_count, self.rnr_retry)
    }

    pub(super) fn min_rnr_timer(&self) -> u8 {
        self.min_rnr_timer
    }
}
