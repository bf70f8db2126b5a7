//! The choice of device, port and address, if the configuration leaves it open.
//!
//! The rule: the first active port, in the order in which devices and ports are listed; there the first address that
//! is RoCE v2 over IPv4, then over IPv6 (a routed one before one that is valid only on the link), then RoCE v1. On
//! InfiniBand the LID is the address, and the port's first GID goes with it.

use std::fmt::Write as _;

use crate::{Context, GidEntry, GidKind, LinkLayer, Port, PortState, VerbsError, devices};

/// The requests of the configuration; the rest is chosen by rule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// A device's name.
    pub device: Option<String>,
    /// A port, counted from 1.
    pub port: Option<u8>,
    /// An index into the port's table of addresses.
    pub gid_index: Option<u32>,
}

/// The choice.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The device, open.
    pub context: Context,
    /// The port.
    pub port: Port,
    /// The address; none only on InfiniBand.
    pub gid: Option<GidEntry>,
}

/// A device and its ports, as plain data: the input of the rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The device's name.
    pub device: String,
    /// Its ports with their addresses.
    pub ports: Vec<(Port, Vec<GidEntry>)>,
}

/// The reason why nothing could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChooseError {
    /// The devices could not be queried.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The machine has no device.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// No device has the name.
    #[error("there is no RDMA device {wanted}; there are: {there}")]
    NoSuchDevice {
        /// The name.
        wanted: String,
        /// The existing devices and ports.
        there: String,
    },
    /// No device that may be used has the port.
    #[error("there is no port {wanted}; there are: {there}")]
    NoSuchPort {
        /// The port.
        wanted: u8,
        /// The existing devices and ports.
        there: String,
    },
    /// The ports are all down.
    #[error("no port that may be used is active; there are: {there}")]
    NotActive {
        /// The existing devices and ports.
        there: String,
    },
    /// The port has no such address.
    #[error("port {port} of {device} has no address at index {wanted}; there are: {there}")]
    NoSuchAddress {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index.
        wanted: u32,
        /// The existing devices and ports.
        there: String,
    },
    /// The port has no address that could be used.
    #[error("no active port has an address: give the network interface of one an IP address; there are: {there}")]
    NoAddress {
        /// The existing devices and ports.
        there: String,
    },
}

/// Opens the chosen device. Returns it with the port and the address to use.
pub fn port(wanted: &Wanted) -> Result<Chosen, ChooseError> {
    let mut candidates = Vec::new();
    let mut contexts = Vec::new();
    for device in devices()? {
        // A device that cannot be opened does not hide the others, unless it is the requested one.
        let context = match device.open() {
            Err(error) if wanted.device.as_deref() == Some(device.name()) => return Err(error.into()),
            Err(error) => {
                tracing::debug!(device = device.name(), %error, "passed over");
                continue;
            }
            Ok(context) => context,
        };
        let mut ports = Vec::new();
        for number in 1..=context.limits().phys_ports {
            ports.push((context.port(number)?, context.gids(number)?));
        }
        candidates.push(Candidate { device: device.name().to_owned(), ports });
        contexts.push(context);
    }
    let Pick { device, port, gid } = pick(wanted, &candidates)?;
    let (port, gids) = &candidates[device].ports[port];
    Ok(Chosen { context: contexts[device].clone(), port: port.clone(), gid: gid.map(|gid| gids[gid].clone()) })
}

/// Chooses again on a chosen port: it may be down by now, and its addresses may have changed.
pub fn again(context: &Context, port: u8, gid_index: Option<u32>) -> Result<Chosen, ChooseError> {
    let device = context.device_name().to_owned();
    let candidates = [Candidate { device, ports: vec![(context.port(port)?, context.gids(port)?)] }];
    let Pick { gid, .. } = pick(&Wanted { device: None, port: Some(port), gid_index }, &candidates)?;
    let (port, gids) = &candidates[0].ports[0];
    Ok(Chosen { context: context.clone(), port: port.clone(), gid: gid.map(|gid| gids[gid].clone()) })
}

/// A choice, as indexes into the list of candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pick {
    /// The index of the device.
    pub device: usize,
    /// The index of the port among the device's ports.
    pub port: usize,
    /// The index of the address among the port's addresses.
    pub gid: Option<usize>,
}

/// Chooses by the rule.
pub fn pick(wanted: &Wanted, candidates: &[Candidate]) -> Result<Pick, ChooseError> {
    if candidates.is_empty() {
        return Err(ChooseError::NoDevice);
    }
    let there = || list(candidates);
    let mut ports: Vec<(usize, usize)> = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| wanted.device.as_ref().is_none_or(|name| *name == candidate.device))
        .flat_map(|(device, candidate)| (0..candidate.ports.len()).map(move |port| (device, port)))
        .collect();
    let at = |(device, port): (usize, usize)| &candidates[device].ports[port];
    if let Some(name) = &wanted.device
        && !candidates.iter().any(|candidate| candidate.device == *name)
    {
        return Err(ChooseError::NoSuchDevice { wanted: name.clone(), there: there() });
    }
    if let Some(number) = wanted.port {
        ports.retain(|&place| at(place).0.number == number);
        if ports.is_empty() {
            return Err(ChooseError::NoSuchPort { wanted: number, there: there() });
        }
    }
    ports.retain(|&place| at(place).0.state == PortState::Active);
    let Some(&first) = ports.first() else {
        return Err(ChooseError::NotActive { there: there() });
    };
    for &place in &ports {
        let (port, gids) = at(place);
        let gid = match wanted.gid_index {
            Some(index) => gids.iter().position(|gid| gid.index == index),
            None => best(gids),
        };
        // On InfiniBand the LID is enough, but a requested address must exist.
        let lid_is_enough = port.link_layer != LinkLayer::Ethernet && wanted.gid_index.is_none();
        if gid.is_some() || lid_is_enough {
            return Ok(Pick { device: place.0, port: place.1, gid });
        }
    }
    Err(match wanted.gid_index {
        Some(index) => ChooseError::NoSuchAddress {
            device: candidates[first.0].device.clone(),
            port: at(first).0.number,
            wanted: index,
            there: there(),
        },
        None => ChooseError::NoAddress { there: there() },
    })
}

/// Returns the index of the best address of a port; of equal ones, the first.
fn best(gids: &[GidEntry]) -> Option<usize> {
    let rank = |gid: &GidEntry| match gid.kind {
        GidKind::RoceV2Ipv4 => 0,
        GidKind::RoceV2Ipv6 if !gid.gid.is_link_local() => 1,
        GidKind::RoceV2Ipv6 => 2,
        GidKind::InfiniBand => 3,
        GidKind::RoceV1 => 4,
    };
    (0..gids.len()).min_by_key(|&place| rank(&gids[place]))
}

/// Lists the existing ports, for errors: `rxe0 port 1 active, Ethernet [1: ::ffff:10.77.0.1 RoCE v2 over IPv4]`.
fn list(candidates: &[Candidate]) -> String {
    let mut words = String::new();
    for (device, (port, gids)) in
        candidates.iter().flat_map(|candidate| candidate.ports.iter().map(|port| (&candidate.device, port)))
    {
        let separator = if words.is_empty() { "" } else { "; " };
        let gids: Vec<String> = gids.iter().map(|gid| format!("{}: {} {}", gid.index, gid.gid, gid.kind)).collect();
        let (number, state, layer) = (port.number, port.state, port.link_layer);
        let _ = write!(words, "{separator}{device} port {number} {state}, {layer} [{}]", gids.join(", "));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{Candidate, ChooseError, Pick, Wanted, pick};
    use crate::{Gid, GidEntry, GidKind, LinkLayer, Mtu, PhysicalState, Port, PortState};

    const IPV4: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]);
    const LOCAL: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    const ROUTED: Gid = Gid([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    fn port(number: u8, state: PortState, link_layer: LinkLayer) -> Port {
        Port {
            number,
            state,
            physical_state: PhysicalState::LinkUp,
            mtu_active: Mtu::B1024,
            mtu_max: Mtu::B4096,
            lid: 0,
            lmc: 0,
            sm_lid: 0,
            link_layer,
            max_message_bytes: 1 << 23,
            gid_table_len: 16,
            pkey_table_len: 1,
            width: 1,
            lane_speed_tenths: 25,
            capabilities: 0,
        }
    }

    fn gid(index: u32, gid: Gid, kind: GidKind) -> GidEntry {
        GidEntry { index, gid, kind, netdev: None }
    }

    fn roce(device: &str, state: PortState, gids: &[GidEntry]) -> Candidate {
        Candidate { device: device.to_owned(), ports: vec![(port(1, state, LinkLayer::Ethernet), gids.to_vec())] }
    }

    fn usual() -> Vec<GidEntry> {
        vec![gid(0, LOCAL, GidKind::RoceV2Ipv6), gid(1, IPV4, GidKind::RoceV2Ipv4)]
    }

    fn place(device: usize, gid: usize) -> Pick {
        Pick { device, port: 0, gid: Some(gid) }
    }

    #[test]
    fn the_first_active_port_and_its_best_address_are_chosen() {
        let candidates = [
            roce("a", PortState::Down, &usual()),
            roce("b", PortState::Active, &usual()),
            roce("c", PortState::Active, &usual()),
        ];
        assert_eq!(pick(&Wanted::default(), &candidates).ok(), Some(place(1, 1)));
        let named = Wanted { device: Some("c".to_owned()), ..Wanted::default() };
        assert_eq!(pick(&named, &candidates).ok(), Some(place(2, 1)));
    }

    #[test]
    fn addresses_are_ranked() {
        let mut gids = vec![
            gid(0, IPV4, GidKind::RoceV1),
            gid(1, LOCAL, GidKind::RoceV2Ipv6),
            gid(2, ROUTED, GidKind::RoceV2Ipv6),
            gid(3, IPV4, GidKind::RoceV2Ipv4),
        ];
        for best in (0..4).rev() {
            let candidates = [roce("a", PortState::Active, &gids)];
            assert_eq!(pick(&Wanted::default(), &candidates).ok(), Some(place(0, best)));
            gids.pop();
        }
    }

    #[test]
    fn requested_address_is_found_on_any_port_that_has_it() {
        let candidates = [
            roce("a", PortState::Active, &[gid(0, LOCAL, GidKind::RoceV2Ipv6)]),
            roce("b", PortState::Active, &[gid(0, LOCAL, GidKind::RoceV2Ipv6), gid(5, IPV4, GidKind::RoceV1)]),
        ];
        let wanted = Wanted { gid_index: Some(5), ..Wanted::default() };
        assert_eq!(pick(&wanted, &candidates).ok(), Some(place(1, 1)));
        let missing = pick(&Wanted { gid_index: Some(9), ..Wanted::default() }, &candidates).expect_err("not there");
        assert_eq!(
            missing.to_string(),
            "port 1 of a has no address at index 9; there are: a port 1 active, Ethernet [0: fe80::1 RoCE v2 over IPv6]; \
             b port 1 active, Ethernet [0: fe80::1 RoCE v2 over IPv6, 5: ::ffff:10.77.0.1 RoCE v1]"
        );
    }

    #[test]
    fn infiniband_needs_no_address() {
        let candidates = [Candidate {
            device: "ib".to_owned(),
            ports: vec![(port(1, PortState::Active, LinkLayer::InfiniBand), Vec::new())],
        }];
        assert_eq!(pick(&Wanted::default(), &candidates).ok(), Some(Pick { device: 0, port: 0, gid: None }));
        let wanted = Wanted { gid_index: Some(0), ..Wanted::default() };
        assert!(matches!(pick(&wanted, &candidates), Err(ChooseError::NoSuchAddress { .. })));
    }

    #[test]
    fn refusal_lists_the_existing_ports() {
        let down = [roce("a", PortState::Down, &usual())];
        let error = |wanted: &Wanted| pick(wanted, &down).expect_err("nothing fits").to_string();
        let there = "a port 1 down, Ethernet [0: fe80::1 RoCE v2 over IPv6, 1: ::ffff:10.77.0.1 RoCE v2 over IPv4]";
        assert_eq!(error(&Wanted::default()), format!("no port that may be used is active; there are: {there}"));
        assert_eq!(
            error(&Wanted { device: Some("z".to_owned()), ..Wanted::default() }),
            format!("there is no RDMA device z; there are: {there}")
        );
        assert_eq!(
            error(&Wanted { port: Some(2), ..Wanted::default() }),
            format!("there is no port 2; there are: {there}")
        );
        assert!(matches!(pick(&Wanted::default(), &[]), Err(ChooseError::NoDevice)));
        let bare = [roce("a", PortState::Active, &[])];
        assert!(matches!(pick(&Wanted::default(), &bare), Err(ChooseError::NoAddress { .. })));
    }
}
