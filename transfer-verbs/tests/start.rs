//! A program that uses the crate starts on every machine, also where the libraries are missing.

#![allow(clippy::unwrap_used)]

use transfer_verbs::{VerbsError, available, cm, devices};

/// The number of so many bytes at a place, lowest byte first.
fn number(bytes: &[u8], at: u64, len: u64) -> u64 {
    let bytes = &bytes[at as usize..(at + len) as usize];
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The libraries without which the loader does not start a 64-bit ELF program: what `readelf -d` lists as NEEDED.
fn needed(program: &[u8]) -> Vec<String> {
    assert!(program.starts_with(b"\x7fELF\x02\x01"), "a 64-bit ELF program");
    let headers: Vec<[u64; 4]> = (0..number(program, 56, 2))
        .map(|place| {
            let at = number(program, 32, 8) + place * number(program, 54, 2);
            let [kind, offset, address, len] = [(0, 4), (8, 8), (16, 8), (32, 8)];
            [kind, offset, address, len].map(|(field, bytes)| number(program, at + field, bytes))
        })
        .collect();
    let (load, dynamic) = (1, 2);
    let [_, start, _, len] = *headers.iter().find(|header| header[0] == dynamic).unwrap();
    let entries = (start..start + len).step_by(16).map(|at| (number(program, at, 8), number(program, at + 8, 8)));
    let (is_needed, string_table) = (1, 5);
    let table = entries.clone().find(|(tag, _)| *tag == string_table).unwrap().1;
    let holds = |header: &&[u64; 4]| header[0] == load && (header[2]..header[2] + header[3]).contains(&table);
    let [_, offset, address, _] = *headers.iter().find(holds).unwrap();
    let name = |at: u64| {
        let name = program[(table - address + offset + at) as usize..].split(|byte| *byte == 0).next().unwrap();
        String::from_utf8(name.to_vec()).unwrap()
    };
    entries.filter(|(tag, _)| *tag == is_needed).map(|(_, at)| name(at)).collect()
}

#[test]
fn the_loader_needs_no_rdma_library() {
    let needed = needed(&std::fs::read(std::env::current_exe().unwrap()).unwrap());
    assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    assert!(!needed.iter().any(|name| name.contains("ibverbs") || name.contains("rdmacm")), "{needed:?}");
}

#[test]
fn a_program_starts_and_says_whether_there_are_verbs() {
    match available() {
        Ok(()) => assert!(devices().is_ok(), "no device is no error"),
        Err(unavailable) => {
            assert!(unavailable.to_string().starts_with("libibverbs.so.1 cannot be used: "), "{unavailable}");
            assert!(matches!(devices(), Err(VerbsError::Unavailable(why)) if why == unavailable));
        }
    }
    if let Err(unavailable) = cm::available() {
        assert!(unavailable.to_string().starts_with("librdmacm.so.1 cannot be used: "), "{unavailable}");
        assert!(matches!(cm::EventChannel::new(), Err(VerbsError::Unavailable(why)) if why == unavailable));
    }
    eprintln!("libibverbs: {:?}, librdmacm: {:?}", available(), cm::available());
}
