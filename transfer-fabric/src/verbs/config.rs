//! What a verbs fabric is told, and what of it cannot be.

use std::net::SocketAddr;
use std::time::Duration;
use transfer_core::fabric::Isolation;
use transfer_verbs::Mtu;

/// How queue pairs of two sides get to know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connecting {
    /// Their numbers and addresses go with the offers, and each side moves its own through its states.
    QueuePairData,
    /// The RDMA connection manager does it; the offers carry where it listens, and tokens.
    RdmaCm {
        /// An IP address of the device, and a port; 0: any free one.
        listen: SocketAddr,
    },
}

/// When a grant is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantReport {
    /// When its bind was posted. Messages that are posted to this link later are behind it; a key that goes another way, over another
    /// link say, may be there before it is in force.
    Posted,
    /// When its bind has completed: the key may go any way.
    Completed,
}

/// The device, and how its queue pairs are to work.
///
/// The numbers that the hardware knows are those of ibv_modify_qp(3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The device's name; `None`: the first with an active port.
    pub device: Option<String>,
    /// Its port; `None`: the first active one.
    pub port: Option<u8>,
    /// Which entry of the port's GID table is its address; `None`: RoCE v2 over IPv4, then over IPv6; on InfiniBand the LID.
    pub gid_index: Option<u32>,
    /// How links are made.
    pub connect: Connecting,
    /// The largest packet; `None`: what both ports have.
    pub mtu: Option<Mtu>,
    /// How long to wait for an acknowledgement: 4.096 µs x 2^timeout, 1 to 31.
    pub timeout: u8,
    /// How often to send again what was not acknowledged, 0 to 6. 7 is for ever on some devices (docs/adr/0001), and is refused.
    pub retry_count: u8,
    /// How often to send again what found no receive posted, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// How long a peer waits before it does so, 0 to 31, as ibv_modify_qp(3) numbers the times.
    pub min_rnr_timer: u8,
    /// Traffic class of the packets; on RoCE its upper six bits are the DSCP.
    pub traffic_class: u8,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Entry of the port's table of partition keys.
    pub pkey_index: u16,
    /// What one grant opens. [`Isolation::Grant`] becomes [`Isolation::Segment`] on a device without memory windows.
    pub isolation: Isolation,
    /// When a grant is reported.
    pub grants: GrantReport,
    /// Work requests posted and not completed, per link.
    pub send_queue: u32,
    /// Receive slots per link.
    pub receive_slots: u32,
    /// What is not longer is copied into the work request. The device may allow more or less; the smaller counts.
    pub inline_bytes: u32,
    /// At the latest each so-manieth work request asks for a completion.
    pub signaled_every: u32,
    /// Entries of a completion queue. When all of it is spoken for, another queue is made.
    pub completion_queue: u32,
    /// Most bytes of segments that may be registered at a time.
    pub max_registered_bytes: u64,
    /// Most memory windows of one link.
    pub max_windows: u32,
    /// A link that was idle for so long asks the peer's queue pair whether it is there.
    pub probe_interval: Duration,
    /// How long a link may take to connect.
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
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} = {value}: {wanted}")]
pub struct BadSetting {
    /// Its name.
    pub setting: &'static str,
    /// What it was.
    pub value: u64,
    /// What would be right.
    pub wanted: &'static str,
}

impl VerbsConfig {
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
        in_bounds("handshake_timeout", millis(self.handshake_timeout), 10..=3_600_000, "10 ms to an hour")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be() {
        assert_eq!(VerbsConfig::default().check(), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_named() {
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
