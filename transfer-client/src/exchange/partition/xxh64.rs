//! XXH64, the hash function: fixed by its [specification](https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md),
//! so that every host and every version of this library gives a row the same partition, and so can any other program.

const P1: u64 = 0x9e37_79b1_85eb_ca87;
const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const P3: u64 = 0x1656_67b1_9e37_79f9;
const P4: u64 = 0x85eb_ca77_c2b2_ae63;
const P5: u64 = 0x27d4_eb2f_1656_67c5;

fn round(acc: u64, lane: u64) -> u64 {
    acc.wrapping_add(lane.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

fn merge(acc: u64, lane: u64) -> u64 {
    (acc ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4)
}

fn eight_more(acc: u64, lane: u64) -> u64 {
    (acc ^ round(0, lane)).rotate_left(27).wrapping_mul(P1).wrapping_add(P4)
}

fn avalanche(acc: u64) -> u64 {
    let acc = (acc ^ (acc >> 33)).wrapping_mul(P2);
    let acc = (acc ^ (acc >> 29)).wrapping_mul(P3);
    acc ^ (acc >> 32)
}

/// The hash of the 8 bytes of a number, the lowest byte first.
#[inline]
pub(crate) fn xxh64_u64(number: u64, seed: u64) -> u64 {
    avalanche(eight_more(seed.wrapping_add(P5).wrapping_add(8), number))
}

/// The hash of bytes.
pub(crate) fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let (stripes, rest) = bytes.as_chunks::<32>();
    let mut acc = match stripes {
        [] => seed.wrapping_add(P5),
        _ => {
            let start = seed.wrapping_add(P1);
            let mut accs = [start.wrapping_add(P2), seed.wrapping_add(P2), seed, seed.wrapping_sub(P1)];
            for stripe in stripes {
                for (acc, lane) in accs.iter_mut().zip(stripe.as_chunks::<8>().0) {
                    *acc = round(*acc, u64::from_le_bytes(*lane));
                }
            }
            let [a, b, c, d] = accs;
            let sum = a.rotate_left(1).wrapping_add(b.rotate_left(7));
            let sum = sum.wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18));
            accs.into_iter().fold(sum, merge)
        }
    };
    acc = acc.wrapping_add(bytes.len() as u64);
    let (lanes, rest) = rest.as_chunks::<8>();
    acc = lanes.iter().fold(acc, |acc, lane| eight_more(acc, u64::from_le_bytes(*lane)));
    let (halves, rest) = rest.as_chunks::<4>();
    acc = halves.iter().fold(acc, |acc, half| {
        let half = u64::from(u32::from_le_bytes(*half)).wrapping_mul(P1);
        (acc ^ half).rotate_left(23).wrapping_mul(P2).wrapping_add(P3)
    });
    acc = rest.iter().fold(acc, |acc, byte| (acc ^ u64::from(*byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1));
    avalanche(acc)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation.
    #[test]
    fn hashes_are_those_of_the_reference_implementation() {
        assert_eq!(xxh64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxh64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
        assert_eq!(xxh64(b"0123456789abcdef0123456789abcdef", 7), 0xf3bf_b9ba_5c7d_f996);
        assert_eq!(xxh64(&(0..100).collect::<Vec<u8>>(), 7), 0x8065_3e7e_9b88_7cdd);
        assert_eq!(xxh64(b"Nobody inspects the spammish repetition", 0), 0xfbce_a83c_8a37_8bf1);
    }

    #[test]
    fn a_number_hashes_like_its_eight_bytes() {
        for (number, seed) in [(0, 0), (1, 0), (u64::MAX, 7), (0x0123_4567_89ab_cdef, u64::MAX)] {
            assert_eq!(xxh64_u64(number, seed), xxh64(&number.to_le_bytes(), seed));
        }
    }
}
