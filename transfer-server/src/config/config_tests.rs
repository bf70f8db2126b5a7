use super::*;
use clap::Parser;

fn parse(line: &str) -> Result<Config, String> {
    let words = std::iter::once("transferd").chain(line.split_whitespace());
    let flags = Flags::try_parse_from(words).map_err(|e| e.to_string())?;
    flags.into_config().map_err(|e| e.to_string())
}

/// Checks that a command line is refused with an error that contains all these words.
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
fn node_of_a_cluster_is_parsed() {
    let line = "--node b --listen 127.0.0.1:0 --directory http://127.0.0.1:7471 --pool-bytes 1GiB --require tcp \
                --lock require --poll busy --socket-mode 666 --pinned-limit 2GiB";
    let config = parse(line).unwrap();
    assert_eq!(config.directory, DirectoryPlace::At("http://127.0.0.1:7471".into()));
    assert_eq!(config.data_address(), Some("127.0.0.1:0".parse().unwrap()));
    assert_eq!((config.pool_bytes, config.socket_mode), (Size(1 << 30), 0o666));
    assert_eq!((config.require, config.lock, config.poll), (Some(FabricKind::Tcp), Locking::Require, Poll::Busy));
}

#[test]
fn number_of_unfinished_versions_is_checked() {
    let unfinished = |line: &str| parse(line).unwrap().limits.all().node.unfinished_versions;
    assert_eq!((unfinished(""), unfinished("--unfinished-versions 4")), (2, 4));
    for n in ["0", "7", "many"] {
        refused(&format!("--unfinished-versions {n}"), &["--unfinished-versions", n]);
    }
}

#[test]
fn marks_and_limits_of_rows_on_disk_fit_together() {
    let config = parse("--spill-dir /d --spill-bytes 1GiB --spill-high-percent 100 --spill-low-percent 99").unwrap();
    let node = config.spill.node().unwrap();
    assert_eq!((node.high_percent, node.low_percent), (100, 99));
    assert_eq!((node.tenant_bytes, node.total_bytes), (1 << 30, 1 << 30));
    assert_eq!(parse("--spill-bytes 1GiB").unwrap().spill.node(), None, "only with a folder");
    refused("--spill-high-percent 101", &["--spill-high-percent 101", "at most 100"]);
    refused("--spill-low-percent 60", &["--spill-low-percent 60", "--spill-high-percent 60", "above"]);
    refused(
        "--spill-bytes 1GiB --spill-bytes-per-tenant 2GiB",
        &["--spill-bytes-per-tenant 2GiB", "--spill-bytes 1GiB"],
    );
}

#[test]
fn listening_beyond_loopback_needs_insecure_or_certificates() {
    for address in ["0.0.0.0:7471", "10.0.0.7:7471", "[::]:7471", "[2001:db8::1]:7471", "[::ffff:10.0.0.7]:7471"] {
        refused(&format!("--listen {address}"), &["--listen", address, "--insecure", "127.0.0.1:7471"]);
        let both = format!("--listen 127.0.0.1:1 --data-listen {address}");
        refused(&both, &["--data-listen", address, "--insecure"]);
        let page = format!("--http-listen {address}");
        refused(&page, &["--http-listen", address, "--http-plaintext", "127.0.0.1:7471"]);
        // The address is refused with certificates, too. The text then does not mention `--insecure`, which is about
        // missing certificates.
        let with_tls = format!("{page} --tls-cert c --tls-key k --tls-ca a");
        assert!(!parse(&with_tls).unwrap_err().contains("--insecure"));
        assert!(parse(&format!("{with_tls} --http-plaintext")).is_ok());
    }
    for address in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        assert!(parse(&format!("--listen {address}")).is_ok(), "{address}");
    }
    assert!(parse("--listen 10.0.0.7:7471 --http-listen 10.0.0.7:9471 --insecure").is_ok());
}

#[test]
fn the_limit_of_pinned_memory_has_room_for_a_worker() {
    // The limit that the error advises is enough.
    refused("--pinned-limit 1", &["--pinned-limit 1 ", "--pool-bytes 256MiB", "give 324MiB"]);
    assert!(parse("--pinned-limit 324MiB").is_ok());
    refused("--pinned-limit 256MiB", &["--pinned-limit 256MiB", "give 324MiB"]);
    let over = "--pinned-limit 1GiB --max-arena-bytes 2GiB";
    refused(over, &["--max-arena-bytes 2GiB", "--pinned-limit 1GiB", "2GiB"]);
    assert_eq!(parse("--pinned-limit 1GiB").unwrap().max_arena_bytes, Size(1 << 30));
    assert_eq!(parse("").unwrap().max_arena_bytes, Size(4 << 30));
}

#[test]
fn the_default_of_pinned_memory_follows_the_memory_cgroup() {
    let of = |group: Option<u64>| default_pinned_limit(group).0;
    assert_eq!((of(None), of(Some(1 << 40)), of(Some(8 << 30))), (8 << 30, 8 << 30, 6 << 30));
    assert_eq!((of(Some(100 << 20)), of(Some(0))), (75 << 20, 0));
}

#[test]
fn paths_of_sockets_fit_an_address() {
    let long = format!("/tmp/{}", "x".repeat(103));
    for flag in ["--socket", "--admin-socket"] {
        assert!(parse(&format!("{flag} {}", &long[..107])).is_ok());
        refused(&format!("{flag} {long}"), &[flag, &long, "107 bytes at most", "has 108"]);
    }
    refused("--socket /tmp/x --admin-socket /tmp/x", &["--admin-socket /tmp/x", "--socket too"]);
}

#[test]
fn wildcard_addresses_need_an_advertised_one() {
    refused("--listen 0.0.0.0:7471 --insecure", &["--advertise", "0.0.0.0:7471", "HOST:PORT"]);
    let listen = "--listen 0.0.0.0:7471 --insecure --advertise node-a:7471";
    // This flag takes no port.
    refused(listen, &["--data-advertise", "0.0.0.0:0", "Give --data-advertise IP,"]);
    assert!(parse(&format!("{listen} --data-advertise 10.0.0.7")).is_ok());
    for bad in ["node-a", "node-a:0", ":1", "http://node-a:1", "::1:7471", "node-a:99999"] {
        refused(&format!("--listen 127.0.0.1:1 --advertise {bad}"), &["--advertise", bad, "HOST:PORT"]);
    }
    for good in ["node-a:7471", "10.0.0.7:1", "[::1]:7471"] {
        assert!(parse(&format!("--listen 127.0.0.1:1 --advertise {good}")).is_ok(), "{good}");
    }
    refused("--advertise node-a:1", &["--advertise", "--listen"]);
    refused("--http-plaintext", &["--http-plaintext", "--http-listen"]);
    refused("--data-listen 127.0.0.1:1", &["--data-listen", "--listen"]);
    refused("--data-advertise 10.0.0.7", &["--data-advertise", "--data-listen"]);
}

#[test]
fn errors_name_the_flag_the_value_and_a_valid_value() {
    refused("--pool-bytes 64MB", &["--pool-bytes", "64MB", "64MiB"]);
    refused("--pool-bytes 9GiB", &["--pool-bytes", "9GiB", "--pinned-limit 8GiB"]);
    refused("--max-arena-bytes 4KiB", &["--max-arena-bytes", "4KiB", "64KiB"]);
    for name in ["localhost:1", "node-a.example:7471"] {
        refused(&format!("--listen {name}"), &["--listen", name, "127.0.0.1:7471", "several addresses", "--advertise"]);
    }
    refused("--listen 127.0.0.1", &["--listen", "127.0.0.1", "IP:PORT"]);
    refused("--directory etcd", &["--directory", "etcd", "embedded", "http://"]);
    refused("--directory https://a:1 --listen 127.0.0.1:0", &["--directory", "https://a:1", "http://"]);
    refused("--directory http://a:1", &["--directory", "http://a:1", "--listen IP:PORT"]);
    refused("--socket-mode 999", &["--socket-mode", "999", "octal"]);
    refused("--socket-mode 1777", &["--socket-mode", "1777", "660"]);
    refused("--socket-mode 060", &["--socket-mode", "60", "660"]);
    refused("--require infiniband", &["--require", "infiniband", "verbs"]);
    refused("--shm perhaps", &["--shm", "perhaps", "auto", "off"]);
    refused("--shm on", &["--shm on", "--listen"]);
    refused("--lock maybe", &["--lock", "maybe", "require"]);
    refused("--poll never", &["--poll", "never", "adaptive"]);
    refused(&format!("--node {}", "n".repeat(513)), &["--node", "512", "513"]);
}

#[test]
fn verbs_devices_are_parsed() {
    let plain = parse("").unwrap();
    assert_eq!(plain.fabrics.verbs, VerbsConfig::default());
    let line = "--listen 10.0.0.7:7471 --insecure --verbs on --verbs-device mlx5_0:1 --verbs-port 2 --verbs-gid-index 3 \
                --verbs-mtu 1024 --verbs-connect rdma-cm --verbs-listen 10.0.0.7:0 --verbs-timeout 18 --verbs-retry 3 \
                --verbs-rnr-retry 0 --verbs-min-rnr-timer 1 --verbs-traffic-class 106 --verbs-service-level 3 \
                --verbs-pkey-index 1 --isolation pool --verbs-queue-pairs 2";
    let device = |name: &str, port| DeviceName { name: name.into(), port };
    let wanted = VerbsConfig {
        wanted: UseFabric::On,
        devices: vec![device("mlx5_0", Some(1))],
        port: Some(2),
        gid_index: Some(3),
        mtu: Some(1024),
        connect: VerbsConnect::RdmaCm,
        listen: Some("10.0.0.7:0".parse().unwrap()),
        timeout: 18,
        retry: 3,
        rnr_retry: 0,
        min_rnr_timer: 1,
        traffic_class: 106,
        service_level: 3,
        pkey_index: 1,
        isolation: IsolationChoice::Pool,
        queue_pairs: 2,
    };
    assert_eq!(parse(line).unwrap().fabrics.verbs, wanted);
    assert_eq!(VerbsConfig::default().patience().as_millis(), 469);
    for line in ["--verbs-device mlx5_0:1 --verbs-device mlx5_1", "--verbs-device mlx5_0:1,mlx5_1"] {
        let two = parse(line).unwrap();
        assert_eq!(two.fabrics.verbs.devices, [device("mlx5_0", Some(1)), device("mlx5_1", None)]);
    }
}

#[test]
fn errors_of_verbs_flags_name_valid_values() {
    let cases: [(&str, &[&str]); 25] = [
        ("--verbs maybe", &["--verbs", "maybe", "auto", "off"]),
        ("--verbs on", &["--verbs on", "--listen"]),
        ("--verbs-device mlx5/0", &["--verbs-device", "mlx5/0", "transferctl devices", "mlx5_0:1"]),
        ("--verbs-device mlx5_0:0", &["mlx5_0:0", "mlx5_0:1"]),
        ("--verbs-device mlx5_0:x", &["mlx5_0:x", "mlx5_0:1"]),
        ("--verbs-device a,a", &["--verbs-device a", "twice", "--verbs-queue-pairs"]),
        ("--verbs-device a:1,a --verbs-port 1", &["--verbs-device a", "twice"]),
        ("--verbs-port 0", &["--verbs-port 0", "from 1"]),
        ("--verbs-port 256", &["--verbs-port", "256", "255"]),
        ("--verbs-mtu 9000", &["--verbs-mtu 9000", "4096"]),
        ("--verbs-connect cm", &["--verbs-connect", "cm", "rdma-cm"]),
        ("--verbs-connect rdma-cm", &["--verbs-connect rdma-cm", "--verbs-listen", "IP address"]),
        ("--verbs-listen 127.0.0.1:0", &["--verbs-listen 127.0.0.1:0", "--verbs-connect rdma-cm"]),
        ("--verbs-connect rdma-cm --verbs-listen 0.0.0.0:1 --insecure", &["--verbs-listen 0.0.0.0:1", "device"]),
        ("--verbs-connect rdma-cm --verbs-listen 10.0.0.7:1", &["--verbs-listen 10.0.0.7:1", "--insecure"]),
        (
            "--verbs-connect rdma-cm --verbs-listen 10.0.0.7:1 --insecure --verbs-device a,b",
            &["--verbs-device a,b", "connection manager", "one device", "--verbs-connect"],
        ),
        ("--verbs-timeout 0", &["--verbs-timeout 0", "for ever", "1 to 31"]),
        ("--verbs-timeout 32", &["--verbs-timeout 32", "1 to 31", "67 ms"]),
        ("--verbs-timeout 31", &["--verbs-timeout 31", "--verbs-retry 6", "10 minutes"]),
        ("--verbs-retry 7", &["--verbs-retry 7", "for ever", "0 to 6"]),
        ("--verbs-rnr-retry 8", &["--verbs-rnr-retry 8", "0 to 6"]),
        ("--verbs-min-rnr-timer 32", &["--verbs-min-rnr-timer 32", "0 to 31"]),
        ("--verbs-service-level 16", &["--verbs-service-level 16", "0 to 15"]),
        ("--verbs-queue-pairs 0", &["--verbs-queue-pairs 0", "1 device", "1 to 4"]),
        ("--verbs-device a,b --verbs-queue-pairs 3", &["--verbs-queue-pairs 3", "2 device", "6 queue pairs", "1 to 4"]),
    ];
    for (line, words) in cases {
        refused(line, words);
    }
    refused("--isolation none", &["--isolation", "none", "window", "pool"]);
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_size() {
    let examples = ["0", "4096", "64MiB", "1 GiB", "3TiB", "16777215TiB", "18446744073709551615B"]
        .map(|text| text.as_bytes().to_vec());
    transfer_fuzz::Target::new("size", examples).max_len(64).run(|bytes| {
        match String::from_utf8_lossy(bytes).parse::<Size>() {
            Ok(size) => {
                assert_eq!(size.to_string().parse(), Ok(size));
                "a size".into()
            }
            Err(e) => e.to_string(),
        }
    });
}

/// A command line of words separated by spaces. A valid one is also checked, and must then be free of contradictions.
// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_command_line() {
    let examples = [
        "--node b --listen 127.0.0.1:0 --directory http://127.0.0.1:7471 --pool-bytes 1GiB --require tcp --lock require",
        "--listen 0.0.0.0:7471 --insecure --advertise [::1]:5 --data-listen [::]:0 --data-advertise 10.0.0.1 --tcp-rails 4",
        "--socket /a/b --admin-socket c --socket-mode 666 --pinned-limit 2GiB --max-arena-bytes 64KiB --poll busy --huge-pages",
        "--verbs on --verbs-listen 127.0.0.1:0 --listen [::1]:0 --ready-file x --lock no",
    ];
    let examples = examples.map(|text| text.as_bytes().to_vec());
    transfer_fuzz::Target::new("command-line", examples).max_len(512).bound(2 << 20).rounds(3_000).run(|bytes| {
        match parse(&String::from_utf8_lossy(bytes)) {
            Ok(config) => {
                assert_eq!(config.check(), Ok(()));
                "a configuration".into()
            }
            // The rest of the text is the usage, or contains the value.
            Err(e) => e.split(['\'', '"', '\n']).next().unwrap_or_default().chars().take(40).collect(),
        }
    });
}

#[test]
fn the_time_of_a_takeover_is_bounded() {
    assert_eq!(parse("").unwrap().directory_takeover, Duration::from_secs(5));
    assert_eq!(parse("--directory-takeover 1500ms").unwrap().directory_takeover, Duration::from_millis(1500));
    for value in ["999ms", "301s", "0s"] {
        let text = parse(&format!("--directory-takeover {value}")).unwrap_err().to_string();
        assert!(["--directory-takeover", "1s", "300s"].iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn tcp_rails_are_bounded() {
    assert_eq!(parse("").unwrap().tcp_rails, DEFAULT_TCP_RAILS);
    assert_eq!(parse("--tcp-rails 4").unwrap().tcp_rails, 4);
    refused("--tcp-rails 0", &["--tcp-rails 0", "1 to 4"]);
    refused("--tcp-rails 5", &["--tcp-rails 5", "1 to 4"]);
    refused("--tcp-rails two", &["--tcp-rails", "two"]);
}

#[test]
fn etcd_is_named_by_its_members_and_a_prefix() {
    let with = |directory: &str, more: &str| parse(&format!("--listen 127.0.0.1:0 --directory {directory} {more}"));
    for (text, urls, prefix) in [
        ("etcd:http://e1:2379", &["http://e1:2379"][..], "/transfer"),
        ("etcd:http://e1:2379/", &["http://e1:2379"], "/transfer"),
        ("etcd:http://e1:2379,http://[::1]:2379/a/b/", &["http://e1:2379", "http://[::1]:2379"], "/a/b"),
    ] {
        let config = with(text, "--directory-host").unwrap();
        let DirectoryPlace::Etcd(members) = &config.directory else { panic!("{config:?}") };
        assert_eq!(
            (&members.urls[..], &*members.prefix),
            (&urls.iter().map(|u| (*u).to_owned()).collect::<Vec<_>>()[..], prefix)
        );
        assert!(config.directory_host);
    }
    with("etcd:https://e1:2379/p", "--etcd-ca a --etcd-cert c --etcd-key k --etcd-user u --etcd-password-file f")
        .unwrap();
    for (directory, more, words) in [
        ("etcd:", "", &["no URL"][..]),
        ("etcd:e1:2379", "", &["\"e1:2379\"", "no URL"]),
        ("etcd:http://e1", "", &["http://e1", "HOST:PORT"]),
        ("etcd:ftp://e1:1", "", &["ftp://e1:1", "https://HOST:PORT"]),
        ("etcd:http://u@e1:1", "", &["u@e1", "HOST:PORT"]),
        ("etcd:http://e1:1/p,http://e2:1", "", &["only the last"]),
        ("etcd:http://e1:1,https://e2:1", "", &["https://", "http://"]),
        ("etcd:http://e1:1,http://e1:1", "", &["http://e1:1", "twice"]),
        ("etcd:https://e1:1", "", &["--etcd-ca"]),
        ("etcd:http://e1:1", "--etcd-ca a", &["--etcd-ca", "https://"]),
        ("etcd:https://e1:1", "--etcd-ca a --etcd-cert c", &["--etcd-cert", "--etcd-key"]),
        ("etcd:http://e1:1", "--etcd-user u", &["--etcd-user", "--etcd-password-file"]),
        ("etcd:http://e1:1", "--etcd-password-file u", &["--etcd-password-file", "--etcd-user"]),
        ("http://e1:1", "--directory-host", &["--directory-host", "--directory etcd:"]),
        ("embedded", "--etcd-user u", &["--etcd-user", "--directory etcd:"]),
    ] {
        let text = with(directory, more).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{directory} {more}: {text}");
    }
    let text = parse("--directory etcd:http://e1:1").unwrap_err().to_string();
    assert!(text.contains("--listen IP:PORT") && text.contains("etcd:http://e1:1/transfer"), "{text}");
}

#[test]
fn kubernetes_is_named_by_a_namespace_and_a_name() {
    let with = |directory: &str, more: &str| parse(&format!("--listen 127.0.0.1:0 --directory {directory} {more}"));
    let config =
        with("kubernetes:training/transfer.a-1", "--kubernetes-url https://[::1]:6443/ --directory-host").unwrap();
    let DirectoryPlace::Kubernetes(lease) = &config.directory else { panic!("{config:?}") };
    assert_eq!((&*lease.namespace, &*lease.name, config.directory_host), ("training", "transfer.a-1", true));
    assert_eq!(config.kubernetes.server(lease).unwrap(), ("[::1]".to_owned(), 6443));
    assert!(config.kubernetes.token_file().ends_with("serviceaccount/token"));
    let url = "--kubernetes-url https://k:6443";
    for (directory, more, words) in [
        ("kubernetes:a/b/c", url, &["\"b/c\"", "NAMESPACE/NAME"][..]),
        ("kubernetes:a/", url, &["name \"\"", "1 to 63"]),
        ("kubernetes:a.b/c", url, &["namespace \"a.b\""]),
        ("kubernetes:a/B", url, &["\"B\"", "small letters"]),
        ("kubernetes:a/-b", url, &["\"-b\""]),
        ("kubernetes:a/b", "--kubernetes-url http://k:6443", &["https://HOST:PORT", "http://k:6443"]),
        ("kubernetes:a/b", "--kubernetes-url https://k", &["https://HOST:PORT", "https://k"]),
        ("kubernetes:a/b", "--kubernetes-url https://k:1 --etcd-user u", &["--etcd-user", "--directory etcd:"]),
        ("etcd:http://e1:1", "--kubernetes-ca c", &["--kubernetes-ca", "kubernetes:NAMESPACE/NAME"]),
        ("embedded", "--directory-host", &["--directory-host", "etcd:", "kubernetes:"]),
    ] {
        let text = with(directory, more).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{directory} {more}: {text}");
    }
    // In a pod, and elsewhere.
    let folder = tempfile::tempdir().unwrap();
    let parse_in = || KubernetesLease::parse_in("kubernetes:c", "c", folder.path());
    let text = parse_in().unwrap_err().to_string();
    assert!(text.contains("namespace") && text.contains("kubernetes:NAMESPACE/NAME"), "{text}");
    std::fs::write(folder.path().join("namespace"), "training\n").unwrap();
    let lease = parse_in().unwrap();
    assert_eq!(lease.to_string(), "kubernetes:training/c");
    let of_pod =
        |host: &'static str| move |name: &str| Some(if name.ends_with("PORT") { "443" } else { host }.to_owned());
    let server = |host| KubernetesConfig::default().server_in(&lease, of_pod(host)).unwrap();
    assert_eq!([server("10.0.0.1"), server("fd00::1")], [("10.0.0.1".to_owned(), 443), ("[fd00::1]".to_owned(), 443)]);
    let text = KubernetesConfig::default().server_in(&lease, |_| None).unwrap_err().to_string();
    assert!(text.contains("--kubernetes-url") && text.contains("KUBERNETES_SERVICE_HOST"), "{text}");
    let long = with(&format!("kubernetes:a/{}", "b".repeat(64)), url).unwrap_err().to_string();
    assert!(long.contains("1 to 63"), "{long}");
    let text = parse(&format!("--directory kubernetes:a/b {url}")).unwrap_err().to_string();
    assert!(text.contains("--listen IP:PORT") && text.contains("kubernetes:a/b"), "{text}");
}
