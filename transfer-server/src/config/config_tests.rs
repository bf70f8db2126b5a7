use super::*;
use clap::Parser;

fn parse(line: &str) -> Result<Config, String> {
    let words = std::iter::once("transferd").chain(line.split_whitespace());
    let flags = Flags::try_parse_from(words).map_err(|e| e.to_string())?;
    flags.into_config().map_err(|e| e.to_string())
}

/// The error for a line, which must hold all these words.
#[track_caller]
fn refused(line: &str, words: &[&str]) {
    let error = parse(line).unwrap_err();
    for word in words {
        assert!(error.contains(word), "{line}: {error}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Flags::command().debug_assert();
}

#[test]
fn a_plain_start_needs_no_flag() {
    let config = parse("").unwrap();
    assert_eq!((config.listen, config.data_address()), (None, None));
    assert_eq!(config.directory, DirectoryPlace::Embedded);
    assert!(!config.node.as_str().is_empty());
    assert_eq!(Config::single(config.node, Path::new("/x")).check(), Ok(()));
}

#[test]
fn a_node_of_a_cluster() {
    let line = "--node b --listen 127.0.0.1:0 --directory http://127.0.0.1:7471 --pool-bytes 1GiB --require tcp \
                --lock require --poll busy --socket-mode 666 --pinned-limit 2GiB";
    let config = parse(line).unwrap();
    assert_eq!(config.directory, DirectoryPlace::At("http://127.0.0.1:7471".into()));
    assert_eq!(config.data_address(), Some("127.0.0.1:0".parse().unwrap()));
    assert_eq!((config.pool_bytes, config.socket_mode), (Size(1 << 30), 0o666));
    assert_eq!((config.require, config.lock, config.poll), (Some(FabricKind::Tcp), Locking::Require, Poll::Busy));
}

#[test]
fn beyond_loopback_it_does_not_listen_unless_told_so() {
    for address in ["0.0.0.0:7471", "10.0.0.7:7471", "[::]:7471", "[2001:db8::1]:7471", "[::ffff:10.0.0.7]:7471"] {
        refused(&format!("--listen {address}"), &["--listen", address, "--insecure", "127.0.0.1:7471"]);
        let both = format!("--listen 127.0.0.1:1 --data-listen {address}");
        refused(&both, &["--data-listen", address, "--insecure"]);
    }
    for address in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        assert!(parse(&format!("--listen {address}")).is_ok(), "{address}");
    }
    assert!(parse("--listen 10.0.0.7:7471 --insecure").is_ok());
}

#[test]
fn what_others_cannot_connect_to_must_be_advertised() {
    refused("--listen 0.0.0.0:7471 --insecure", &["--advertise", "0.0.0.0:7471", "HOST:PORT"]);
    let listen = "--listen 0.0.0.0:7471 --insecure --advertise node-a:7471";
    refused(listen, &["--data-advertise", "0.0.0.0:0"]);
    assert!(parse(&format!("{listen} --data-advertise 10.0.0.7")).is_ok());
    for bad in ["node-a", "node-a:0", ":1", "http://node-a:1", "::1:7471", "node-a:99999"] {
        refused(&format!("--listen 127.0.0.1:1 --advertise {bad}"), &["--advertise", bad, "HOST:PORT"]);
    }
    for good in ["node-a:7471", "10.0.0.7:1", "[::1]:7471"] {
        assert!(parse(&format!("--listen 127.0.0.1:1 --advertise {good}")).is_ok(), "{good}");
    }
    refused("--advertise node-a:1", &["--advertise", "--listen"]);
    refused("--data-listen 127.0.0.1:1", &["--data-listen", "--listen"]);
    refused("--data-advertise 10.0.0.7", &["--data-advertise", "--data-listen"]);
}

#[test]
fn errors_name_the_flag_the_value_and_what_is_right() {
    refused("--pool-bytes 64MB", &["--pool-bytes", "64MB", "64MiB"]);
    refused("--pool-bytes 9GiB", &["--pool-bytes", "9GiB", "--pinned-limit 8GiB"]);
    refused("--max-arena-bytes 4KiB", &["--max-arena-bytes", "4KiB", "64KiB"]);
    refused("--listen localhost:1", &["--listen", "localhost:1", "127.0.0.1:7471"]);
    refused("--directory etcd", &["--directory", "etcd", "embedded", "http://"]);
    refused("--directory https://a:1 --listen 127.0.0.1:0", &["--directory", "https://a:1", "http://"]);
    refused("--directory http://a:1", &["--directory", "http://a:1", "--listen"]);
    refused("--socket-mode 999", &["--socket-mode", "999", "octal"]);
    refused("--socket-mode 1777", &["--socket-mode", "1777", "660"]);
    refused("--socket-mode 060", &["--socket-mode", "60", "660"]);
    refused("--require infiniband", &["--require", "infiniband", "verbs"]);
    refused("--lock maybe", &["--lock", "maybe", "require"]);
    refused("--poll never", &["--poll", "never", "adaptive"]);
    refused(&format!("--node {}", "n".repeat(513)), &["--node", "512", "513"]);
}
