//! Nodes with different numbers of rails.

use super::*;
use transfer_core::fabric::LinkRails;
use transfer_core::rails::{self, RailsConfig};
use transfer_memory::segment::Segment;

type Boxed = Box<dyn Fabric<Memory = std::sync::Arc<Segment>>>;

fn with_rails(count: usize) -> Boxed {
    rails::over(vec![Box::new(TcpFabric::new(local()).unwrap())], RailsConfig::new(&vec![0; count])).unwrap()
}

/// Polls both ends until `answer` returns something for an event of the end `of`.
fn until_one<T>(ends: &mut [Boxed; 2], of: usize, mut answer: impl FnMut(FabricEvent<'_>) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let mut found = None;
        for (i, end) in ends.iter_mut().enumerate() {
            end.poll(&mut |event| found = found.take().or_else(|| if i == of { answer(event) } else { None }));
        }
        if let Some(found) = found {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
        std::thread::yield_now();
    }
}

#[test]
fn one_rail_meets_two() {
    for counts in [[1, 2], [2, 1], [1, 1]] {
        let mut ends = counts.map(with_rails);
        let link = LinkId(1);
        let offer = ends[0].offer(link).unwrap();
        let answer = ends[1].accept(link, &offer).unwrap();
        ends[0].connect(link, &answer).unwrap();
        let mut connected = [false; 2];
        let start = Instant::now();
        while connected != [true; 2] {
            for (end, connected) in ends.iter_mut().zip(&mut connected) {
                end.poll(&mut |event| *connected |= matches!(event, FabricEvent::Connected { .. }));
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{counts:?}: no link");
        }
        for from in [0, 1] {
            let rails = ends[from].rails().map_or(LinkRails::ONE, |rails| rails.rails_of(link));
            assert_eq!(rails, LinkRails::ONE, "{counts:?}");
            ends[from].post_send(link, WorkId(7), b"hello").unwrap();
            let heard = until_one(&mut ends, 1 - from, |event| match event {
                FabricEvent::Message { bytes, .. } => Some(bytes.to_vec()),
                _ => None,
            });
            assert_eq!(heard, b"hello", "{counts:?}");
        }
        assert!(ends[0].describe().contains(&("rails", counts[0].to_string())));
    }
}

/// An answer has two rails, and the offer had one.
#[test]
fn more_rails_than_were_offered_are_refused() {
    let mut ends = [1, 2].map(with_rails);
    let two = ends[1].offer(LinkId(1)).unwrap();
    ends[0].offer(LinkId(1)).unwrap();
    let refused = ends[0].connect(LinkId(1), &two).unwrap_err();
    assert!(refused.to_string().contains("more rails than were offered"), "{refused}");
}
