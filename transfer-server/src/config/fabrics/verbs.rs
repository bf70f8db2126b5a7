//! The settings of RDMA.

use super::UseFabric;
use crate::config::{ConfigError, flags};
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use transfer_core::memory::RailKeys;

/// How queue pairs are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VerbsConnect {
    /// Their numbers and addresses are exchanged by the gRPC call that makes a link.
    Qp,
    /// By the RDMA connection manager, at an IP address of the device.
    RdmaCm,
}

/// The memory that a peer may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolationChoice {
    /// The granted ranges: a memory window for each landing slot.
    Window,
    /// The whole landing pool of a user id, from the first grant on.
    Pool,
}

/// A device, and its port: `mlx5_0`, `mlx5_0:2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// The name, as `ibv_devices` lists it.
    pub name: String,
    /// The port, if one was named.
    pub port: Option<u8>,
}

/// The text is not the name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a device is a name, as `transferctl devices` lists it, or name:port, like mlx5_0 or mlx5_0:1")]
pub struct NotADevice;

impl FromStr for DeviceName {
    type Err = NotADevice;

    fn from_str(text: &str) -> Result<DeviceName, NotADevice> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok().filter(|p| *p != 0).ok_or(NotADevice)?)),
            None => (text, None),
        };
        let ok = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if ok { Ok(DeviceName { name: name.to_owned(), port }) } else { Err(NotADevice) }
    }
}

/// The settings of RDMA devices, queue pairs, and lost packets.
///
/// The numbers are those of InfiniBand verbs, as in ibv_modify_qp(3).
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "RDMA")]
pub struct VerbsConfig {
    /// Use RDMA between nodes: auto if there is a device, on or fail to start, off
    #[arg(long = "verbs", env = "TRANSFER_VERBS", value_enum, default_value_t = UseFabric::Auto)]
    pub wanted: UseFabric,

    /// The devices, separated by commas or given several times: mlx5_0, or mlx5_0:1 with its port. Default: the first
    /// device with an active port
    #[arg(
        long = "verbs-device",
        env = "TRANSFER_VERBS_DEVICE",
        value_name = "DEVICE[:PORT],...",
        value_delimiter = ','
    )]
    pub devices: Vec<DeviceName>,

    /// The port of a device for which --verbs-device names none. Default: its first active one
    #[arg(long = "verbs-port", env = "TRANSFER_VERBS_PORT", value_name = "N")]
    pub port: Option<u8>,

    /// The entry of the port's GID table that is its address. Default: RoCE v2 over IPv4, then over IPv6; on InfiniBand
    /// the LID
    #[arg(long = "verbs-gid-index", env = "TRANSFER_VERBS_GID_INDEX", value_name = "N")]
    pub gid_index: Option<u32>,

    /// The largest packet, in bytes: 256, 512, 1024, 2048 or 4096. Default: the largest that both ports support
    #[arg(long = "verbs-mtu", env = "TRANSFER_VERBS_MTU", value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// How queue pairs are connected: by the gRPC call that makes a link (qp), or by the RDMA connection manager
    /// (rdma-cm)
    #[arg(long = "verbs-connect", env = "TRANSFER_VERBS_CONNECT", value_enum, default_value_t = VerbsConnect::Qp)]
    pub connect: VerbsConnect,

    /// The address of the RDMA connection manager: an IP address of the device, and a port; 0 takes a free one
    #[arg(id = "verbs_listen", long = "verbs-listen", env = "TRANSFER_VERBS_LISTEN", value_name = "IP:PORT", value_parser = flags::address)]
    pub listen: Option<SocketAddr>,

    /// The time to wait for the acknowledgement of a packet: 4.096 µs times 2 to the power of N, 1 to 31; 14 is 67 ms
    #[arg(long = "verbs-timeout", env = "TRANSFER_VERBS_TIMEOUT", value_name = "N", default_value_t = 14)]
    pub timeout: u8,

    /// The number of retries of a packet that was not acknowledged, 0 to 6
    #[arg(long = "verbs-retry", env = "TRANSFER_VERBS_RETRY", value_name = "N", default_value_t = 6)]
    pub retry: u8,

    /// The number of retries of a message that found no posted receive, 0 to 6
    #[arg(long = "verbs-rnr-retry", env = "TRANSFER_VERBS_RNR_RETRY", value_name = "N", default_value_t = 6)]
    pub rnr_retry: u8,

    /// The time that a peer waits before such a retry, as ibv_modify_qp(3) numbers it: 0 to 31; 12 is 0.64 ms
    #[arg(long = "verbs-min-rnr-timer", env = "TRANSFER_VERBS_MIN_RNR_TIMER", value_name = "N", default_value_t = 12)]
    pub min_rnr_timer: u8,

    /// The traffic class of packets, 0 to 255; on RoCE its upper six bits are the DSCP
    #[arg(long = "verbs-traffic-class", env = "TRANSFER_VERBS_TRAFFIC_CLASS", value_name = "N", default_value_t = 0)]
    pub traffic_class: u8,

    /// The service level of packets, 0 to 15; on RoCE 0 to 7 is the priority of the VLAN tag
    #[arg(long = "verbs-service-level", env = "TRANSFER_VERBS_SERVICE_LEVEL", value_name = "N", default_value_t = 0)]
    pub service_level: u8,

    /// The entry of the port's table of partition keys
    #[arg(long = "verbs-pkey-index", env = "TRANSFER_VERBS_PKEY_INDEX", value_name = "N", default_value_t = 0)]
    pub pkey_index: u16,

    /// The memory that a peer may write over RDMA: the granted ranges, by memory windows, or the whole landing pool
    #[arg(long = "isolation", env = "TRANSFER_ISOLATION", value_enum, default_value_t = IsolationChoice::Window)]
    pub isolation: IsolationChoice,

    /// The number of queue pairs of each link on each device; large tensors are striped over them
    #[arg(long = "verbs-queue-pairs", env = "TRANSFER_VERBS_QUEUE_PAIRS", value_name = "N", default_value_t = 1)]
    pub queue_pairs: u8,
}

impl Default for VerbsConfig {
    /// Returns the defaults of the flags.
    fn default() -> VerbsConfig {
        VerbsConfig {
            wanted: UseFabric::Auto,
            devices: Vec::new(),
            port: None,
            gid_index: None,
            mtu: None,
            connect: VerbsConnect::Qp,
            listen: None,
            timeout: 14,
            retry: 6,
            rnr_retry: 6,
            min_rnr_timer: 12,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            isolation: IsolationChoice::Window,
            queue_pairs: 1,
        }
    }
}

/// The longest time within which the loss of a peer must be noticed.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

impl VerbsConfig {
    /// Returns the time for which a packet is retried before its queue pair fails.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout.min(31)) * (u32::from(self.retry) + 1)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |flag, value: &dyn ToString, wrong, right| {
            Err(ConfigError::Value { flag, value: value.to_string(), wrong, right })
        };
        if let Some(mtu) = self.mtu.filter(|mtu| ![256, 512, 1024, 2048, 4096].contains(mtu)) {
            return wrong("--verbs-mtu", &mtu, "is no packet size of RDMA", "give 256, 512, 1024, 2048 or 4096");
        }
        if self.port == Some(0) {
            return wrong("--verbs-port", &0, "is no port", "a device's ports are numbered from 1");
        }
        if self.timeout == 0 {
            let endless = "would wait for ever for a peer that is gone";
            return wrong("--verbs-timeout", &0, endless, "give 1 to 31; 14 is 67 ms, and each step doubles it");
        }
        if self.timeout > 31 {
            let right = "give 1 to 31; 14 is 67 ms, and each step doubles it";
            return wrong("--verbs-timeout", &self.timeout, "does not fit its five bits", right);
        }
        for (flag, value) in [("--verbs-retry", self.retry), ("--verbs-rnr-retry", self.rnr_retry)] {
            if value == 7 {
                // Only some devices give 7 this meaning for the first of these flags, which is no better
                // (docs/adr/0001).
                return wrong(flag, &7, "means for ever: a peer that is gone would never be noticed", "give 0 to 6");
            }
            if value > 7 {
                return wrong(flag, &value, "does not fit its three bits", "give 0 to 6");
            }
        }
        if self.patience() > LONGEST_SILENCE {
            let value = format!("{} with --verbs-retry {}", self.timeout, self.retry);
            let long = "would notice a peer that is gone after more than 10 minutes";
            return wrong("--verbs-timeout", &value, long, "lower one of them");
        }
        if self.min_rnr_timer > 31 {
            let right = "give 0 to 31; 1 is the shortest with 0.01 ms, 31 is 491.52 ms, and 0 is 655.36 ms";
            return wrong("--verbs-min-rnr-timer", &self.min_rnr_timer, "does not fit its five bits", right);
        }
        if self.service_level > 15 {
            let right = "give 0 to 15, on RoCE 0 to 7";
            return wrong("--verbs-service-level", &self.service_level, "does not fit its four bits", right);
        }
        self.check_rails()?;
        self.check_listener()
    }

    fn check_rails(&self) -> Result<(), ConfigError> {
        for (i, device) in self.devices.iter().enumerate() {
            let same = |d: &DeviceName| d.name == device.name && d.port.or(self.port) == device.port.or(self.port);
            if self.devices[..i].iter().any(same) {
                return Err(ConfigError::Value {
                    flag: "--verbs-device",
                    value: device.name.clone(),
                    wrong: "is named twice",
                    right: "name each port of a device once; --verbs-queue-pairs gives it more queue pairs",
                });
            }
        }
        let devices = self.devices.len().max(1);
        let rails = devices * usize::from(self.queue_pairs);
        if !(1..=RailKeys::MAX_RAILS).contains(&rails) {
            return Err(ConfigError::Rails { queue_pairs: self.queue_pairs, devices, most: RailKeys::MAX_RAILS });
        }
        Ok(())
    }

    fn check_listener(&self) -> Result<(), ConfigError> {
        match (self.connect, self.listen) {
            (VerbsConnect::Qp, Some(listen)) => Err(ConfigError::Needs {
                flag: "--verbs-listen",
                value: listen.to_string(),
                needs: "--verbs-connect rdma-cm",
            }),
            (VerbsConnect::RdmaCm, None) => Err(ConfigError::Needs {
                flag: "--verbs-connect",
                value: "rdma-cm".to_owned(),
                needs: "--verbs-listen with an IP address of the device",
            }),
            (VerbsConnect::RdmaCm, Some(listen)) if listen.ip().is_unspecified() => Err(ConfigError::Value {
                flag: "--verbs-listen",
                value: listen.to_string(),
                wrong: "is no address that other nodes can connect to",
                right: "give an IP address of the device, as `transferctl devices` shows it in its GIDs",
            }),
            (VerbsConnect::RdmaCm, Some(_)) if self.devices.len() > 1 => Err(ConfigError::Value {
                flag: "--verbs-device",
                value: self.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(","),
                wrong: "are several, and the RDMA connection manager listens at an address of one",
                right: "name one device, or leave --verbs-connect at qp",
            }),
            _ => Ok(()),
        }
    }
}
