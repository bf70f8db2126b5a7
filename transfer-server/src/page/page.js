// Asks the sidecar for its status every two seconds, and shows it on the page. All values are set as text, because
// other processes choose the names of workers, peers and keys.
"use strict";

const EVERY_MS = 2000;
const SPAN_MS = 15 * 60 * 1000;
// Samples further apart are shown as a gap, because the sidecar did not answer between them.
const GAP_MS = 7000;
const SERIES = ["received", "sent", "local"];

const $ = (id) => document.getElementById(id);
// Any process may choose a name. Invisible characters, and characters that change the direction of text, are escaped.
const ACTS = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const plain = (words) => String(words).replace(ACTS, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
const text = (id, words) => { const e = $(id), shown = plain(words); if (e.textContent !== shown) e.textContent = shown; };

let samples = [];
let rates = [];
let lastAnswer = 0;
let busy = null;

// ---- numbers for people

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) { n /= 1024; u += 1; }
  return `${u === 0 ? Math.round(n) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)} ${units[u]}`;
}
const rate = (n) => `${bytes(n)}/s`;
const count = (n) => n.toLocaleString("en");
const counted = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
const perSecond = (n) => (n === 0 || n >= 10 ? `${count(Math.round(n))}/s` : `${n.toFixed(1)}/s`);
function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s < 1e-3) return `${(s * 1e6).toFixed(s < 1e-5 ? 1 : 0)} µs`;
  if (s < 1) return `${(s * 1e3).toFixed(s < 1e-2 ? 1 : 0)} ms`;
  return s < 120 ? `${s.toFixed(1)} s` : `${Math.round(s / 60)} min`;
}
function since(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return s % 60 === 0 || m > 9 ? `${m} min` : `${m} min ${s % 60} s`;
  return `${s} s`;
}

// ---- rows and elements

function make(tag, className, words) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (words !== undefined) e.textContent = plain(words);
  return e;
}
function draw(tag, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}
// A name may be broken after a separator, before it is broken within a word.
function name(words) {
  const e = make("span");
  for (const part of plain(words).split(/(?<=[/._:-])/)) e.append(part, document.createElement("wbr"));
  return e;
}
// Fills a table's body. A cell is [words, class], or [element, class].
function rows(id, labels, list, none) {
  const body = document.createDocumentFragment();
  for (const cells of list) {
    const tr = make("tr");
    cells.forEach(([what, className], i) => {
      const td = make("td", className);
      td.dataset.label = labels[i];
      if (what instanceof Node) td.append(what); else td.append(className === "name" ? name(what) : make("span", "", what));
      tr.append(td);
    });
    body.append(tr);
  }
  if (list.length === 0) {
    const td = make("td", "none", none);
    td.colSpan = labels.length;
    const tr = make("tr");
    tr.append(td);
    body.append(tr);
  }
  $(id).replaceChildren(body);
}

// ---- rates from counters

function rateBetween(a, b) {
  const s = (b.at_ms - a.at_ms) / 1000;
  // A smaller counter means that the sidecar was restarted.
  if (s <= 0 || b.at_ms - a.at_ms > GAP_MS || b.transfers < a.transfers) return null;
  const of = (name) => Math.max(0, b[name] - a[name]) / s;
  const paths = b.paths.map((p, i) => {
    const before = a.paths[i] || [0, 0];
    return [Math.max(0, p[0] - before[0]) / s, Math.max(0, p[1] - before[1]) / s];
  });
  return {
    at: b.at_ms, received: of("received"), sent: of("sent"), local: of("local"), transfers: of("transfers"),
    failed: of("failed"), paths,
  };
}
function take(more) {
  for (const sample of more) {
    const last = samples[samples.length - 1];
    if (last && sample.at_ms <= last.at_ms) continue;
    if (last) rates.push(rateBetween(last, sample) || { at: sample.at_ms, gap: true, paths: [] });
    samples.push(sample);
  }
  const from = samples.length ? samples[samples.length - 1].at_ms - SPAN_MS : 0;
  samples = samples.filter((s) => s.at_ms >= from);
  rates = rates.filter((r) => r.at >= from);
}

// ---- curves

function curve(points, value, x, y) {
  let line = "", area = "", open = null;
  const close = (at) => { if (open !== null) area += `L${x(at).toFixed(1)},${y(0)}Z`; open = null; };
  let last = null;
  for (const p of points) {
    if (p.gap) { close(last); continue; }
    const at = `${x(p.at).toFixed(1)},${y(value(p)).toFixed(1)}`;
    if (open === null) { line += `M${at}`; area += `M${x(p.at).toFixed(1)},${y(0)}L${at}`; open = p.at; }
    else { line += `L${at}`; area += `L${at}`; }
    last = p.at;
  }
  close(last);
  return [line, area];
}
// Returns the next round number above a rate, in units of 1024. The highest line of the grid shows it.
function ceiling(n) {
  let unit = 1024;
  while (n > unit * 1024) unit *= 1024;
  for (const m of [1, 2, 4, 8, 10, 20, 40, 80, 100, 200, 400, 800, 1024]) if (n <= m * unit) return m * unit;
  return n;
}
// Returns the time that the chart shows. The chart of a sidecar that has just started is filled, too.
function span(now) {
  const first = rates.length ? rates[0].at : now;
  return Math.min(SPAN_MS, Math.max(60 * 1000, now - first));
}
let hover = null;
function chart() {
  const box = $("chart");
  const [w, h, left, bottom, top] = [Math.max(280, box.clientWidth), Math.max(120, box.clientHeight), 72, 20, 8];
  const now = rates.length ? rates[rates.length - 1].at : Date.now();
  const most = ceiling(Math.max(1, ...rates.map((r) => (r.gap ? 0 : Math.max(r.received, r.sent, r.local)))));
  const wide = span(now);
  const x = (at) => left + (w - left - 4) * (1 - (now - at) / wide);
  const y = (n) => top + (h - bottom - top) * (1 - n / most);
  const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, "aria-hidden": "true" });
  for (let i = 0; i <= 4; i += 1) {
    const n = most * i / 4;
    svg.append(draw("line", { class: "grid", x1: left, x2: w - 4, y1: y(n), y2: y(n) }));
    const label = draw("text", { x: left - 8, y: y(n) + 4, "text-anchor": "end" });
    label.textContent = i === 0 ? "0" : rate(n);
    svg.append(label);
  }
  const marks = w < 480 ? [1, 0] : [1, 2 / 3, 1 / 3, 0];
  for (const mark of marks) {
    const label = draw("text", { x: x(now - mark * wide), y: h - 4, "text-anchor": mark === 0 ? "end" : mark === 1 ? "start" : "middle" });
    label.textContent = mark === 0 ? "now" : `${since(mark * wide)} ago`;
    svg.append(label);
  }
  for (const name of SERIES) {
    const [line, area] = curve(rates, (r) => r[name], x, y);
    if (name !== "local") svg.append(draw("path", { class: `area ${name}`, d: area }));
    svg.append(draw("path", { class: `curve ${name}`, d: line }));
  }
  const seen = rates.filter((r) => !r.gap);
  let shown = null;
  if (hover !== null && seen.length) {
    const at = now - wide * (1 - (hover - left) / (w - left - 4));
    shown = seen.reduce((best, r) => (Math.abs(r.at - at) < Math.abs(best.at - at) ? r : best));
    svg.append(draw("line", { class: "cursor", x1: x(shown.at), x2: x(shown.at), y1: top, y2: h - bottom }));
  }
  box.replaceChildren(svg);
  if (shown) {
    const when = new Date(shown.at).toLocaleTimeString();
    text("chart-says", `${when}: received ${rate(shown.received)}, sent ${rate(shown.sent)}, handed over ${rate(shown.local)}.`);
  } else if (seen.length) {
    const peak = (name) => rate(Math.max(...seen.map((r) => r[name])));
    text("chart-says", `The last ${since(wide)}; at most ${peak("received")} received, ${peak("sent")} sent, ${peak("local")} handed over here.`);
  }
}
function spark(number) {
  const box = make("div", "spark");
  const [w, h] = [144, 26];
  const points = rates.map((r) => ({ at: r.at, gap: r.gap, v: r.gap || !r.paths[number] ? [0, 0] : r.paths[number] }));
  const now = points.length ? points[points.length - 1].at : 0;
  const most = Math.max(1, ...points.map((p) => Math.max(p.v[0], p.v[1])));
  const wide = span(now);
  const x = (at) => w * (1 - (now - at) / wide);
  const y = (n) => 1 + (h - 2) * (1 - n / most);
  const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(draw("path", { class: "curve received", d: curve(points, (p) => p.v[0], x, y)[0] }));
  svg.append(draw("path", { class: "curve sent", d: curve(points, (p) => p.v[1], x, y)[0] }));
  box.append(svg);
  return box;
}

// ---- the parts of the page

function meter(label, used, all) {
  const share = all > 0 ? used / all : 0;
  const e = make("div", share > 0.9 ? "meter tight" : "meter");
  const line = make("div", "label");
  line.append(make("span", "", label), make("span", "quiet", `${bytes(used)} of ${bytes(all)}`));
  const bar = make("div", "bar");
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", label);
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "100");
  bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
  const fill = make("div", "fill");
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  bar.append(fill);
  e.append(line, bar);
  return e;
}
function tiles(s) {
  const last = rates[rates.length - 1];
  const now = last && !last.gap ? last : null;
  text("t-received", now ? rate(now.received) : "–");
  text("t-sent", now ? rate(now.sent) : "–");
  text("t-local", now ? rate(now.local) : "–");
  text("t-transfers", now ? perSecond(now.transfers) : "–");
  text("t-waiting", `${counted(s.operations, "operation")} ${s.operations === 1 ? "waits" : "wait"}`);
  if (busy && s.at_ms > busy.at_ms && s.busy_ns >= busy.busy_ns) {
    text("t-busy", `${Math.min(100, Math.round((s.busy_ns - busy.busy_ns) / 1e4 / (s.at_ms - busy.at_ms)))} %`);
  }
  busy = s;
  text("t-poll", `busy; polling ${s.poll}`);
  const failed = s.failures.reduce((sum, f) => sum + f.count, 0);
  text("t-failed", now ? perSecond(now.failed) : "–");
  text("t-failed-all", `${count(failed)} since the start`);
  $("tile-failed").classList.toggle("alarm", Boolean(now && now.failed > 0));
}
function links(s) {
  const last = rates[rates.length - 1];
  const flight = (path) => {
    const ops = path === null ? [] : s.paths[path].operations.filter((o) => o.p99 !== null);
    return ops.reduce((most, o) => (most === null || o.p99 > most.p99 ? o : most), null);
  };
  const labels = ["Peer", "Fabric", "Received", "Sent", "Last minutes", "p50", "p99", "Unanswered", "Queued", "Credits"];
  rows("links-rows", labels, s.links.map((l) => {
    const now = last && !last.gap && l.path !== null ? last.paths[l.path] : undefined;
    const chip = make("span", l.why === "" ? "chip best" : "chip", l.rails > 1 ? `${l.fabric} × ${l.rails_live}` : l.fabric);
    if (l.why !== "") chip.title = l.why;
    const fabric = make("span");
    fabric.append(chip);
    if (l.rails_live < l.rails) fabric.append(make("span", "warn", ` ${counted(l.rails - l.rails_live, "rail")} lost`));
    const worst = flight(l.path);
    return [
      [l.peer, "name"], [fabric, ""], [now ? rate(now[0]) : "–", "n"], [now ? rate(now[1]) : "–", "n"],
      [l.path === null ? "" : spark(l.path), ""], [worst ? seconds(worst.p50) : "–", "n"], [worst ? seconds(worst.p99) : "–", "n"],
      [count(l.pulls + l.serves), "n"], [count(l.queued), l.queued > 0 && l.credits < 3 ? "n warn" : "n"], [count(l.credits), "n"],
    ];
  }), "No links: no worker of this node has had to do with another one.");
  text("links-say", s.links_all > s.links.length ? `${s.links.length} of ${count(s.links_all)}` : "");
  const notes = s.fabrics.filter((f) => f.why_not !== null).map((f) => `${f.fabric} is not used: ${f.why_not}`);
  if (s.require !== null) notes.unshift(`${s.require} is required between nodes`);
  $("fabrics").replaceChildren(...notes.map((n) => make("li", "", n)));
}
function memory(s) {
  const meters = [meter("Pinned: arenas, pools, rings", s.pinned, s.pinned_limit)];
  for (const p of s.pools) {
    const waits = p.waiting > 0 ? `, ${count(p.waiting)} ${p.waiting === 1 ? "waits" : "wait"} for room` : "";
    meters.push(meter(`Landing pool of tenant ${p.tenant}${waits}`, p.used, p.bytes));
  }
  $("memory").replaceChildren(...meters);
  text("f-tensors", count(s.tensors));
  text("f-leases", count(s.leases));
  text("f-slots", count(s.slots));
}
function failures(s) {
  $("failures").hidden = s.failures.length === 0;
  $("failures-none").hidden = s.failures.length > 0;
  const list = [...s.failures].sort((a, b) => b.count - a.count);
  rows("failures-rows", ["Code", "Operations"], list.map((f) => [[f.code, "name"], [count(f.count), "n"]]), "");
}
function workers(s) {
  const labels = ["Worker", "User id", "Arena", "Leases", "Waiting operations"];
  rows("workers-rows", labels, s.sessions.map((w) => [
    [w.worker, "name"], [w.tenant, "n"], [bytes(w.arena), "n"], [count(w.leases), "n"], [count(w.operations), "n"],
  ]), "No worker is connected.");
  text("workers-say", s.sessions_all > s.sessions.length ? `${s.sessions.length} of ${count(s.sessions_all)}` : "");
}
function tensors(s) {
  const labels = ["Key", "Version", "What", "Size", "Owner", "Readers", "Published"];
  rows("tensors-rows", labels, s.published.map((t) => [
    [t.key, "name"], [count(t.version), "n"], [t.what, "whole"], [bytes(t.bytes), "n"], [t.owner, "who"], [count(t.readers), "n"],
    [new Date(t.published_at_ms).toLocaleString(), "n"],
  ]), "Nothing is published here.");
  const all = s.tensors > s.published.length;
  text("tensors-say", all ? `${s.published.length} of ${count(s.tensors)}, the largest of those looked at` : "the largest first");
}
function inFlight(s) {
  const labels = ["Key", "Worker", "What", "Waits for", "Age"];
  rows("flight-rows", labels, s.in_flight.map((o) => [
    [o.key, "name"], [o.worker, "who"], [o.peer === null ? o.what : `${o.what}, ${o.peer}`, "whole"], [o.waits_for, "words"],
    [seconds(o.age_s), o.age_s > 10 ? "n warn" : "n"],
  ]), "Nothing waits.");
  const all = s.in_flight_all > s.in_flight.length;
  text("flight-says", all ? `${s.in_flight.length} of ${count(s.in_flight_all)}, the oldest of those looked at` : "the oldest first");
}
function exchanges(s) {
  const labels = ["Exchange", "Tasks here", "Partitions", "Rows", "Bytes", "Skew", "In memory", "On disk", "Waits"];
  const known = (n) => (n === 0 ? "–" : count(n));
  rows("exchanges-rows", labels, s.exchanges.map((x) => {
    const waits = [];
    if (x.reads > 0) waits.push(counted(x.reads, "read"));
    if (x.writers > 0) waits.push(counted(x.writers, "writer"));
    if (x.waits !== null) waits.push(x.waits);
    return [
      [x.name, "name"], [`${count(x.committed)} of ${known(x.tasks)}`, "n"], [known(x.partitions), "n"], [count(x.rows), "n"],
      [bytes(x.bytes), "n"], [x.skew === null ? "–" : x.skew.toFixed(2), "n"], [bytes(x.memory), "n"], [bytes(x.spilled), "n"],
      [waits.join("; "), "words"],
    ];
  }), "No exchange has anything here.");
  const all = s.exchanges_all > s.exchanges.length;
  text("exchanges-say", all ? `${s.exchanges.length} of ${count(s.exchanges_all)}, the largest` : "what this node has, the largest first");
}
function unfinished(s) {
  const labels = ["State", "Version", "Ranks that committed", "Missing ranks", "Age"];
  rows("unfinished-rows", labels, s.unfinished.map((v) => {
    const more = v.world_size - v.committed - v.missing.length;
    const missing = v.missing.length === 0 ? "none: its manifest is not published" : v.missing.join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
    return [
      [v.state, "name"], [count(v.version), "n"], [`${count(v.committed)} of ${count(v.world_size)}`, "n"], [missing, "words"],
      [seconds(v.age_s), v.age_s > 60 ? "n warn" : "n"],
    ];
  }), "No version waits for ranks here.");
}
function show(s) {
  document.title = `${s.node} · transfer`;
  text("node", s.node);
  const d = s.directory;
  const hosts = d.keys === null ? `directory at ${d.place}` : `hosts the directory: ${counted(d.keys, "key")}, ${counted(d.nodes, "node")}`;
  text("about", `transferd ${s.version} · up ${since(s.at_ms - s.started_ms)} · ${hosts}`);
  const state = $("state");
  const words = s.draining ? "draining" : d.attached ? "ready" : "no directory";
  text("state", words);
  state.className = words === "ready" ? "state good" : "state bad";
  $("banner").hidden = d.attached && d.coordinator_why_not === null;
  if (d.attached && d.coordinator_why_not !== null) text("banner", `No other host can lead the directory, because what says which one leads does not answer: ${d.coordinator_why_not}`);
  if (!d.attached) text("banner", `Not attached to the directory: ${d.why_not}. What is this node’s own goes on.`);
  tiles(s);
  links(s);
  inFlight(s);
  exchanges(s);
  unfinished(s);
  memory(s);
  failures(s);
  tensors(s);
  workers(s);
  chart();
}

// ---- asking

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}
let started = null;
let asking = false;
async function round() {
  if (asking) return;
  asking = true;
  try {
    const last = samples.length ? samples[samples.length - 1].at_ms : 0;
    const [s, more] = await Promise.all([ask("/api/status"), ask(`/api/history?since=${last}`)]);
    if (started !== null && started !== s.incarnation) { samples = []; rates = []; busy = null; take(await ask("/api/history?since=0")); }
    else take(more);
    started = s.incarnation;
    lastAnswer = Date.now();
    show(s);
  } catch (e) {
    const ago = lastAnswer ? `; what is shown is ${since(Date.now() - lastAnswer)} old` : "";
    text("state", "no answer");
    $("state").className = "state bad";
    $("banner").hidden = false;
    text("banner", `The sidecar does not answer (${e.message})${ago}.`);
  }
  asking = false;
}
async function forever() {
  for (;;) {
    // A hidden page asks for nothing.
    if (!document.hidden) await round();
    await new Promise((done) => { setTimeout(done, EVERY_MS); });
  }
}

$("chart").addEventListener("pointermove", (e) => { hover = e.clientX - $("chart").getBoundingClientRect().left; chart(); });
$("chart").addEventListener("pointerleave", () => { hover = null; chart(); });
window.addEventListener("resize", () => chart());
document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
forever();
