//! The data of `top`: the sidecar at one moment, and the change since the moment before.

use crate::admin::Target;
use crate::error::Error;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use transfer_proto::v1::{self, admin_client::AdminClient};

/// The number of entries of each list.
const PAGE_SIZE: u32 = 1000;

/// A sidecar at one moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: v1::StatusResponse,
    pub(super) links: Vec<v1::Link>,
    pub(super) sessions: Vec<v1::Session>,
    pub(super) transfers: Vec<v1::Transfer>,
}

impl Sample {
    pub(super) async fn take(target: &Target, admin: &mut AdminClient<Channel>) -> Result<Sample, Error> {
        let failed = |e| target.answered(e);
        let status = admin.status(v1::StatusRequest {}).await.map_err(failed)?.into_inner();
        let links = v1::LinksRequest { page_size: PAGE_SIZE, ..Default::default() };
        let sessions = v1::SessionsRequest { page_size: PAGE_SIZE, ..Default::default() };
        let transfers = v1::TransfersRequest { page_size: PAGE_SIZE, ..Default::default() };
        Ok(Sample {
            links: admin.links(links).await.map_err(failed)?.into_inner().links,
            sessions: admin.sessions(sessions).await.map_err(failed)?.into_inner().sessions,
            transfers: admin.transfers(transfers).await.map_err(failed)?.into_inner().transfers,
            at: Instant::now(),
            status,
        })
    }

    fn finished(&self) -> (u64, u64) {
        let finished = self.status.counters.iter().flat_map(|c| &c.finished);
        finished.fold((0, 0), |(transfers, bytes), path| (transfers + path.transfers, bytes + path.bytes))
    }
}

/// A rate per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rate(pub(super) f64);

impl Rate {
    fn of(before: u64, now: u64, between: Duration) -> Rate {
        // Lower than before: another incarnation counts from 0.
        let more = now.checked_sub(before).unwrap_or(now);
        if between.is_zero() { Rate(0.0) } else { Rate(more as f64 / between.as_secs_f64()) }
    }

    /// `1.5 GiB/s`
    pub(super) fn bytes(self) -> String {
        format!("{}/s", transfer_terminal::units::bytes(self.0 as u64))
    }

    /// `1,234/s`
    pub(super) fn count(self) -> String {
        match self.0 {
            n if n > 0.0 && n < 10.0 => format!("{n:.1}/s"),
            n => format!("{}/s", transfer_terminal::units::count(n as u64)),
        }
    }
}

/// The change between two moments.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    /// Finished transfers, and their bytes.
    pub(super) transfers: Rate,
    pub(super) bytes: Rate,
    /// Operations that failed.
    pub(super) failed: Rate,
    /// For each link of the later moment: bytes out, bytes in.
    pub(super) links: Vec<(Rate, Rate)>,
}

impl Change {
    pub(super) fn between(before: &Sample, now: &Sample) -> Change {
        let between = now.at.saturating_duration_since(before.at);
        let (was, is) = (before.finished(), now.finished());
        let failed = |sample: &Sample| sample.status.counters.as_ref().map_or(0, |c| c.failed);
        let link = |link: &v1::Link| {
            let was = before.links.iter().find(|l| (l.link, &l.peer) == (link.link, &link.peer));
            let (out, inward) = was.map_or((0, 0), |l| (l.bytes_out, l.bytes_in));
            (Rate::of(out, link.bytes_out, between), Rate::of(inward, link.bytes_in, between))
        };
        Change {
            transfers: Rate::of(was.0, is.0, between),
            bytes: Rate::of(was.1, is.1, between),
            failed: Rate::of(failed(before), failed(now), between),
            links: now.links.iter().map(link).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_survive_a_restart() {
        let second = Duration::from_secs(1);
        assert_eq!(Rate::of(100, 300, 2 * second), Rate(100.0));
        assert_eq!(Rate::of(100, 50, second), Rate(50.0));
        assert_eq!(Rate::of(100, 300, Duration::ZERO), Rate(0.0));
        assert_eq!(Rate(2.5).count(), "2.5/s");
        assert_eq!(Rate(1234.9).count(), "1,234/s");
        assert_eq!(Rate((3 << 20) as f64).bytes(), "3 MiB/s");
    }
}
