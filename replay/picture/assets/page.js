"use strict";
(() => {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  const chart = document.getElementById("chart"), detail = document.getElementById("detail");
  const ROW = 16, PAD = 8, AXIS = 24, LEFT = Math.max(90, 14 + 7 * Math.max(...scene.lanes.map(l => l.name.length), 0));
  const full = [-scene.length * 0.01, scene.length * 1.02];
  let [from, to] = full, chosen = null, frame = 0;

  const tops = [];
  let height = AXIS;
  for (const l of scene.lanes) { tops.push(height); height += l.rows * ROW + 2 * PAD; }

  // Incidents are what n and p step through.
  const loud = new Set(["late", "latewrite", "unsafe", "check"]);
  const items = [...scene.bars.map(b => ({ ...b, at: b.from })), ...scene.marks.map(m => ({ ...m, mark: true, from: m.at, to: m.at }))];
  const incidents = items.filter(i => loud.has(i.kind)).sort((a, b) => a.at - b.at);

  const NS = "http://www.w3.org/2000/svg";
  const el = (name, attrs, text) => {
    const e = document.createElementNS(NS, name);
    for (const k in attrs) e.setAttribute(k, attrs[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const start = Date.parse(scene.start.replace(/(\.\d{3})\d*Z/, "$1Z"));
  const clock = ms => new Date(start + ms).toISOString().slice(11, 23);
  const width = () => Math.max(chart.clientWidth, 320);
  const x = ms => LEFT + (ms - from) / (to - from) * (width() - LEFT - 12);

  function step(span, room) {
    const base = 10 ** Math.floor(Math.log10(Math.max(1, span / room)));
    return [1, 2, 5, 10].map(f => f * base).find(v => span / v <= room) || 10 * base;
  }

  function axis(svg) {
    const every = Math.max(1, step(to - from, Math.floor((width() - LEFT) / 110)));
    // Ticks stand at round times of the clock, not of the page.
    for (let t = Math.ceil((start + from) / every) * every - start; t <= to; t += every) {
      if (x(t) < LEFT) continue;
      svg.append(el("line", { class: "grid", x1: x(t), x2: x(t), y1: AXIS - 6, y2: height }));
      svg.append(el("text", { class: "soft", x: x(t) + 3, y: 14 }, clock(t).slice(every < 1000 ? 6 : 0, every < 1000 ? 12 : 8)));
    }
  }

  const MARKS = { release: "M0,-6 L5,0 L0,6 L-5,0 Z", unsafe: "M0,-7 L6,6 L-6,6 Z", latewrite: "M0,7 L6,-6 L-6,-6 Z", refused: "M-5,-5 h10 v10 h-10 Z", check: "M-6,-2 h4 v-4 h4 v4 h4 v4 h-4 v4 h-4 v-4 h-4 Z" };

  function draw() {
    frame = 0;
    const w = width(), svg = el("svg", { width: w, height, viewBox: `0 0 ${w} ${height}` });
    scene.lanes.forEach((l, i) => {
      if (i % 2 === 0) svg.append(el("rect", { class: "stripe", x: 0, y: tops[i], width: w, height: l.rows * ROW + 2 * PAD }));
    });
    axis(svg);
    const seen = new Map(); // bars thinner than a pixel share one
    for (const it of items) {
      if (it.to < from || it.from > to) continue;
      const x0 = Math.max(x(it.from), LEFT), x1 = Math.min(Math.max(x(it.to), x0 + 2), w);
      if (it.mark) {
        if (x(it.at) < LEFT) continue;
        const y = tops[it.lane] + PAD / 2 + 2;
        svg.append(item(it, el("path", { class: "item " + it.kind, d: MARKS[it.kind] || MARKS.refused, transform: `translate(${x(it.at)},${y})` })));
        continue;
      }
      const y = tops[it.lane] + PAD + it.row * ROW;
      if (x1 - x0 <= 2 && !loud.has(it.kind) && it !== chosen) {
        const k = `${it.lane}/${it.row}/${Math.round(x0)}`;
        if (seen.has(k)) continue;
        seen.set(k, true);
      }
      const attrs = { class: "item " + it.kind, x: x0, y: y + 1, width: x1 - x0, height: ROW - 3, rx: 2 };
      if (it.kind === "busy") attrs.opacity = 0.15 + 0.85 * it.weigh;
      svg.append(item(it, el("rect", attrs)));
      if (it.label && x1 - x0 > it.label.length * 6.8 + 6) svg.append(el("text", { x: x0 + 4, y: y + ROW - 5, "pointer-events": "none" }, it.label));
    }
    svg.append(el("rect", { x: 0, y: 0, width: LEFT - 4, height, fill: "var(--back)" }));
    scene.lanes.forEach((l, i) => {
      svg.append(el("line", { class: "grid", x1: 0, x2: w, y1: tops[i], y2: tops[i] }));
      svg.append(el("text", { x: 8, y: tops[i] + PAD + 11, "font-weight": l.kind === "decode" ? 700 : 400 }, l.name));
    });
    chart.replaceChildren(svg);
  }

  function item(it, e) {
    if (it === chosen) e.classList.add("chosen");
    e.append(el("title", {}, it.text));
    e.addEventListener("click", () => choose(it));
    return e;
  }

  function choose(it) {
    chosen = it;
    const p = document.createElement("p");
    p.textContent = clock(it.from) + (it.to > it.from ? "–" + clock(it.to) : "") + "  " + it.text;
    for (const id of it.refs || []) {
      const a = document.createElement("a"), i = id.lastIndexOf("#");
      a.className = "ref";
      a.href = "#e-" + id.slice(0, i) + "-" + id.slice(i + 1);
      a.textContent = id;
      p.append(" ", a);
    }
    detail.replaceChildren(p);
    document.querySelectorAll("tr.chosen").forEach(r => r.classList.remove("chosen"));
    for (const id of it.refs || []) {
      const i = id.lastIndexOf("#"), r = document.getElementById("e-" + id.slice(0, i) + "-" + id.slice(i + 1));
      if (r) r.classList.add("chosen");
    }
    show();
  }

  const show = () => { if (!frame) frame = requestAnimationFrame(draw); };
  function view(a, b) {
    const least = 2, most = (full[1] - full[0]) * 1.2;
    const span = Math.min(Math.max(b - a, least), most), mid = Math.min(Math.max((a + b) / 2, full[0]), full[1]);
    from = mid - span / 2;
    to = mid + span / 2;
    show();
  }
  const zoom = (f, at = (from + to) / 2) => view(at - (at - from) * f, at + (to - at) * f);
  const pan = part => view(from + (to - from) * part, to + (to - from) * part);
  function incident(by) {
    if (incidents.length === 0) return;
    const i = incidents.indexOf(chosen);
    const it = incidents[i < 0 ? (by > 0 ? 0 : incidents.length - 1) : (i + by + incidents.length) % incidents.length];
    if (it.from < from || it.to > to) view(it.from - (to - from) / 2, it.to + (to - from) / 2);
    choose(it);
    const y = tops[it.lane] + (it.row || 0) * ROW;
    if (y < chart.scrollTop || y > chart.scrollTop + chart.clientHeight - 40) chart.scrollTop = y - chart.clientHeight / 2;
  }

  const keys = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), ArrowUp: () => { chart.scrollTop -= 60; }, ArrowDown: () => { chart.scrollTop += 60; },
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), Home: () => view(...full), n: () => incident(1), p: () => incident(-1),
  };
  chart.addEventListener("keydown", e => {
    const f = keys[e.key];
    if (!f || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    f();
  });
  chart.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.shiftKey) return;
    e.preventDefault();
    const at = from + (e.offsetX - LEFT) / (width() - LEFT) * (to - from);
    if (e.ctrlKey) zoom(e.deltaY > 0 ? 1.25 : 0.8, at); else pan((e.deltaY || e.deltaX) > 0 ? 0.1 : -0.1);
  }, { passive: false });
  let grab = null;
  chart.addEventListener("pointerdown", e => { grab = { x: e.clientX, from, to }; });
  addEventListener("pointerup", () => { grab = null; });
  addEventListener("pointermove", e => {
    if (!grab || Math.abs(e.clientX - grab.x) < 4) return;
    const by = (grab.x - e.clientX) / (width() - LEFT) * (grab.to - grab.from);
    view(grab.from + by, grab.to + by);
  });
  for (const [id, key] of [["in", "+"], ["out", "-"], ["home", "Home"], ["prev", "p"], ["next", "n"]]) document.getElementById(id).addEventListener("click", keys[key]);
  addEventListener("resize", show);
  draw();
})();
