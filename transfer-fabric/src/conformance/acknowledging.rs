//! What a fabric that counts its frames sends to acknowledge. Both fabrics of this host have the same tests.

use super::Rig;
use super::pair::{Heard, Link, Pair};
use transfer_core::fabric::{Fabric, FabricEvent};

const LEN: u64 = 1 << 16;

/// The frames that a side has sent, and those of them that only acknowledge.
fn sent<R: Rig>(pair: &mut Pair<R>, side: usize) -> [u64; 2] {
    let counts = pair.fabric(side).counters();
    ["frames", "acknowledgements"].map(|name| counts.iter().find(|(of, _)| *of == name).unwrap().1)
}

fn message<R: Rig>(pair: &mut Pair<R>, from: usize, link: Link, bytes: &[u8]) {
    pair.post_send(from, link, bytes).unwrap();
    let came = Heard::Message(link.0[1 - from], bytes.to_vec());
    pair.hear(1 - from, "Message", |heard| (*heard == came).then_some(()));
    // The receiver answers a few rounds later, if it does.
    for _ in 0..5 {
        pair.round_of(1 - from);
    }
}

/// A question and its answer are two frames, and their acknowledgements none: the next frame carries them.
pub fn messages_are_acknowledged_by_the_next_frame<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    pair.works(link);
    let before = [sent(&mut pair, 0), sent(&mut pair, 1)];
    let (rounds, start) = (2_000, std::time::Instant::now());
    for n in 0..rounds {
        message(&mut pair, 0, link, &[n as u8]);
        message(&mut pair, 1, link, &[n as u8]);
    }
    // A side that the machine does not run for a while acknowledges what is late.
    let late = 1 + start.elapsed().as_millis() as u64 / crate::links::ACKNOWLEDGE_WITHIN.as_millis() as u64;
    for (side, [frames_before, acknowledgements_before]) in before.into_iter().enumerate() {
        let [frames, acknowledgements] = sent(&mut pair, side);
        let (frames, acknowledgements) = (frames - frames_before, acknowledgements - acknowledgements_before);
        assert_eq!(frames, rounds + acknowledgements);
        assert!(acknowledgements <= late + 1, "{acknowledgements} frames of acknowledgements for {rounds} messages");
        let done = |heard: &Heard| matches!(heard, Heard::SendDone(..));
        pair.until("all completions", |pair| {
            pair.sides[side].heard.iter().filter(|heard| done(heard)).count() as u64 >= rounds
        });
    }
}

/// Messages that nothing answers are completed: one alone when it is late, many while they come.
pub fn one_sided_messages_are_completed<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    pair.works(link);
    let done = |pair: &Pair<R>| pair.sides[0].heard.iter().filter(|h| matches!(h, Heard::SendDone(..))).count();
    pair.sides[0].heard.clear();
    message(&mut pair, 0, link, b"alone");
    pair.until("its completion", |pair| done(pair) == 1);
    let before = sent(&mut pair, 1)[1];
    let count = 50 * crate::links::MAX_UNACKNOWLEDGED;
    for n in 0..count {
        message(&mut pair, 0, link, &n.to_le_bytes());
        let open = n as usize + 2 - done(&pair);
        assert!(open <= 3 * crate::links::MAX_UNACKNOWLEDGED as usize, "{open} messages are not completed");
    }
    pair.until("all completions", |pair| done(pair) as u64 == count + 1);
    let acknowledgements = sent(&mut pair, 1)[1] - before;
    assert!(acknowledgements >= count / (2 * crate::links::MAX_UNACKNOWLEDGED), "{acknowledgements} for {count}");
}

/// A write is acknowledged in the next round, because its poster holds memory until then.
pub fn writes_are_acknowledged_at_once<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 64));
    for _ in 0..100 {
        let before = sent(&mut pair, 1)[1];
        pair.post_write(0, link, &[Pair::<R>::slice(0, 64)], remote, Some(1)).unwrap();
        // The owner of the write is not polled for longer than it takes to send it.
        while pair.fabric(0).poll(&mut |event| panic!("{event:?}")) {}
        let mut placed = false;
        while !placed {
            pair.fabric(1).poll(&mut |event| placed |= matches!(event, FabricEvent::Immediate { .. }));
        }
        assert_eq!(sent(&mut pair, 1)[1], before, "the engine acts on the write before it is acknowledged");
        pair.fabric(1).poll(&mut |event| panic!("{event:?}"));
        assert_eq!(sent(&mut pair, 1)[1], before + 1);
        let id = link.0[0];
        pair.hear(0, "WriteDone", |heard| matches!(heard, Heard::WriteDone(of, _) if *of == id).then_some(()));
    }
}
