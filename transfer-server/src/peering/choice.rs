//! The choice of a link's fabric, and the reasons why better fabrics were not chosen.
//!
//! The caller tries its fabrics, the best first. A peer that cannot use a fabric refuses the call with the reason. The
//! caller then tries the next fabric, and sends the reason with that call, so that both sides can show it.

use super::Kind;
use crate::text;
use prost::Message;
use tonic::Code;
use transfer_core::fabric::FabricKind;
use transfer_core::protocol::PassedOver;
use transfer_core::tensor::Name;
use transfer_proto::v1;

/// The most reasons of a peer that are kept.
const MAX_REASONS: usize = FabricKind::ALL.len();

/// The longest reason of a peer that is kept, in characters.
const LONGEST_REASON: usize = 512;

/// The identity of this sidecar for its peers.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Its node name.
    pub(crate) node: Name,
    /// Its incarnation.
    pub(crate) incarnation: u64,
    /// Its fabrics, best first.
    pub(crate) fabrics: Vec<FabricKind>,
    /// Its missing fabrics, each with the reason.
    pub(crate) lacking: Vec<PassedOver>,
    /// The fabric that must carry transfers between nodes.
    pub(crate) require: Option<FabricKind>,
}

impl Identity {
    /// Returns the fabrics for links to other nodes, the best first.
    pub(super) fn usable(&self) -> Vec<FabricKind> {
        let may = |kind: &FabricKind| self.require.is_none_or(|r| r == *kind);
        self.fabrics.iter().copied().filter(may).collect()
    }

    /// Returns the reason why no fabric is usable.
    pub(super) fn has_nothing(&self) -> String {
        match self.require {
            Some(kind) => self.lacks(kind),
            None => self.has_no_fabric(),
        }
    }

    /// Checks whether this side has, and may use, the fabric that a peer asks for.
    pub(super) fn agree(&self, kind: FabricKind) -> Result<(), String> {
        match self.require {
            Some(required) if required != kind => Err(format!("node {} requires {required}, not {kind}", self.node)),
            _ if self.fabrics.contains(&kind) => Ok(()),
            _ => Err(self.lacks(kind)),
        }
    }

    fn has_no_fabric(&self) -> String {
        format!("node {} has no fabric to other nodes: it was started without --listen", self.node)
    }

    /// Returns the reason why this side has no fabric of this kind.
    pub(crate) fn lacks(&self, kind: FabricKind) -> String {
        let has: Vec<_> = self.fabrics.iter().map(|k| k.name()).collect();
        match (self.lacking.iter().find(|l| l.fabric == kind), &has[..]) {
            (Some(lack), _) => format!("node {} has no {kind}: {}", self.node, lack.why),
            (None, []) => self.has_no_fabric(),
            (None, has) => format!("node {} has no {kind}, only {}", self.node, has.join(", ")),
        }
    }

    /// Returns the better fabrics than `chosen` that this side cannot or may not use, each with the reason.
    pub(super) fn passed_over(&self, chosen: FabricKind) -> Vec<PassedOver> {
        let known = |kind: &FabricKind| self.fabrics.contains(kind) || self.lacking.iter().any(|l| l.fabric == *kind);
        let kinds = FabricKind::BEST_FIRST.into_iter().take_while(|kind| *kind != chosen).filter(known);
        let reason = |fabric| self.agree(fabric).err().map(|why| PassedOver { fabric, why });
        kinds.filter_map(reason).collect()
    }
}

/// Converts reasons to messages.
pub(super) fn to_message(passed_over: &[PassedOver]) -> Vec<v1::PassedOver> {
    let message =
        |p: &PassedOver| v1::PassedOver { fabric: v1::Fabric::from(Kind(p.fabric)).into(), why: p.why.clone() };
    passed_over.iter().map(message).collect()
}

/// Converts a peer's reasons. Limits their number and length, and replaces control characters.
pub(super) fn from_message(passed_over: &[v1::PassedOver]) -> Vec<PassedOver> {
    let reason = |p: &v1::PassedOver| {
        let Kind(fabric) = Kind::of(p.fabric())?;
        Some(PassedOver { fabric, why: text::printable(&p.why, LONGEST_REASON) })
    };
    passed_over.iter().take(MAX_REASONS).filter_map(reason).collect()
}

/// Makes the answer to a call over a fabric that cannot be used. Its details tell the caller that another fabric may
/// work.
pub(super) fn refusal(code: Code, fabric: FabricKind, why: String) -> tonic::Status {
    let details = v1::FabricRefusal { fabric: v1::Fabric::from(Kind(fabric)).into() };
    tonic::Status::with_details(code, why, details.encode_to_vec().into())
}

/// Returns whether a call failed because of this fabric alone.
pub(super) fn is_refusal(status: &tonic::Status, fabric: FabricKind) -> bool {
    let refused = v1::FabricRefusal::decode(status.details());
    // An answer without details decodes too, as a refusal of no fabric.
    refused.is_ok_and(|refusal| Kind::of(refusal.fabric()).is_some_and(|kind| kind.0 == fabric))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(fabrics: &[FabricKind], lacking: &[(FabricKind, &str)], require: Option<FabricKind>) -> Identity {
        let lacking = lacking.iter().map(|(fabric, why)| PassedOver { fabric: *fabric, why: (*why).to_owned() });
        let (node, fabrics) = (Name::new("a").unwrap(), fabrics.to_vec());
        Identity { node, incarnation: 1, fabrics, lacking: lacking.collect(), require }
    }

    #[test]
    fn unused_better_fabric_has_its_reason() {
        use FabricKind::{Shm, Tcp, Verbs};
        let why = |me: &Identity, chosen| -> Vec<String> {
            me.passed_over(chosen).into_iter().map(|p| format!("{}: {}", p.fabric, p.why)).collect()
        };
        let both = identity(&[Verbs, Tcp], &[], None);
        assert_eq!((both.usable(), both.agree(Verbs), why(&both, Verbs)), (vec![Verbs, Tcp], Ok(()), vec![]));
        // The failed call states the reason against verbs.
        assert_eq!(why(&both, Tcp), [""; 0]);
        assert_eq!(both.agree(Shm).unwrap_err(), "node a has no shm, only verbs, tcp");

        let plain = identity(&[Tcp], &[(Verbs, "no RDMA device")], None);
        assert_eq!(plain.usable(), [Tcp]);
        assert_eq!(why(&plain, Tcp), ["verbs: node a has no verbs: no RDMA device"]);

        let told = identity(&[Verbs, Tcp], &[], Some(Tcp));
        assert_eq!(told.usable(), [Tcp]);
        assert_eq!(why(&told, Tcp), ["verbs: node a requires tcp, not verbs"]);

        // A missing fabric is not mentioned if a better one is used.
        let near = identity(&[Shm, Tcp], &[(Verbs, "no RDMA device")], None);
        assert_eq!(
            (why(&near, Shm), why(&near, Tcp)),
            (vec![], vec!["verbs: node a has no verbs: no RDMA device".into()])
        );

        let in_vain = identity(&[Tcp], &[(Verbs, "no RDMA device")], Some(Verbs));
        assert_eq!(in_vain.usable(), []);
        assert_eq!(in_vain.has_nothing(), "node a has no verbs: no RDMA device");
        assert!(identity(&[], &[], None).has_nothing().contains("--listen"));
    }

    #[test]
    fn refusal_is_distinguished_from_other_failures() {
        let refused = refusal(Code::FailedPrecondition, FabricKind::Verbs, "no".into());
        assert!(is_refusal(&refused, FabricKind::Verbs));
        assert!(!is_refusal(&refused, FabricKind::Tcp));
        assert!(!is_refusal(&tonic::Status::failed_precondition("another version"), FabricKind::Verbs));
        let odd = tonic::Status::with_details(Code::Internal, "", vec![0xff; 9].into());
        assert!(!is_refusal(&odd, FabricKind::Verbs));
    }

    #[test]
    fn reasons_of_a_peer_are_bounded() {
        let reason = |fabric: i32, why: &str| v1::PassedOver { fabric, why: why.to_owned() };
        let sent = PassedOver { fabric: FabricKind::Verbs, why: "no device".into() };
        assert_eq!(from_message(&to_message(std::slice::from_ref(&sent))), [sent]);
        let long = "é".repeat(10_000);
        let got = from_message(&[reason(4, "a\x1b[2Jb\nc"), reason(77, "no such"), reason(2, &long)]);
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].why, r"a\u{1b}[2Jb\nc");
        assert_eq!(got[1].why.chars().count(), LONGEST_REASON);
        assert_eq!(from_message(&vec![reason(2, "x"); 100]).len(), MAX_REASONS);
    }
}
