// The page of a node. It holds what /page/live tells it: rooms (with their page
// runs), peers, status. A change repaints the cells and rows it touches alone.
"use strict";

const $ = id => document.getElementById(id);
const STATES = ["free", "owned", "held", "quarantined", "fenced"];
const ROW = 24; // height of a row of the room list, as in page.css

const model = {
  status: {}, peers: [], rooms: new Map(), // by room_seq
  pages: 0, owner: new Float64Array(0), cell: new Uint8Array(0), counts: [0, 0, 0, 0, 0],
};

function pageState(room) {
  if (room.state === "quarantined") return 3;
  if (room.fenced) return 4;
  return room.state === "held" ? 2 : 1;
}

// ---- what the node says

// take keeps what the node says; screen shows it at the next frame, however many
// messages came before it.
function take(delta) {
  if (delta.status) {
    model.status = delta.status;
    screen.head = true;
    const pages = Number(delta.status.pages || 0);
    if (pages !== model.pages) resize(pages);
  }
  if (delta.peers) { model.peers = delta.peers.peers || []; screen.peers = true; }
  for (const seq of delta.gone || []) {
    const old = model.rooms.get(seq);
    model.rooms.delete(seq);
    if (old) paintRuns(old, 0, 0, screen.dirty);
  }
  for (const room of delta.rooms || []) {
    const old = model.rooms.get(room.seq);
    if (old) paintRuns(old, 0, 0, screen.dirty);
    room.text = (room.room + " " + room.state + " " + (room.cause || "") + " " + (room.reason || "") + " " + (room.request || "") + " " + (room.missing || []).join(" ")).toLowerCase();
    model.rooms.set(room.seq, room);
    paintRuns(room, room.seq, pageState(room), screen.dirty);
  }
  if (delta.rooms || delta.gone) screen.rooms = true;
  if (open && (delta.gone || []).includes(open.seq)) showRoom(open.room, open.seq);
  screen.soon();
}

const screen = {
  due: false, head: false, peers: false, rooms: false, dirty: [],
  soon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => this.show());
  },
  show() {
    this.due = false;
    if (this.head) header();
    if (this.peers) peers();
    if (this.rooms) { map.draw(this.dirty); list.refresh(); legend(); }
    this.head = this.peers = this.rooms = false;
    this.dirty = [];
    document.body.dataset.seq = model.status.last_seq || "";
  },
};

function resize(pages) {
  model.pages = pages;
  model.owner = new Float64Array(pages);
  model.cell = new Uint8Array(pages);
  model.counts = [pages, 0, 0, 0, 0];
  for (const room of model.rooms.values()) paintRuns(room, room.seq, pageState(room), []);
  map.layout();
  legend();
}

// paintRuns gives a room's pages an owner and a state (0: they are free, unless
// another room has them by now).
function paintRuns(room, owner, state, dirty) {
  for (const [first, last] of room.pages) {
    for (let p = first; p <= last && p < model.pages; p++) {
      if (!owner && model.owner[p] !== room.seq) continue;
      model.counts[model.cell[p]]--;
      model.owner[p] = owner;
      model.cell[p] = state;
      model.counts[state]++;
      dirty.push(p);
    }
  }
}

// ---- head, legend, peers

function header() {
  const s = model.status;
  $("node").textContent = s.node + " (" + s.role + ")";
  document.title = s.node + " · pdnode";
  const bad = !s.ready;
  $("ready").textContent = s.ready ? "ready" : "not ready: " + s.not_ready;
  $("ready").classList.toggle("bad", bad);
  const mirror = s.mirror ? (s.mirror_error || s.mirror_lag + " events behind") : "none";
  const facts = { life: s.incarnation, engine: s.engine ? "watching" : "none", log: s.durable_seq + " durable of " + s.last_seq, mirror, wire: s.dialect + " over " + s.provider, policy: s.release_policy };
  $("facts").replaceChildren(...Object.entries(facts).map(([k, v]) => el("div", el("dt", k), el("dd", String(v)))));
}

function legend() {
  const counts = model.status.pages_quarantined === model.status.pages && model.pages && !model.rooms.size
    ? [0, 0, 0, model.pages, 0] : model.counts;
  $("legend").replaceChildren(...STATES.map((s, i) => {
    const dot = el("i");
    dot.style.background = "var(--" + s + ")";
    const li = el("li", dot, counts[i] + " " + s);
    li.dataset.state = s;
    return li;
  }));
  $("roomcount").textContent = model.rooms.size;
}

function peers() {
  $("peerrows").replaceChildren(...model.peers.map(p => {
    const fence = el("button", "Fence…");
    fence.onclick = () => ask({ action: "fence", peer: p.node }, "Fence " + p.node, "Takes every key back that " + p.node + " holds on pages of rooms that wait for it.", p.node);
    return el("tr", ...[p.node, p.state, p.pdlog ? p.incarnation : "not pdlog", (p.fence || "none") + (p.weak ? ", weak" : ""), p.ack_form || "–",
      p.ranks.length, ""].map(v => el("td", String(v))), el("td", model.status.role === "decode" ? fence : ""));
  }));
}

// parse keeps what does not fit a float: room numbers and generations are text.
function parse(json) { return JSON.parse(json.replace(/"(room|generation|decode_room_seq)":(\d+)/g, '"$1":"$2"')); }

function el(tag, ...children) {
  const e = document.createElement(tag);
  e.append(...children);
  return e;
}

// ---- page map: a picture with one pixel a page, which the canvas shows enlarged

const map = {
  canvas: $("map"), small: document.createElement("canvas"), size: 8, cols: 1, cursor: -1, colors: [],
  layout() {
    const box = $("mapbox"), w = Math.max(box.clientWidth, 50), h = Math.max(box.clientHeight, 50);
    let size = Math.min(24, Math.floor(Math.sqrt(w * h / Math.max(model.pages, 1))));
    while (size > 1 && Math.ceil(model.pages / Math.floor(w / size)) * size > h) size--;
    this.size = Math.max(size, 1);
    this.cols = Math.max(1, Math.floor(w / this.size));
    this.rows = Math.max(1, Math.ceil(model.pages / this.cols));
    this.gap = this.size > 3 ? 1 : 0;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.cols * this.size * ratio);
    this.canvas.height = Math.round(this.rows * this.size * ratio);
    this.canvas.style.width = this.cols * this.size + "px";
    this.canvas.style.height = this.rows * this.size + "px";
    this.ctx = this.canvas.getContext("2d", { alpha: false });
    this.ctx.scale(ratio, ratio);
    this.ctx.imageSmoothingEnabled = false;
    this.small.width = this.cols;
    this.small.height = this.rows;
    this.pixels = new ImageData(this.cols, this.rows);
    this.words = new Uint32Array(this.pixels.data.buffer);
    const css = getComputedStyle(document.documentElement);
    this.colors = STATES.map(s => css.getPropertyValue("--" + s).trim());
    this.back = css.getPropertyValue("--panel").trim();
    [this.backWord, ...this.colorWords] = [this.back, ...this.colors].map(c => this.word(c));
    this.ink = css.getPropertyValue("--ink").trim();
    this.all();
  },
  // word is a colour as a pixel holds it, whatever the byte order of the machine.
  word(color) {
    const c = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    c.fillStyle = color;
    c.fillRect(0, 0, 1, 1);
    return new Uint32Array(c.getImageData(0, 0, 1, 1).data.buffer)[0];
  },
  all() {
    this.words.fill(this.backWord);
    for (let p = 0; p < model.pages; p++) this.words[p] = this.colorWords[model.cell[p]];
    this.small.getContext("2d").putImageData(this.pixels, 0, 0);
    const w = this.cols * this.size, h = this.rows * this.size;
    this.ctx.drawImage(this.small, 0, 0, w, h);
    if (this.gap) {
      this.ctx.fillStyle = this.back;
      for (let x = this.size - 1; x < w; x += this.size) this.ctx.fillRect(x, 0, 1, h);
      for (let y = this.size - 1; y < h; y += this.size) this.ctx.fillRect(0, y, w, 1);
    }
    this.mark();
  },
  one(p) {
    const x = p % this.cols * this.size, y = Math.floor(p / this.cols) * this.size;
    this.ctx.fillStyle = this.back;
    this.ctx.fillRect(x, y, this.size, this.size);
    this.ctx.fillStyle = this.colors[model.cell[p]];
    this.ctx.fillRect(x, y, this.size - this.gap, this.size - this.gap);
  },
  draw(dirty) {
    if (!this.ctx) return;
    if (dirty.length > 1000) this.all(); // one picture is cheaper than so many cells
    else { dirty.forEach(p => this.one(p)); this.mark(); }
    if (this.cursor >= 0) this.tell();
  },
  mark() {
    if (this.cursor < 0 || this.cursor >= model.pages) return;
    const s = Math.max(this.size, 4);
    this.ctx.strokeStyle = this.ink;
    this.ctx.strokeRect(this.cursor % this.cols * this.size + .5, Math.floor(this.cursor / this.cols) * this.size + .5, s - 1, s - 1);
  },
  at(p) {
    if (!model.pages) return;
    const old = this.cursor;
    this.cursor = Math.min(Math.max(p, 0), model.pages - 1);
    if (old >= 0 && this.size > 4) this.one(old); else if (old >= 0) this.around(old);
    this.mark();
    this.tell();
  },
  around(p) { // a mark on small cells covers its neighbours
    for (const q of [p, p + 1, p + 2, p + 3].flatMap(q => [0, 1, 2, 3].map(r => q + r * this.cols))) if (q < model.pages) this.one(q);
  },
  tell() {
    const p = this.cursor, room = model.rooms.get(model.owner[p]);
    $("cell").textContent = "page " + p + ": " + STATES[model.cell[p]] + (room ? ", room " + room.room + " (" + room.seq + "), " + why(room) : "");
  },
  hit(e) {
    const r = this.canvas.getBoundingClientRect();
    return Math.floor((e.clientY - r.top) / this.size) * this.cols + Math.floor((e.clientX - r.left) / this.size);
  },
  open() {
    const room = model.rooms.get(model.owner[this.cursor]);
    if (room) showRoom(room.room, room.seq);
  },
};
map.canvas.addEventListener("mousemove", e => map.at(map.hit(e)));
map.canvas.addEventListener("click", e => { map.at(map.hit(e)); map.open(); });
map.canvas.addEventListener("keydown", e => {
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.cols, ArrowDown: map.cols, Home: -Infinity, End: Infinity }[e.key];
  if (e.key === "Enter") map.open();
  else if (move !== undefined) map.at(Math.max(map.cursor, 0) + move);
  else return;
  e.preventDefault();
});

function why(room) {
  const parts = [room.state];
  if (room.cause) parts.push(room.cause + (room.reason ? ": " + room.reason : ""));
  if (room.missing && (room.state === "held" || room.state === "quarantined")) parts.push("waits for " + room.missing.join(" "));
  if (room.open) parts.push(room.open + " writes open");
  return parts.join(", ");
}

// ---- rooms: only the rows in sight are in the document

const list = {
  box: $("list"), shown: [], cursor: 0, rows: [], due: false,
  refresh() {
    const words = $("roomfilter").value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = [];
    for (const room of model.rooms.values()) {
      if (words.length && !words.every(w => room.text.includes(w))) continue;
      this.shown.push(room);
    }
    this.shown.sort((a, b) => b.seq - a.seq);
    this.cursor = Math.min(this.cursor, Math.max(this.shown.length - 1, 0));
    $("spacer").style.height = this.shown.length * ROW + "px";
    this.box.dataset.shown = this.shown.length;
    this.render();
  },
  // render fills the rows in sight. They stay in the document and get other text:
  // a scroll makes no elements.
  render() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4), last = Math.min(this.shown.length, first + Math.ceil(this.box.clientHeight / ROW) + 8);
    while (this.rows.length < last - first) this.rows.push(this.row());
    this.rows.forEach((row, k) => {
      const i = first + k, room = this.shown[i];
      row.hidden = i >= last;
      if (row.hidden) return;
      const age = room.opened ? Math.max(0, Math.round((Date.now() - room.opened) / 1000)) + " s" : "";
      row.index = i;
      row.className = "row" + (i === this.cursor ? " on" : "");
      row.style.top = i * ROW + "px";
      row.children[1].className = "s-" + room.state;
      [room.room, room.state, String(room.count), age, why(room).replace(/^[^,]*,? ?/, "")].forEach((v, j) => {
        if (row.children[j].textContent !== v) row.children[j].textContent = v;
      });
    });
  },
  row() {
    const row = el("div", el("span"), el("span"), el("span"), el("span"), el("span"));
    row.setAttribute("role", "option");
    row.onclick = () => { const room = this.shown[row.index]; this.cursor = row.index; this.render(); showRoom(room.room, room.seq); };
    this.box.append(row);
    return row;
  },
  move(by) {
    this.cursor = Math.min(Math.max(this.cursor + by, 0), this.shown.length - 1);
    const top = this.cursor * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    this.render();
  },
};
list.box.addEventListener("scroll", () => {
  if (list.due) return;
  list.due = true;
  requestAnimationFrame(() => { list.due = false; list.render(); });
});
list.box.addEventListener("keydown", e => {
  const page = Math.floor(list.box.clientHeight / ROW);
  const move = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity }[e.key];
  if (e.key === "Enter" && list.shown[list.cursor]) showRoom(list.shown[list.cursor].room, list.shown[list.cursor].seq);
  else if (move !== undefined) list.move(move);
  else return;
  e.preventDefault();
});
$("roomfilter").addEventListener("input", () => { list.box.scrollTop = 0; list.cursor = 0; list.refresh(); });

// ---- one room

let open = null;

async function showRoom(room, seq) {
  open = { room, seq };
  const box = $("room"), known = model.rooms.get(seq);
  if (box.hidden) { // what is known at once, the rest when it comes
    box.replaceChildren(el("h2", "Room " + room), el("p", known ? why(known) : "…"));
    box.hidden = false;
  }
  const res = await fetch("/page/room?room=" + room + "&seq=" + seq), body = parse(await res.text());
  if (!open || open.seq !== seq) return;
  if (!res.ok) { box.replaceChildren(el("p", body.error)); return; }
  const v = body.view, close = el("button", "Close");
  close.onclick = hideRoom;
  const facts = { room: v.room, incarnation: v.room_seq, state: v.state + (v.fenced ? ", fenced" : ""), outcome: v.outcome, cause: v.cause, why: v.reason, generation: v.generation !== "0" ? v.generation : "",
    "waits for": v.missing.join(" "), "released on": v.basis, pages: v.pages.length ? v.pages.length + ": " + runText(v.pages) : "", "open writes": v.outstanding !== "0" ? v.outstanding : "", "waiting chunks": v.waiting_chunks !== "0" ? v.waiting_chunks : "", request: v.request_id, trace: v.trace_id };
  const dl = el("dl", ...Object.entries(facts).filter(([, x]) => x).flatMap(([k, x]) => [el("dt", k), el("dd", x)]));
  const pairs = el("table", el("tbody", ...v.pairs.map(p => el("tr", ...[p.rank + (p.to ? " → " + p.to : ""), p.state + (p.dummy ? " (dummy)" : ""), p.evidence || "no evidence"].map(x => el("td", x))))));
  const bar = el("div", el("h2", "Room " + v.room), el("span"), ...actions(v), close);
  bar.className = "bar";
  bar.children[1].className = "grow";
  box.replaceChildren(bar, dl, pairs, el("h2", "Life"), lifeline(body.events));
  close.focus({ preventScroll: true });
}

function runText(pages) {
  const out = [];
  for (let i = 0, j; i < pages.length; i = j) {
    for (j = i + 1; j < pages.length && pages[j] === pages[j - 1] + 1; j++);
    out.push(j - i > 1 ? pages[i] + "-" + pages[j - 1] : String(pages[i]));
  }
  return out.length > 12 ? out.slice(0, 12).join(",") + ",…" : out.join(",");
}

function hideRoom() { open = null; $("room").hidden = true; }

function actions(v) {
  const button = (text, action, what) => {
    const b = el("button", text);
    b.className = "danger";
    b.dataset.action = action;
    b.onclick = () => ask({ action, room: v.room }, text.replace("…", "") + " room " + v.room, what, v.room);
    return b;
  };
  const out = [];
  if (["bootstrapping", "waiting", "transferring"].includes(v.state)) out.push(button("Abort…", "abort", "The request fails. Its pages are held until every writer has stopped."));
  if (model.status.role === "decode" && ["held", "quarantined"].includes(v.state)) {
    out.push(button("Fence…", "fence", "Takes back the keys of every writer that has not acknowledged."));
    out.push(button("Force release…", "release", "UNSAFE: frees the pages although nothing shows that their writers have stopped. A late write may land in another user's answer. It counts as a violation for ever."));
  }
  return out;
}

// lifeline draws a room's events: time, a lane for the node and for each rank.
function lifeline(events) {
  const box = el("div");
  box.className = "life";
  if (!events.length) { box.append("its events are not in the log any more"); return box; }
  const ranks = [...new Set(events.map(e => e.rank || ""))].sort(), NS = "http://www.w3.org/2000/svg";
  const lane = new Map(ranks.map((r, i) => [r, 80 + i * 46])), text = 80 + ranks.length * 46, h = 18;
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("width", "1200");
  svg.setAttribute("height", String((events.length + 1) * h + 8));
  const add = (tag, attrs, content) => {
    const e = document.createElementNS(NS, tag);
    for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
    if (content) e.textContent = content;
    svg.append(e);
  };
  for (const [r, x] of lane) {
    add("text", { x: x - 14, y: 12, class: "dim" }, r || events[0].node);
    add("line", { x1: x, x2: x, y1: 16, y2: (events.length + 1) * h });
  }
  const start = Date.parse(events[0].time);
  events.forEach((e, i) => {
    const y = (i + 1) * h + 10, bad = /Fail|Abort|Quarantined|Late|Violated|TimedOut|Withheld/.test(e.type);
    add("text", { x: 64, y: y + 4, "text-anchor": "end", class: "dim" }, "+" + (Date.parse(e.time) - start) + "ms");
    add("circle", { cx: lane.get(e.rank || ""), cy: y, r: 4, class: bad ? "bad" : "" });
    add("text", { x: text, y: y + 4, class: bad ? "bad" : "" }, e.type + "  " + brief(e));
  });
  box.append(svg);
  return box;
}

const ENVELOPE = new Set(["seq", "hlc", "node", "boot", "incarnation", "room", "room_seq", "rank", "cause_node", "cause_seq", "prev_hash", "time", "time_offset_ms", "type"]);

function brief(e) {
  return Object.entries(e).filter(([k, v]) => !ENVELOPE.has(k) && v !== "" && v !== 0 && v !== false && !(Array.isArray(v) && !v.length) && typeof v !== "object" || k === "pages" && v.length)
    .map(([k, v]) => k + "=" + (k === "pages" ? runText(v) : v)).join(" ").slice(0, 160);
}

// ---- events

const stream = {
  source: null, held: [], paused: false,
  start() {
    if (this.source) this.source.close();
    $("stream").replaceChildren();
    this.source = new EventSource("/page/events?filter=" + encodeURIComponent($("eventfilter").value));
    this.source.onmessage = m => { this.held.push(m.data); if (!this.due) { this.due = true; requestAnimationFrame(() => this.flush()); } };
  },
  flush() {
    this.due = false;
    if (this.paused) { this.held = this.held.slice(-500); return; }
    const box = $("stream"), end = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    box.append(...this.held.slice(-500).map(line => {
      const e = parse(line), row = el("div", ...[String(e.seq), e.time.slice(11, 23), e.type, e.room && e.room !== "0" ? "room " + e.room : "", e.rank || "", brief(e)].map(v => el("span", v)));
      row.children[0].className = "seq";
      row.children[2].className = "type";
      return row;
    }));
    this.held = [];
    while (box.childElementCount > 500) box.firstElementChild.remove();
    if (end) box.scrollTop = box.scrollHeight;
  },
};
let typing = 0;
$("eventfilter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => stream.start(), 250); });
$("pause").onclick = () => {
  stream.paused = !stream.paused;
  $("pause").textContent = stream.paused ? "Go on" : "Pause";
  if (!stream.paused) stream.flush();
};

// ---- actions

let asked = null;

function ask(request, title, consequence, want) {
  asked = { request, want };
  $("what").textContent = title;
  $("consequence").textContent = consequence;
  $("want").textContent = want;
  $("typed").value = $("answer").textContent = "";
  $("token").value = sessionStorage.getItem("token") || "";
  $("go").disabled = true;
  $("confirm").showModal();
  $("typed").focus();
}

$("typed").addEventListener("input", () => { $("go").disabled = $("typed").value !== asked.want; });
$("typed").addEventListener("keydown", e => { if (e.key === "Enter") { e.preventDefault(); if (!$("go").disabled) $("go").click(); } });
$("cancel").onclick = () => $("confirm").close();
$("go").onclick = async () => {
  $("go").disabled = true;
  sessionStorage.setItem("token", $("token").value);
  const res = await fetch("/page/action", {
    method: "POST", headers: { "Content-Type": "application/json", Authorization: "Bearer " + $("token").value },
    body: JSON.stringify({ room: "0", peer: "", reason: $("reason").value, confirm: $("typed").value, ...asked.request }),
  });
  const body = await res.json();
  if (!res.ok) { $("answer").textContent = body.error; $("go").disabled = false; return; }
  $("confirm").close();
  $("link").textContent = body.done;
  if (open) showRoom(open.room, open.seq);
};
$("drain").onclick = () => ask({ action: "drain" }, "Drain " + model.status.node, "Takes no new rooms. Open ones may still end, the rest is aborted; then the node stops.", model.status.node);

// ---- theme, keys, life

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  map.layout();
}
$("theme").onclick = theme;
$("help").onclick = () => $("keys").showModal();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.layout());
new ResizeObserver(() => { map.layout(); list.render(); }).observe($("mapbox"));

document.addEventListener("keydown", e => {
  if (e.key === "Escape" && !$("confirm").open && !$("keys").open) { hideRoom(); return; }
  if (/^(INPUT|TEXTAREA)$/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey || $("confirm").open) return;
  const act = { m: () => map.canvas.focus(), r: () => list.box.focus(), "/": () => $("roomfilter").focus(), e: () => $("eventfilter").focus(),
    p: () => $("pause").click(), t: theme, "?": () => $("keys").showModal() }[e.key];
  if (act) { e.preventDefault(); act(); }
});

function connect() {
  const live = new EventSource("/page/live");
  live.onopen = () => {
    model.rooms.clear(); // it begins with everything
    resize(model.pages);
    screen.rooms = true;
    screen.soon();
    $("link").textContent = "live";
    $("link").classList.remove("bad");
  };
  live.onmessage = m => take(JSON.parse(m.data));
  live.onerror = () => { $("link").textContent = "no answer"; $("link").classList.add("bad"); };
}
connect();
stream.start();
