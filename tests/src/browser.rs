//! A headless browser, controlled by the DevTools protocol over two pipes.

use crate::process::{Process, Start};
use crate::{WAIT_LIMIT, poll, programs, tools};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, channel};

/// A browser with one page. It ends when it is dropped.
#[derive(Debug)]
pub struct Browser {
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: String,
    /// The page's console messages and errors.
    complaints: Vec<String>,
    /// The URLs that the browser has requested, of any host.
    requests: Vec<String>,
    _process: Process,
}

impl Browser {
    /// Starts a browser. `folder` is for its profile and its log.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn start(folder: &Path) -> Browser {
        let (leash, browser, shell) = (programs::worker(), tools::browser(), Path::new("/bin/sh"));
        let profile = format!("--user-data-dir={}", folder.join("profile.log").display());
        // The browser reads commands from descriptor 3 and writes to 4. It can resolve no host name but 127.0.0.1.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null";
        let mut words: Vec<&OsStr> = ["-c", script, "sh"].map(OsStr::new).to_vec();
        words.push(browser.as_os_str());
        let flags = [
            "--headless",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        ];
        words.extend(flags.map(OsStr::new));
        words.push(profile.as_ref());
        let arguments = Process::tied(shell, words);
        let log = folder.join("browser.log");
        let mut process = Process::start(Start { leash: &leash, arguments, mode: "tied", log, uid: None });
        let (to, out) = process.pipes();
        let (tell, from) = channel();
        std::thread::spawn(move || {
            // Each message ends with a zero byte.
            for message in BufReader::new(out).split(0) {
                let Ok(message) = message else { break };
                let message = serde_json::from_slice(&message).expect("a browser speaks JSON");
                if tell.send(message).is_err() {
                    break;
                }
            }
        });
        let (session, complaints, requests) = (String::new(), Vec::new(), Vec::new());
        let mut browser = Browser { to, from, next: 0, session, complaints, requests, _process: process };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session =
            browser.call("Target.attachToTarget", attach)["sessionId"].as_str().expect("a session").into();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol.
    ///
    /// # Panics
    /// If it fails.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let answer = self.from.recv_timeout(WAIT_LIMIT).unwrap_or_else(|e| panic!("{method}: no answer: {e}"));
            if answer["id"] == self.next {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            Some("Runtime.consoleAPICalled") => self.complaints.push(format!("console: {}", parameters["args"])),
            Some("Runtime.exceptionThrown") => self.complaints.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(parameters["entry"].to_string()),
            Some("Page.javascriptDialogOpening") => self.complaints.push(format!("dialog: {parameters}")),
            _ => {}
        }
    }

    /// Opens a page.
    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Returns the value of an expression on the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        self.try_evaluate(expression).unwrap_or_else(|thrown| panic!("{expression}: {thrown}"))
    }

    /// Returns the value of an expression on the page, or the exception that it threw.
    fn try_evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", asked);
        match &result["exceptionDetails"] {
            Value::Null => Ok(result["result"]["value"].clone()),
            thrown => Err(thrown.clone()),
        }
    }

    /// Waits until an expression is true on the page.
    ///
    /// # Panics
    /// If it never is.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        // An expression may throw while the page is still loading.
        let seen = poll(|| if self.try_evaluate(expression) == Ok(Value::Bool(true)) { Ok(()) } else { Err(()) });
        if seen.is_err() {
            let text = self.evaluate("document.body.innerText");
            panic!("never: {expression}\n{text}\n{:?}", self.complaints);
        }
    }

    /// Returns the page's console messages and errors.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Returns the URLs of all requests since the start.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Sets the size of the window, whether it is a phone's, and whether the page is shown dark.
    pub fn look(&mut self, width: u32, height: u32, phone: bool, dark: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// Returns a picture of the whole page, as a PNG in base64.
    pub fn screenshot(&mut self) -> String {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        self.call("Page.captureScreenshot", whole)["data"].as_str().expect("a picture").to_owned()
    }
}
