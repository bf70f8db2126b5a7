//! The configuration of a verbs fabric, and the check of its settings.

use std::net::SocketAddr;
use std::time::Duration;
use transfer_core::fabric::Isolation;
use transfer_verbs::Mtu;

/// A device may be slow for this long, for instance one of an emulated machine, or behind a list of long WRITEs whose
/// last one alone asks for a completion.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time of `min_rnr_timer`.
const LONGEST_RNR_TIMER: Duration = Duration::from_millis(656);

/// How the queue pairs of two sides are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connecting {
    /// The offers carry the numbers and addresses of the queue pairs, and each side moves its own through its states.
    QueuePairData,
    /// The RDMA connection manager connects them. The offers carry the address that it listens on, and tokens.
    RdmaCm {
        /// An IP address of the device, and a port. Port 0: any free one.
        listen: SocketAddr,
    },
}

/// When a grant is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantReport {
    /// When its bind was posted. Messages that are posted to this link later are behind it. A key that takes another
    /// path, such as another link, may arrive before the grant is in force.
    Posted,
    /// When its bind has completed. The key may take any path.
    Completed,
}

/// The configuration of a verbs fabric: the device, and the properties of its queue pairs.
///
/// The values that the hardware knows are those of ibv_modify_qp(3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The device's name; `None`: the first device with an active port.
    pub device: Option<String>,
    /// Its port; `None`: the first active one.
    pub port: Option<u8>,
    /// The entry of the port's GID table that is its address; `None`: RoCE v2 over IPv4, then over IPv6; on InfiniBand
    /// the LID.
    pub gid_index: Option<u32>,
    /// How links are made.
    pub connect: Connecting,
    /// The largest packet; `None`: the largest that both ports have.
    pub mtu: Option<Mtu>,
    /// The time to wait for an acknowledgement: 4.096 µs x 2^timeout, 1 to 31.
    pub timeout: u8,
    /// The number of times that an unacknowledged request is sent again, 0 to 6. 7 means without limit on some devices
    /// (docs/adr/0001), and is refused.
    pub retry_count: u8,
    /// The number of times that a request is sent again that found no receive posted, 0 to 6. 7 means without limit,
    /// and is refused.
    pub rnr_retry: u8,
    /// The time that a peer waits before it does so, 0 to 31, as ibv_modify_qp(3) numbers the times.
    pub min_rnr_timer: u8,
    /// The traffic class of the packets. On RoCE its upper six bits are the DSCP.
    pub traffic_class: u8,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The entry of the port's table of partition keys.
    pub pkey_index: u16,
    /// The memory that one grant opens. [`Isolation::Grant`] becomes [`Isolation::Segment`] on a device without memory
    /// windows.
    pub isolation: Isolation,
    /// When a grant is reported.
    pub grants: GrantReport,
    /// The most work requests of a link that are posted and not completed.
    pub send_queue: u32,
    /// The number of receive slots of a link.
    pub receive_slots: u32,
    /// Data of up to this length is copied into the work request. If the device allows less, the length is reduced.
    pub inline_bytes: u32,
    /// The largest distance between two work requests that ask for a completion.
    pub signaled_every: u32,
    /// The number of entries of a completion queue. When all of them are reserved, another queue is made.
    pub completion_queue: u32,
    /// The most bytes of segments that may be registered at a time.
    pub max_registered_bytes: u64,
    /// The most memory windows of one link.
    pub max_windows: u32,
    /// A link that was idle for this time probes the peer's queue pair.
    pub probe_interval: Duration,
    /// A link ends if it has requests in flight, and the device has reported nothing on it for this time. By default
    /// twice what the retries may take, at least 30 s: it is for a device that has stalled.
    pub stall_timeout: Option<Duration>,
    /// The time within which a link has to connect.
    pub handshake_timeout: Duration,
}

impl Default for VerbsConfig {
    fn default() -> VerbsConfig {
        VerbsConfig {
            device: None,
            port: None,
            gid_index: None,
            connect: Connecting::QueuePairData,
            mtu: None,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            isolation: Isolation::Grant,
            grants: GrantReport::Posted,
            send_queue: 512,
            receive_slots: 256,
            inline_bytes: 256,
            signaled_every: 64,
            completion_queue: 16 << 10,
            max_registered_bytes: u64::MAX,
            max_windows: 1 << 16,
            probe_interval: Duration::from_secs(1),
            stall_timeout: None,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// A setting that is out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} = {value}: {wanted}")]
pub struct BadSetting {
    /// Its name.
    pub setting: &'static str,
    /// Its value.
    pub value: u64,
    /// The values that are allowed.
    pub wanted: &'static str,
}

impl VerbsConfig {
    /// Returns the time after which a device that reports nothing about requests in flight has stalled.
    pub(super) fn stall_timeout(&self) -> Duration {
        // InfiniBand allows a device to wait up to four times its time-out.
        let unacknowledged = Duration::from_nanos((4 * 4096) << self.timeout) * (u32::from(self.retry_count) + 1);
        let receiver_not_ready = LONGEST_RNR_TIMER * (u32::from(self.rnr_retry) + 1);
        self.stall_timeout.unwrap_or_else(|| MIN_STALL_TIMEOUT.max((unacknowledged + receiver_not_ready) * 2))
    }

    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), BadSetting> {
        let in_bounds = |setting, value: u64, bounds: std::ops::RangeInclusive<u64>, wanted| {
            if bounds.contains(&value) { Ok(()) } else { Err(BadSetting { setting, value, wanted }) }
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        in_bounds("port", self.port.unwrap_or(1).into(), 1..=255, "ports are counted from 1")?;
        in_bounds("timeout", self.timeout.into(), 1..=31, "1 to 31; 0 would wait for ever")?;
        in_bounds("retry_count", self.retry_count.into(), 0..=6, "0 to 6; 7 is for ever on some devices")?;
        in_bounds("rnr_retry", self.rnr_retry.into(), 0..=6, "0 to 6; 7 is for ever")?;
        in_bounds("min_rnr_timer", self.min_rnr_timer.into(), 0..=31, "0 to 31")?;
        in_bounds("service_level", self.service_level.into(), 0..=15, "0 to 15")?;
        in_bounds("send_queue", self.send_queue.into(), 16..=1 << 15, "16 to 32768")?;
        in_bounds("receive_slots", self.receive_slots.into(), 8..=1 << 14, "8 to 16384")?;
        in_bounds("inline_bytes", self.inline_bytes.into(), 0..=1024, "0 to 1024")?;
        let queue = u64::from(self.send_queue);
        in_bounds("signaled_every", self.signaled_every.into(), 1..=queue, "1 to the length of the send queue")?;
        let both = queue + u64::from(self.receive_slots) + u64::from(super::SPARE_RECEIVES);
        let wanted = "at least what one link needs: send_queue + receive_slots + 2";
        in_bounds("completion_queue", self.completion_queue.into(), both..=u64::MAX, wanted)?;
        in_bounds("max_windows", self.max_windows.into(), 1..=1 << 24, "1 to 16777216")?;
        in_bounds("probe_interval", millis(self.probe_interval), 10..=3_600_000, "10 ms to an hour")?;
        let stall = self.stall_timeout();
        in_bounds("stall_timeout", millis(stall), 10..=u64::MAX, "at least 10 ms")?;
        in_bounds("handshake_timeout", millis(self.handshake_timeout), 10..=3_600_000, "10 ms to an hour")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_are_valid() {
        assert_eq!(VerbsConfig::default().check(), Ok(()));
    }

    #[test]
    fn invalid_settings_are_named() {
        let bad = |change: fn(&mut VerbsConfig)| {
            let mut config = VerbsConfig::default();
            change(&mut config);
            config.check().unwrap_err()
        };
        let forever = bad(|c| c.retry_count = 7);
        assert_eq!(forever.to_string(), "retry_count = 7: 0 to 6; 7 is for ever on some devices");
        assert_eq!(bad(|c| c.rnr_retry = 7).setting, "rnr_retry");
        assert_eq!(bad(|c| c.timeout = 0).setting, "timeout");
        assert_eq!(bad(|c| c.timeout = 32).setting, "timeout");
        assert_eq!(bad(|c| c.port = Some(0)).setting, "port");
        assert_eq!(bad(|c| c.service_level = 16).setting, "service_level");
        assert_eq!(bad(|c| c.signaled_every = 0).setting, "signaled_every");
        assert_eq!(bad(|c| c.signaled_every = 513).setting, "signaled_every");
        assert_eq!(bad(|c| c.completion_queue = 769).setting, "completion_queue");
        assert_eq!(bad(|c| c.probe_interval = Duration::ZERO).setting, "probe_interval");
    }
}
