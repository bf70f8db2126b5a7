//! Connecting by rdma_cm: the peers that may connect, and the reasons that are reported when it fails.

use super::*;
use crate::verbs::offer;

fn down(pair: &mut Pair<VerbsRig>, side: usize) -> DownReason {
    pair.hear(side, "LinkDown", |h| match h {
        Heard::Down(_, reason) => Some(reason.clone()),
        _ => None,
    })
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn token_admits_its_peer_once() {
    let mut pair = Pair::new(VerbsRig(by_manager()), 4096);
    let link = pair.new_link();
    let offered = pair.fabric(0).offer(link.0[0]).unwrap();
    let answer = pair.fabric(1).accept(link.0[1], &offered).unwrap();
    // A stranger knows the address, but not the token.
    let (_, address) = offer::decode_cm_acceptor(&answer).unwrap();
    let stranger = pair.new_link();
    pair.fabric(0).offer(stranger.0[0]).unwrap();
    let guessed = offer::encode_cm_acceptor(&crate::token::Token::random().unwrap(), address);
    pair.fabric(0).connect(stranger.0[0], &guessed).unwrap();
    let reason = down(&mut pair, 0);
    assert!(matches!(&reason, DownReason::NotConnected(why) if why.contains("the token is unknown")), "{reason:?}");
    // The peer that was told the token connects. A second request with the same token does not.
    pair.fabric(0).connect(link.0[0], &answer).unwrap();
    for side in 0..2 {
        pair.hear(side, "Connected", |h| (*h == Heard::Connected(link.0[side])).then_some(()));
    }
    pair.works(link);
    let second = pair.new_link();
    pair.fabric(0).offer(second.0[0]).unwrap();
    pair.fabric(0).connect(second.0[0], &answer).unwrap();
    let id = second.0[0];
    pair.hear(0, "LinkDown", |h| matches!(h, Heard::Down(l, DownReason::NotConnected(_)) if *l == id).then_some(()));
    pair.works(link);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_step_that_failed_is_named() {
    let times = VerbsConfig { handshake_timeout: Duration::from_secs(2), ..by_manager() };
    let mut pair = Pair::new(VerbsRig(times), 4096);
    let link = pair.new_link();
    pair.fabric(0).offer(link.0[0]).unwrap();
    let manager = pair.fabric(0).manager.as_ref().unwrap().address();
    // There is no listener at this port.
    let nobody = SocketAddr::new(manager.ip(), if manager.port() == 1 { 2 } else { 1 });
    let answer = offer::encode_cm_acceptor(&crate::token::Token::random().unwrap(), nobody);
    pair.fabric(0).connect(link.0[0], &answer).unwrap();
    let reason = down(&mut pair, 0);
    assert!(matches!(&reason, DownReason::NotConnected(why) if why.starts_with("rdma_cm, ")), "{reason:?}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn sides_with_different_ways_of_connecting_are_refused() {
    let mut by_numbers = VerbsFabric::open(config()).unwrap();
    let mut by_cm = VerbsFabric::open(by_manager()).unwrap();
    let offered = by_numbers.offer(LinkId(1)).unwrap();
    let refused = by_cm.accept(LinkId(2), &offered).unwrap_err().to_string();
    assert!(refused.contains("the peer connects by queue-pair data, this side by rdma_cm"), "{refused}");
    let offered = by_cm.offer(LinkId(3)).unwrap();
    let refused = by_numbers.accept(LinkId(4), &offered).unwrap_err().to_string();
    assert!(refused.contains("the peer connects by rdma_cm, this side by queue-pair data"), "{refused}");
}
