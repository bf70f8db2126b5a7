//! Reports on this machine's devices, with everything that ibv_devices, ibv_devinfo and ibstat print.

use serde::Serialize;

use crate::{Context, DeviceLimits, GidEntry, Guid, NodeType, Port, VerbsError};

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceReport {
    /// The kernel's name.
    pub name: String,
    /// Its number.
    pub node_guid: Guid,
    /// The number of the machine or card that it is part of.
    pub system_guid: Guid,
    /// Its type.
    pub node_type: NodeType,
    /// Its limits.
    pub limits: DeviceLimits,
    /// Its ports.
    pub ports: Vec<PortReport>,
}

/// A port.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PortReport {
    /// Its current state.
    #[serde(flatten)]
    pub port: Port,
    /// The gigabits per second of all lanes, if the device reports them.
    pub rate_gbps: Option<f64>,
    /// The used entries of its table of addresses.
    pub gids: Vec<GidEntry>,
    /// Its table of partition keys, without unused entries.
    pub pkeys: Vec<u16>,
}

/// Reports on every device.
pub fn devices() -> Result<Vec<DeviceReport>, VerbsError> {
    crate::devices()?.iter().map(|device| self::device(&device.open()?)).collect()
}

/// Reports on one device.
pub fn device(context: &Context) -> Result<DeviceReport, VerbsError> {
    Ok(DeviceReport {
        name: context.device_name().to_owned(),
        node_guid: context.guid(),
        system_guid: context.system_guid(),
        node_type: context.node_type(),
        limits: context.limits().clone(),
        ports: (1..=context.limits().phys_ports).map(|number| port(context, number)).collect::<Result<_, _>>()?,
    })
}

fn port(context: &Context, number: u8) -> Result<PortReport, VerbsError> {
    let port = context.port(number)?;
    let rate_gbps = port.rate_gbps();
    // The highest bit says only whether the port is a full member of the partition.
    let pkeys = context.pkeys(number)?.into_iter().filter(|key| key & 0x7fff != 0).collect();
    Ok(PortReport { port, rate_gbps, gids: context.gids(number)?, pkeys })
}
