use super::*;
use crate::config::{Poll, Size};

fn words(line: &str) -> Vec<OsString> {
    std::iter::once("transferd").chain(line.split_whitespace()).map(OsString::from).collect()
}

/// Does the same as [`load`], with this text as the file. Tests do not use the environment.
fn with_file(line: &str, file: &str) -> Result<Loaded, LoadError> {
    let arguments = words(line);
    let said = command().try_get_matches_from(&arguments)?;
    let file = ConfigFile::parse(Path::new("/etc/t.toml"), file)?;
    load_with(&arguments, &said, Some(file))
}

fn origin(loaded: &Loaded, key: &str) -> Origin {
    loaded.settings.iter().find(|s| s.key == key).unwrap().origin.clone()
}

#[track_caller]
fn refused(file: &str, words: &[&str]) {
    let error = with_file("", file).and_then(|loaded| loaded.config()).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{file:?}: {error}");
    }
}

#[test]
fn the_command_line_overrules_the_file_and_the_file_the_defaults() {
    let file = "pool_bytes = \"1GiB\"\npoll = 'busy'\ntcp_rails = 2\nsocket_mode = 666\nhuge_pages = true\n\
                verbs_device = [\"a:1\", \"b\"]\n";
    let loaded = with_file("--poll event --huge-pages=false", file).unwrap();
    let config = loaded.config().unwrap();
    assert_eq!((config.pool_bytes, config.tcp_rails, config.socket_mode), (Size(1 << 30), 2, 0o666));
    assert_eq!((config.poll, config.huge_pages), (Poll::Event, false));
    assert_eq!(config.fabrics.verbs.devices.len(), 2);
    assert_eq!(origin(&loaded, "pool_bytes"), Origin::File("/etc/t.toml".into(), 1));
    assert_eq!(origin(&loaded, "poll"), Origin::CommandLine);
    assert_eq!(origin(&loaded, "lock"), Origin::Default);
    assert!(with_file("", file).unwrap().config().unwrap().huge_pages);
}

#[test]
fn limits_are_a_table_or_a_list() {
    let of = |line: &str, file: &str| with_file(line, file).unwrap().config().unwrap().limits.all();
    for file in [
        "[limits]\nkeys_per_user = 5\ndirectory_keys_per_node = 7\n",
        "limits = ['keys_per_user=5', 'directory_keys_per_node=7']",
    ] {
        let limits = of("", file);
        assert_eq!((limits.node.keys_per_user, limits.directory.keys_per_node), (5, 7), "{file}");
        assert_eq!(limits.node.keys_per_node, of("", "").node.keys_per_node);
    }
    assert_eq!(of("--limits keys_per_user=9,keys_per_worker=8", "").node.keys_per_worker, 8);
    refused("[limits]\nkeys_per_usr = 5", &["/etc/t.toml:1", "keys_per_usr", "keys_per_user"]);
    refused("[limits]\nkeys_per_user = 0", &["/etc/t.toml:1", "keys_per_user is \"0\"", "from 1 on"]);
}

#[test]
fn errors_name_the_file_the_line_and_the_key() {
    refused("\n\npool_byte = 1\n", &["/etc/t.toml:3", "\"pool_byte\"", "\"pool_bytes\" is one"]);
    refused("xyzzy = 1", &["/etc/t.toml:1", "\"xyzzy\"", "docs/configuration.md"]);
    refused("config = 'x'", &["\"config\" is none"]);
    refused("check = true", &["\"check\" is none"]);
    refused("lock = 'try'\npool_bytes = '64MB'", &["/etc/t.toml:2", "pool_bytes = '64MB'", "64MiB"]);
    refused("poll = \"never\"", &["/etc/t.toml:1", "poll = \"never\"", "adaptive, event, busy"]);
    refused("tcp_rails = 300", &["tcp_rails = 300", "255"]);
    refused("socket_mode = 0o660", &["socket_mode = 0o660", "base 8", "quotes"]);
    refused("huge_pages = 1", &["huge_pages = 1", "true, false"]);
    refused("pool_bytes = 1.5", &["pool_bytes = 1.5", "float"]);
    refused("lock = ['try', 'no']", &["lock = ['try', 'no']", "list of 2"]);
    refused("lock = []", &["lock = []", "list of 0"]);
    refused("[verbs]\ndevice = 'a'", &["/etc/t.toml:1", "verbs", "table"]);
    refused("poll = \n", &["/etc/t.toml:1", "no TOML"]);
    refused("poll = 'busy'\npoll = 'event'", &["/etc/t.toml:2", "duplicate key"]);
    // The error of a contradiction names the sources of the values, too.
    refused(
        "pinned_limit = '1GiB'\npool_bytes = '2GiB'",
        &["--pool-bytes 2GiB", "pinned_limit is from /etc/t.toml:1", "pool_bytes is from /etc/t.toml:2"],
    );
}

#[test]
fn unusable_files_are_named() {
    let missing = load(&words("--config /nowhere/t.toml")).unwrap_err().to_string();
    assert!(missing.contains("--config /nowhere/t.toml") && missing.contains("No such file"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.toml");
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    let long = load(&words(&format!("--config {}", path.display()))).unwrap_err().to_string();
    assert!(long.contains("more than 1048576 bytes"), "{long}");
    std::fs::write(&path, [0xFF, 0xFE]).unwrap();
    let binary = load(&words(&format!("--config {}", path.display()))).unwrap_err().to_string();
    assert!(binary.contains("long.toml") && binary.contains("UTF-8"), "{binary}");
}

#[test]
fn printed_configuration_is_an_equivalent_file() {
    let file = "verbs_device = \"a,b:2\"\nsocket = 'a \"quoted\\path'\npool_bytes = 65536\ninsecure = true";
    let line = "--node n --listen 127.0.0.1:0 --poll busy --log info,transfer_fabric=debug";
    let first = with_file(line, file).unwrap();
    let printed = first.to_toml();
    let second = with_file("", &printed).unwrap();
    assert_eq!(second.config().unwrap(), first.config().unwrap(), "{printed}");
    for line in
        ["poll = \"busy\" # the command line", "pool_bytes = \"65536\" # /etc/t.toml:3", "# advertise is not set"]
    {
        assert!(printed.lines().any(|l| l == line), "{line:?} is missing in {printed}");
    }
    assert!(
        printed.contains("lock = \"try\" # default") && printed.contains("insecure = true # /etc/t.toml:4"),
        "{printed}"
    );
    // A file of the defaults is equivalent, too.
    let plain = with_file("--node n", "").unwrap();
    assert_eq!(with_file("", &plain.to_toml()).unwrap().config().unwrap(), plain.config().unwrap());
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_config_file() {
    let plain = with_file("--node n", "").unwrap().to_toml();
    let examples = [
        plain,
        "pool_bytes = \"1GiB\"\nverbs_device = [\"a:1\", \"b\"]\nhuge_pages = true\n".to_owned(),
        "listen = '127.0.0.1:0'\ndirectory = 'https://a:1'\ntls_cert = 'c'\ntls_key = 'k'\ntls_ca = 'a'\npeers = ['n-*']\n".to_owned(),
        "socket_mode = 0o660\n[verbs]\nport = 1\n".to_owned(),
    ];
    let examples = examples.map(String::into_bytes);
    transfer_fuzz::Target::new("config-file", examples).max_len(4096).bound(16 << 20).rounds(500).run(|bytes| {
        match with_file("--node n", &String::from_utf8_lossy(bytes)).and_then(|l| Ok((l.config()?, l))) {
            Ok((config, loaded)) => {
                // The loaded configuration can be written as a file and loaded again.
                let again = with_file("", &loaded.to_toml()).and_then(|l| l.config()).unwrap();
                assert_eq!(again, config);
                "a configuration".into()
            }
            Err(e) => e.to_string().split([':', '"', '=']).nth(2).unwrap_or_default().chars().take(30).collect(),
        }
    });
}
