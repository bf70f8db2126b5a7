//! A program that uses the crate starts on every machine, also where the libraries are missing.

use transfer_verbs::{VerbsError, available, cm, devices};

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
