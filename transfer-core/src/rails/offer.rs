//! The offer of a link with rails. It contains the inner offers, one after the other.

use super::MAX_RAILS;
use crate::fabric::Offer;

const MAGIC: [u8; 4] = *b"RAIL";
const VERSION: u8 = 1;

/// Encodes `RAIL`, the version as u8, the number of rails as u8, then each inner offer as its length u16 and its bytes.
/// Returns `None` if an inner offer is too long for that.
pub(super) fn encode(offers: &[Offer]) -> Option<Offer> {
    let mut bytes = Vec::from(MAGIC);
    bytes.extend([VERSION, u8::try_from(offers.len()).ok()?]);
    for offer in offers {
        bytes.extend(u16::try_from(offer.0.len()).ok()?.to_le_bytes());
        bytes.extend(&offer.0);
    }
    Some(Offer(bytes))
}

pub(super) fn decode(offer: &Offer) -> Result<Vec<Offer>, &'static str> {
    let rest = offer.0.strip_prefix(&MAGIC).ok_or("it is none of a link with rails")?;
    let ([version, count], mut rest) = rest.split_first_chunk().ok_or("it is too short")?;
    if *version != VERSION {
        return Err("it is of another version");
    }
    if *count == 0 || usize::from(*count) > MAX_RAILS {
        return Err("it has no rails, or more than four");
    }
    let mut offers = Vec::with_capacity((*count).into());
    for _ in 0..*count {
        let (len, behind) = rest.split_first_chunk().ok_or("it is cut")?;
        let (inner, behind) = behind.split_at_checked(u16::from_le_bytes(*len).into()).ok_or("it is cut")?;
        offers.push(Offer(inner.to_vec()));
        rest = behind;
    }
    if rest.is_empty() { Ok(offers) } else { Err("it is too long") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Promise: bytes-from-outside, seen to fail
    #[test]
    fn fuzz_rails_offer() {
        let inner = |n: usize| (0..n).map(|i| Offer(vec![i as u8; 25 * i])).collect::<Vec<_>>();
        let examples = (1..=MAX_RAILS).map(|n| encode(&inner(n)).unwrap().0);
        transfer_fuzz::Target::new("rails-offer", examples).run(|bytes| match decode(&Offer(bytes.to_vec())) {
            Ok(inner) => {
                assert_eq!(encode(&inner).unwrap().0, bytes);
                format!("{} rails", ["no", "one", "two", "three", "four"][inner.len()])
            }
            Err(why) => why.to_owned(),
        });
    }

    proptest! {
        #[test]
        fn offers_read_back(inner in proptest::collection::vec(any::<Vec<u8>>(), 1..=MAX_RAILS)) {
            let inner: Vec<_> = inner.into_iter().map(Offer).collect();
            let offer = encode(&inner).unwrap();
            for cut in 0..offer.0.len() {
                prop_assert!(decode(&Offer(offer.0[..cut].to_vec())).is_err());
            }
            prop_assert_eq!(decode(&offer), Ok(inner));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_read_back(mut bytes: Vec<u8>, ours: bool) {
            if ours {
                bytes.splice(0..0, *b"RAIL\x01");
            }
            let offer = Offer(bytes);
            if let Ok(inner) = decode(&offer) {
                prop_assert_eq!(encode(&inner), Some(offer));
            }
        }
    }
}
