//! The status page, in a real browser.

use std::path::Path;
use transfer_tests::{Browser, Carrier, Scene, Spec, poll};

/// A name that runs as a script if it is taken for HTML. A worker and a key have this name.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\">";

/// The workers of two nodes exchange tensors in both directions, and a browser shows the page of one node.
// Promise: status-page, seen to fail
#[test]
fn page_shows_links_workers_tensors_and_waits() {
    let scene = Scene::two_with(&["--pool-bytes", "64MiB", "--http-listen", "127.0.0.1:0"]);
    let address = scene.b().http();
    let mut giver = scene.a().worker("trainer-0");
    let mut taker = scene.b().worker("parameter-server");
    let mut hostile = scene.b().worker(HOSTILE);
    let hostile_waits = hostile.fetch(HOSTILE);
    let mut browser = Browser::start(scene.folder());
    browser.look(1280, 900, false, false);
    browser.open(&format!("http://{address}/"));

    browser.until("document.getElementById('node').textContent === 'b'");
    browser.until("document.getElementById('state').textContent === 'ready'");
    // Throughput is shown while tensors are carried in both directions and within the node.
    let mut version = 0;
    let mut carry = || {
        version += 1;
        giver.push("layers/0/weights", Spec::bytes(4 << 20, version)).get();
        taker.fetch("layers/0/weights").exactly(version).hold("w").get();
        taker.push("layers/0/gradients", Spec::bytes(3 << 20, version)).to("trainer-0").get();
        taker.fetch("layers/0/gradients").timeout(std::time::Duration::from_millis(1)).start();
    };
    let shown =
        "['received', 'sent'].every((t) => /[1-9].* [KMG]iB\\/s/.test(document.getElementById(`t-${t}`).textContent))";
    let seen = poll(|| {
        carry();
        if browser.evaluate(shown) == true { Ok(()) } else { Err(()) }
    });
    assert_eq!(seen, Ok(()), "{}", browser.evaluate("document.body.innerText"));
    let fabric = Carrier::chosen().name();
    browser.until(&format!(
        "[...document.querySelectorAll('#links-rows tr')].some((r) => r.cells[0].textContent === 'a' && \
         r.cells[1].textContent.startsWith('{fabric}') && /iB/.test(r.cells[2].textContent) && /s$/.test(r.cells[6].textContent))"
    ));
    // The curves have points, the memory has its meters, and the workers have their names.
    browser.until("document.querySelector('#chart .curve.received').getAttribute('d').length > 10");
    browser.until("document.querySelectorAll('#memory [role=meter]').length === 2");
    browser.until("Number(document.querySelectorAll('#memory [role=meter]')[1].getAttribute('aria-valuenow')) > 0");
    browser.until(
        "[...document.querySelectorAll('#workers-rows tr')].some((r) => r.cells[0].textContent === 'parameter-server')",
    );
    // The published tensors are listed, each key in one line.
    taker.push("layers/0/optimizer", Spec::bytes(3 << 20, 1)).get();
    browser.until(
        "[...document.querySelectorAll('#tensors-rows tr')].some((r) => r.cells[0].textContent === 'layers/0/optimizer' && \
         r.cells[2].textContent === 'u8[3145728]' && r.cells[3].textContent === '3.00 MiB' && \
         r.cells[4].textContent === 'parameter-server' && r.cells[0].firstChild.offsetHeight < 30 && \
         new RegExp(String(new Date().getFullYear())).test(r.cells[6].textContent))",
    );
    // A worker's name stays text.
    let name = serde_json::to_string(HOSTILE).expect("a text");
    browser
        .until(&format!("[...document.querySelectorAll('#workers-rows .name')].some((c) => c.textContent === {name})"));
    // A waiting operation is listed with its worker, its key, its kind and its present step.
    let waiting = hostile_waits.start();
    browser.until(&format!(
        "[...document.querySelectorAll('#flight-rows tr')].some((r) => r.cells[0].textContent === {name} && \
         r.cells[1].textContent === {name} && r.cells[2].textContent === 'fetch' && /directory/.test(r.cells[3].textContent))"
    ));
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    // A character that would reverse the text is shown as an escape sequence.
    let turned = scene.b().worker("a\u{202e}b");
    browser
        .until("[...document.querySelectorAll('#workers-rows .name')].some((c) => c.textContent === 'a\\\\u{202e}b')");
    drop(turned);
    assert_eq!(browser.evaluate("document.title"), "b · transfer");

    for (width, height, phone) in [(1280, 900, false), (390, 844, true)] {
        for dark in [false, true] {
            browser.look(width, height, phone, dark);
            browser.evaluate("dispatchEvent(new Event('resize'))");
            let wide = browser.evaluate("document.documentElement.scrollWidth");
            assert!(wide.as_u64() <= Some(width.into()), "nothing scrolls sideways at {width}: {wide}");
            if let Some(folder) = std::env::var_os("TRANSFER_SCREENSHOTS") {
                let name = format!("{}-{}", if phone { "phone" } else { "page" }, if dark { "dark" } else { "light" });
                save(&Path::new(&folder).join(name), &browser.screenshot());
            }
        }
    }
    for url in browser.requests() {
        assert!(url.starts_with(&format!("http://{address}/")) || url.starts_with("data:"), "it asked for {url}");
    }
    assert_eq!(browser.complaints(), [] as [String; 0]);
    drop((giver, taker, waiting, hostile, browser));
    scene.end();
}

/// Saves a picture, which is given in base64, as a PNG file.
fn save(path: &Path, picture: &str) {
    let file = path.with_extension("base64");
    std::fs::write(&file, picture).expect("it can be written");
    let png = std::fs::File::create(path.with_extension("png")).expect("it can be written");
    let decoded = std::process::Command::new("base64").arg("-d").arg(&file).stdout(png).status();
    assert!(decoded.is_ok_and(|status| status.success()));
    std::fs::remove_file(file).expect("it was written");
}

/// The sidecar stops answering while the page is open. The page says so, keeps the last state, and continues when the
/// sidecar answers again.
#[test]
fn page_says_when_the_sidecar_does_not_answer() {
    let scene = Scene::with(&[&["--pool-bytes", "16MiB", "--http-listen", "127.0.0.1:0"]]);
    let mut browser = Browser::start(scene.folder());
    browser.open(&format!("http://{}/", scene.a().http()));
    browser.until("document.getElementById('state').textContent === 'ready'");
    scene.nodes[0].freeze();
    browser.until("document.getElementById('state').textContent === 'no answer'");
    browser.until("!document.getElementById('banner').hidden && /does not answer/.test(document.getElementById('banner').textContent)");
    assert_eq!(browser.evaluate("document.getElementById('node').textContent"), "a");
    scene.nodes[0].go_on();
    browser
        .until("document.getElementById('state').textContent === 'ready' && document.getElementById('banner').hidden");
    drop(browser);
    scene.end();
}
