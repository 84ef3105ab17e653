// The live view of a fit: one anywidget. All data comes in custom messages; names from it become text, never html.

const STOPS = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99];  // of the smoothing slider
const ENDED = new Set(["done", "stopped", "interrupted", "error", "idle"]);
const SVG = new Set(["svg", "path", "line", "circle"]);
const ICONS = {  // what is not named is a disc
  disc: "M8 3a5 5 0 1 0 0 10a5 5 0 1 0 0-10z",
  paused: "M3.5 3h3.2v10H3.5zM9.3 3h3.2v10H9.3z",
  stopping: "M3.5 3.5h9v9h-9z",
  stopped: "M3.5 3.5h9v9h-9z",
  done: "M6.4 13 1.9 8.5l1.5-1.5 3 3 6.2-6.3 1.5 1.5z",
  interrupted: "M8 .5 15.5 8 8 15.5.5 8zM7.1 4v5.2h1.8V4zm0 6.3v1.8h1.8v-1.8z",
  error: "M3.2 4.7 4.7 3.2 8 6.5l3.3-3.3 1.5 1.5L9.5 8l3.3 3.3-1.5 1.5L8 9.5l-3.3 3.3-1.5-1.5L6.5 8z",
  resume: "M4 2.8 13 8l-9 5.2z",
  step: "M3 3.2 10.2 8 3 12.8zM11 3.2h2v9.6h-2z",
};

// ---- nodes

function make(spec, attrs, ...children) {  // "div.bar" is a div of class ptw-bar
  const [tag, name] = spec.split(".");
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  if (name) node.setAttribute("class", `ptw-${name}`);
  for (const key in attrs) node.setAttribute(key, attrs[key]);
  node.append(...children);
  return node;
}

function put(node, text, attrs) {  // touches only what differs, so that a tick costs no layout
  if (text !== null && node.textContent !== text) node.textContent = text;
  for (const key in attrs) if (node.getAttribute(key) !== String(attrs[key])) node.setAttribute(key, attrs[key]);
}

const flag = (node, name, on) => node.classList.toggle(`ptw-${name}`, on);
const icon = (name) => make("svg.icon", {viewBox: "0 0 16 16", "aria-hidden": true},
  make("path", {d: ICONS[name], "fill-rule": "evenodd"}));

function button(spec, act, ...children) {
  const node = make(`button.${spec}`, {type: "button"}, ...children);
  node.classList.add("ptw-button");
  node.addEventListener("click", act);
  return node;
}

function named(node, name, over = "") {  // names that may be long: cut in the middle, whole in the tooltip
  const short = cut(name), top = cut(over, 28), whole = wholeName({name, over});
  if (over) node.append(make("span.over", {}, top));
  node.append(short);
  if (short !== name || top !== over) put(node, null, {"data-tip": whole, "aria-label": whole, tabindex: 0});
  return node;
}

const wholeName = ({name, over}) => over ? `${over} ${name}` : name;

function slider(label, {min, max, step, stop = step}, act, done = () => {}) {
  const node = make("input.slider", {type: "range", "aria-label": label, min, max, step});
  node.addEventListener("input", () => act(node.valueAsNumber));
  node.addEventListener("change", () => done());
  node.addEventListener("keydown", (e) => {  // one stop, ten with Shift; Home and End are the browser's
    const way = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1}[e.key];
    if (!way) return;
    e.preventDefault();
    node.value = (Math.round(node.valueAsNumber / stop) + way * (e.shiftKey ? 10 : 1)) * stop;
    act(node.valueAsNumber);
  });
  const set = (value, text) => {
    if (Math.abs(node.valueAsNumber - value) >= step) node.value = value;
    node.style.setProperty("--at", (node.valueAsNumber - min) / (max - min));
    put(node, null, {"aria-valuetext": text});
  };
  return {node, set};
}

// ---- numbers, as the tables of the package write them

const minus = (text) => text.replaceAll("-", "−");
const forms = [];  // toLocaleString would make one each time
const grouped = (v, d = 0) =>
  minus((forms[d] ??= new Intl.NumberFormat("en-US", {minimumFractionDigits: d, maximumFractionDigits: d})).format(v));
const exponent = (v, d) => v ? minus(v.toExponential(d).replace("e+", "e")) : "0";

function fixed(v, d) {
  const text = grouped(v, d);
  return !v || /[1-9]/.test(text) ? text : `${v > 0 ? "< " : "> −"}${10 ** -d}`;
}

function took(s) {  // 38 ms, 1.1 s, 64 s, 4:10
  if (s < 0.0995) return `${(s * 1000).toFixed(0)} ms`;
  if (s < 99.5) return `${s.toFixed(s < 9.95 ? 1 : 0)} s`;
  const all = Math.round(s), h = Math.floor(all / 3600), two = (v) => String(Math.floor(v) % 60).padStart(2, "0");
  if (h >= 24) return `${Math.floor(h / 24)} d ${two(h % 24)}:${two(all / 60)}`;
  return h ? `${h}:${two(all / 60)}:${two(all)}` : `${Math.floor(all / 60)}:${two(all)}`;
}

function cellText(v, format) {
  if (v === null || v === undefined) return "–";
  if (typeof v === "string") return format === "text" ? v : minus(v);
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "NaN" : v > 0 ? "inf" : "−inf";
  if (format === "exp") return exponent(v, 2);
  if (format === "int" || format === "text") return grouped(v);
  return format === "time" ? took(v) : fixed(v, Number(format[5]));
}

function lossText(v) {
  const size = Math.abs(v);
  return cellText(v, v && (size < 1e-3 || size >= 1e5) ? "exp" : size < 10 ? "fixed4" : "fixed2");
}

function normText(v) {  // 3 digits
  const power = v ? Math.floor(Math.log10(Math.abs(v))) : 0;
  return power < -3 || power > 4 ? exponent(v, 2) : grouped(v, Math.max(0, 2 - power));
}

function tickText(v) {  // the shortest exact form
  const exact = Number(v.toPrecision(6));
  if (v && (Math.abs(v) < 0.009 || Math.abs(v) >= 1e5)) return exponent(exact);
  return exact >= 1000 ? grouped(exact) : minus(String(exact));
}

function cut(name, most = 14) {  // valid_macro…f1: a short last word stays whole
  if (name.length <= most) return name;
  const last = name.split(/[ _]/).pop(), tail = last.length < most / 2 ? last : name.slice(-Math.floor(most / 3));
  return `${name.slice(0, most - 1 - tail.length)}…${tail}`;
}

// ---- data

const number = (v) => v === null ? NaN : typeof v === "string" ? Number(v.replace("inf", "Infinity")) : v;

function column(part, n, buffers) {
  if ("from" in part) return Int32Array.from({length: n}, (_, i) => part.from + i);
  if (!("buffer" in part)) return new Float32Array(n).fill(number(part.value));
  const {buffer, byteOffset: at, byteLength} = buffers[part.buffer];  // copied: `at` need not be a multiple of 4
  return new (part.dtype === "i4" ? Int32Array : Float32Array)(buffer.slice(at, at + byteLength));
}

class Store {  // what all views of one model share
  constructor() {
    Object.assign(this, {views: new Set(), stop: 4, version: 0});
    this.reset();
  }

  reset() {
    this.version += 1;  // tells the charts that they know nothing any more
    Object.assign(this, {n: 0, ready: false, status: {}, meta: {x_name: "step", x0: 0}, epochs: [], marks: [],
      valid: new Map(), columns: [], rows: new Map(), best: null, best_of: null, better: "low", partial: "",
        changes: []});
    this.cols = {step: new Int32Array(1024)};
    for (const key of ["loss", "grad_norm", "lr", "smooth_loss",
      "smooth_norm"]) this.cols[key] = new Float32Array(1024);
    this.smoothen();
  }

  get lastX() { return this.meta.x0 + this.n; }

  apply(msg, buffers) {
    if (msg.type === "full") this.reset();
    else if (msg.type !== "tick" || !this.ready) return;  // what came before the first full is part of it
    this.ready = true;
    Object.assign(this.meta, msg.meta);
    Object.assign(this.status, msg.status);  // a tick may tell only what changed
    if (msg.points?.n) this.addPoints(msg.points, buffers);
    for (const name in msg.valid) {
      if (!this.valid.has(name)) this.valid.set(name, []);
      this.valid.get(name).push(...msg.valid[name].map(([x, value, epoch]) => ({x, value: number(value), epoch})));
    }
    this.epochs.push(...msg.epochs ?? []);
    this.marks.push(...msg.marks ?? []);
    const {rows = [], ...table} = msg.table ?? {};
    for (const row of rows) this.rows.set(row[0], row);
    Object.assign(this, table, msg.changes && {changes: msg.changes});
    for (const view of this.views) view.update(msg);
  }

  addPoints({n, columns}, buffers) {
    const from = this.n, cols = this.cols;
    for (const key in cols) {
      if (from + n > cols[key].length) {
        const larger = new cols[key].constructor(Math.max(2 * cols[key].length, from + n));
        larger.set(cols[key]);
        cols[key] = larger;
      }
      if (columns[key]) cols[key].set(column(columns[key], n, buffers), from);
      else if (!key.startsWith("smooth")) cols[key].fill(NaN, from, from + n);
    }
    this.n += n;
    this.average(from);
  }

  average(from) {  // running means with bias correction; what is not finite is skipped and left out
    const beta = STOPS[this.stop];
    const {loss, smooth_loss, grad_norm, smooth_norm} = this.cols;
    for (const [values, smooth, state] of [[loss, smooth_loss, this.means[0]],
        [grad_norm, smooth_norm, this.means[1]]]) {
      let [mean, weight] = state;
      for (let i = from; i < this.n; i++) {
        const v = values[i], ok = v - v === 0;  // neither NaN nor inf
        if (ok) {
          mean = beta * mean + (1 - beta) * v;
          weight = beta * weight + (1 - beta);
        }
        smooth[i] = ok ? mean / weight : NaN;
      }
      state.splice(0, 2, mean, weight);
    }
  }

  smoothen(stop = this.stop) {  // from the beginning, with another stop
    this.stop = stop;
    this.means = [[0, 0], [0, 0]];
    this.average(0);
    for (const view of this.views) view.smoothed();
  }

  place(x) {  // epoch and batch at x
    const {epochs} = this, after = epochs.findIndex(([, end]) => end >= x), at = after < 0 ? epochs.length : after;
    const [last, start] = epochs[at - 1] ?? [null, this.meta.x0];
    return [epochs[at]?.[0] ?? (last === null ? Number(this.status.now?.[0] ?? 1) : last + 1), x - start];
  }
}

// ---- parts of the view

class Head {  // the state, and what acts on training
  constructor(store, send) {
    Object.assign(this, {store, send, want: {}, sent: null, timer: 0});
    this.glyph = icon("disc");
    this.title = make("span.title");
    this.line = make("span.line");
    const range = {min: -2, max: 1, step: 0.01, stop: 0.05};  // log10 of the factor
    this.slider = slider("learning rate", range, (v) => this.setLr(v), () => this.sendLr());
    this.follow = button("follow", () => {
      this.slider.node.focus();  // the button goes, the focus stays in the view
      this.setLr(0);
    }, "follow schedule");
    this.read = make("b.read");
    this.words = {pause: make("span"), step: make("span"), stop: make("span")};
    this.icons = {pause: icon("paused"), step: icon("step"), stop: icon("stopped")};
    this.group = make("div.group", {role: "group", "aria-label": "training"},
      ...["pause", "step", "stop"].map((n) => button(n, () => this.press(n), this.icons[n], this.words[n])));
    this.nodes = [make("div.head", {}, this.glyph, this.title, this.line),
      make("div.lr", {}, this.follow, make("span", {}, "lr"), this.slider.node, this.read), this.group,
      make("div.hint", {}, "Use the stop button of the notebook to stop.")];
  }

  press(name) {
    const {state, step} = this.store.status, paused = state === "paused";
    if (this.words[name].parentNode.getAttribute("aria-disabled") === "true") return;
    this.want[name] = {
      pause: {word: paused ? "Resuming…" : "Pausing…", done: (s) => (s.state === "paused") !== paused},
      step: {word: "Stepping…", done: (s) => s.step !== step || s.state !== "paused"},
      stop: {word: "Stopping…", done: () => false},
    }[name];
    this.send({type: "command", command: name === "pause" && paused ? "resume" : name});
    this.update();
  }

  setLr(log10) {
    if (this.over) return this.update();
    const factor = Math.abs(log10) < 0.03 ? 1 : Number((10 ** log10).toPrecision(4));
    this.want.lr = {factor, done: (s) => !this.timer && Math.abs(s.factor / factor - 1) < 0.005};
    if (!this.timer) this.sendLr();
    this.update();
  }

  sendLr() {  // at most 5 times a second, and the last value always
    clearTimeout(this.timer);
    this.timer = 0;
    const value = this.want.lr?.factor;
    if (value === undefined || value === this.sent) return this.update();
    this.send({type: "command", command: "lr", value: this.sent = value});
    this.timer = setTimeout(() => this.sendLr(), 200);
  }

  update() {
    const s = this.store.status, {want} = this, over = this.over = ENDED.has(s.state) || s.state === "stopping";
    for (const name in want) if (over || want[name].done(s)) delete want[name];
    if (!want.lr) this.sent = null;
    const factor = want.lr?.factor ?? s.factor ?? 1, lr = exponent(want.lr ? s.scheduled * factor : s.lr ?? 0, 2);
    put(this.glyph.firstChild, null, {d: ICONS[s.state] ?? ICONS.disc});
    put(this.title, s.title ?? "");
    put(this.line, want.lr ? `Setting ${lr}…` : s.line ?? "");
    put(this.read, lr);
    this.slider.set(Math.log10(factor), `${lr}, ${want.lr ? "being set" : factor === 1 ? "as scheduled" : "by hand"}`);
    flag(this.follow, "away", factor === 1);
    const paused = s.state === "paused", on = s.controls === "on" && !over && !want.stop;
    this.show("pause", paused ? "Resume" : "Pause", on);
    this.show("step", "Step", on && paused && !want.pause);
    this.show("stop", "Stop", on);
    put(this.icons.pause.firstChild, null, {d: ICONS[paused ? "resume" : "paused"]});
  }

  show(name, word, on) {  // aria-disabled, not disabled: a pressed button keeps the focus inside the view
    const waits = this.want[name], node = this.words[name].parentNode;
    put(this.words[name], waits?.word ?? word);
    put(node, null, {"aria-label": waits?.word ?? word, "aria-disabled": !on || !!waits});
    flag(node, "pending", !!waits);
  }
}

class Bars {
  constructor() {
    this.bars = ["epoch", "batch"].map((name) => {
      const fill = make("div.fill"), text = make("b"), of = make("span"), label = make("span.barname", {}, name);
      const track = make("div.track", {role: "progressbar"}, fill);
      const node = make("div.bar", {}, label, track, make("span.count", {}, text, of));
      return {name, fill, text, of, label, track, node};
    });
    this.node = make("div.bars", {}, ...this.bars.map((bar) => bar.node));
  }

  update(status) {
    flag(this.node, "none", !status.epoch);
    for (const bar of this.bars) if (status[bar.name]) this.show(bar, status[bar.name]);
  }

  show({name, fill, text, of, label, track}, part) {
    const title = part.name ?? name, total = part.total && (part.of ?? grouped(part.total));
    const share = part.total ? Math.min(1, Math.max(0, part.n / part.total)) : part.n % 1;  // no end: of the epoch
    const parts = name === "epoch" && part.total > 1 && part.total <= 60 ? part.total : 0;
    put(label, title);
    put(text, part.text);
    put(of, total ? ` / ${total}` : "");
    fill.style.transform = `scaleX(${share.toFixed(4)})`;
    track.style.setProperty("--parts", parts);
    flag(track, "parts", parts);
    put(track, null, {"aria-label": title, "aria-valuenow": Math.round(100 * share),
      "aria-valuetext": `${title} ${part.text}${total ? ` of ${total}` : ""}`});
  }
}

class Facts {  // ready-made words
  constructor() {
    this.known = new Map();
    this.list = make("div.facts");
    this.wide = make("div.wide");
    this.detail = make("div.detail");
    this.node = make("div.factrow", {}, this.list, this.wide);
  }

  update({facts = [], detail = []}) {
    for (const fact of facts) this.show(fact);
    const keys = facts.map((f) => f.key).join();
    if (keys !== this.keys) {
      const nodes = (wide) => facts.filter((f) => !!f.wide === wide).map((f) => this.known.get(f.key).node);
      this.list.replaceChildren(...nodes(false));
      this.wide.replaceChildren(...nodes(true));
      this.keys = keys;
    }
    if (detail.join("\n") !== this.said) this.detail.replaceChildren(...detail.map((text) => make("div", {}, text)));
    this.said = detail.join("\n");
  }

  show({key, before, value, after}) {
    if (!this.known.has(key)) {
      const parts = [new Text(), make("b"), new Text()];
      this.known.set(key, {node: make("span.fact", {"data-key": key}, ...parts), parts, length: 0});
    }
    const fact = this.known.get(key), {node, parts} = fact;
    const texts = [before && `${before} `, String(value ?? ""), after && (/^[,;:]/.test(after) ? after : ` ${after}`)];
    texts.forEach((text, i) => put(parts[i], text ?? ""));
    const length = texts.join("").length;
    if (length <= fact.length) return;
    fact.length = length;  // it keeps the width that it once had, so that nothing beside it moves
    requestAnimationFrame(() => { node.style.minWidth = `${Math.ceil(node.getBoundingClientRect().width)}px`; });
  }
}

class Table {  // a row an epoch: the first, the best and the last 20, or all
  constructor(store) {
    Object.assign(this, {store, all: false, follow: true, head: make("tr"), body: make("tbody"), nowRow: null});
    const table = make("table.table", {"aria-label": "epochs"}, make("thead", {}, this.head), this.body);
    this.scroller = make("div.scroll", {tabindex: 0, role: "region", "aria-label": "table of epochs"}, table);
    this.more = button("small", () => { this.all = !this.all; this.fill(); });
    this.newest = button("small", () => { this.follow = true; this.scroller.focus(); this.settle(); }, "newest");
    this.node = make("div.tablebox", {}, this.scroller, make("div.foot", {}, this.more, this.newest));
    this.scroller.addEventListener("scroll", () => {
      const {scrollTop, scrollHeight, clientHeight} = this.scroller;
      this.follow = scrollTop + clientHeight >= scrollHeight - 4;
      flag(this.newest, "away", this.follow);
    });
  }

  fill() {
    const {columns, rows, best, best_of, better} = this.store, keys = [...rows.keys()];
    this.many = columns.filter((c) => c.format !== "text").length > 6;  // epoch and more than 5
    this.head.replaceChildren(...columns.map((c) => {
      const cell = named(make("th", {scope: "col", class: this.kind(c)}), c.name, c.over);
      if (c.key === best_of) cell.append(make("small", {}, `best: ${better}`));
      return cell;
    }));
    flag(this.node, "two", columns.some((c) => c.over));  // lines above the columns: the task, and what it is
    const from = keys.length - (this.all ? 2000 : 20), shown = [];
    const gap = (text) => make("tr.gap", {}, make("td", {colspan: columns.length}, text));
    let next = 0;
    keys.forEach((key, i) => {
      if (i && i < from && key !== best) return;
      if (i > next) shown.push(gap(`epochs ${keys[next]}–${keys[i - 1]}`));
      shown.push(this.row(rows.get(key), key === best ? "best" : ""));
      next = i + 1;
    });
    this.nowRow = null;
    this.body.replaceChildren(...shown);
    flag(this.more, "none", !this.all && keys.length <= 22);
    put(this.more, this.all ? "show last 20" : `show all ${grouped(keys.length)}`);
    this.now();
    this.settle();
  }

  kind({key, format}) {
    if (key === "epoch") return "ptw-epoch";
    return key === this.store.best_of ? "ptw-watched" : format === "text" ? "ptw-words" : "";
  }

  row(data, tag) {
    const cells = this.store.columns.map((c) => make("td", {class: this.kind(c)}));
    const row = make(tag ? `tr.${tag}` : "tr", {"data-epoch": data[0]}, ...cells);
    if (tag) row.firstChild.append(new Text(), make("span.tag", {}, tag));
    this.write(row, data);
    return row;
  }

  write(row, data) {
    this.store.columns.forEach(({format}, i) => {
      const text = cellText(data[i], format), cell = row.children[i];
      put(cell.children.length ? cell.firstChild : cell, text);
      flag(cell, "bad", format !== "text" && /NaN|inf/.test(text));
    });
  }

  now() {  // the running epoch: the same nodes with new text
    const {status: {now}, columns} = this.store;
    if (now && now.length === columns.length) {
      if (!this.nowRow) this.body.append(this.nowRow = this.row(now, "now"));
      put(this.nowRow, null, {"data-epoch": now[0]});
      this.write(this.nowRow, now);
    } else if (this.nowRow) {
      this.nowRow.remove();
      this.nowRow = null;
    }
  }

  settle() {
    flag(this.node, "long", this.body.children.length > 13);  // then first, best and last rows stay in sight
    flag(this.newest, "away", this.follow);
    if (this.follow && this.body.children.length > 13) this.scroller.scrollTop = 1e9;
  }
}

// ---- chart

class Bins {  // lowest and highest value per pixel column: no spike is lost, and a tick adds only its own rows
  update(key, {cols: {loss}, meta: {x0}, n}, values, {a, b, w}, log) {
    if (key !== this.key) {
      const column = (Type, fill) => new Type(w + 1).fill(fill);
      Object.assign(this, {key, left: 0, upto: Math.max(0, Math.floor(a - x0) - 2), gap: column(Int32Array, -1),
        lo: column(Float32Array, NaN), hi: column(Float32Array, NaN), loAt: column(Int32Array, 0),
          hiAt: column(Int32Array, 0)});
    }
    const {lo, hi, loAt, hiAt, gap} = this, scale = w / (b - a), end = Math.min(n, Math.ceil(b - x0) + 1);
    for (let i = this.upto; i < end; i++) {
      const c = Math.min(w, Math.max(0, Math.floor((x0 + i + 1 - a) * scale))), v = values[i];
      if (log && v <= 0) this.left += 1;
      else if (v - v === 0) {
        if (!(lo[c] <= v)) { lo[c] = v; loAt[c] = i; }
        if (!(hi[c] >= v)) { hi[c] = v; hiAt[c] = i; }
      }
      // The line breaks where the loss is not finite; a norm or lr alone may be missing, inside an accumulation.
      if (v === Infinity || loss[i] - loss[i] !== 0) gap[c] = i;
    }
    this.upto = Math.max(this.upto, end);
  }

  trace(ctx, x, y) {
    const {lo, hi, loAt, hiAt, gap} = this;
    let down = false, drawn = 0;
    ctx.beginPath();
    for (let c = 0; c < lo.length; c++) {
      const low = loAt[c], high = hiAt[c], empty = Number.isNaN(lo[c]);
      if (gap[c] >= 0 && (empty || gap[c] < Math.max(low, high))) down = false;
      if (empty) continue;
      for (const i of low === high ? [low] : low < high ? [low, high] : [high, low]) {
        const px = x(i), py = y(i === low ? lo[c] : hi[c]);
        if (!down) ctx.moveTo(px - 0.3, py);  // so that a point without neighbours is a dot
        ctx.lineTo(px, py);
        down = true;
        if (++drawn % 16) continue;
        ctx.stroke();  // in pieces: one long path that crosses itself takes three times as long
        ctx.beginPath();
        ctx.moveTo(px, py);
      }
      if (gap[c] > Math.max(low, high)) down = false;
    }
    ctx.stroke();
  }

  fill(ctx, left, y) {  // the same where every column holds several points, ten times as fast
    let last = null;
    for (let c = 0; c < this.lo.length; c++) {
      const now = Number.isNaN(this.lo[c]) ? null : [y(this.hi[c]), y(this.lo[c])];
      if (now) {
        const [top, bottom] = last && this.gap[c] < 0 ? [Math.min(now[0], last[1]), Math.max(now[1], last[0])] : now;
        ctx.fillRect(left + c, top, 1, Math.max(1, bottom - top));
      }
      last = now;
    }
  }
}

function quantiles(values, from, to, shares, positive) {  // of at most 20,000 finite ones
  const stride = Math.ceil((to - from) / 20000) || 1, some = [];
  for (let i = from; i < to; i += stride) {
    const v = values[i];
    if (v - v === 0 && !(positive && v <= 0)) some.push(v);
  }
  const sorted = Float32Array.from(some).sort();
  return some.length ? shares.map((q) => sorted[Math.min(some.length - 1, Math.floor(q * some.length))]) : null;
}

function roundStep(span, most, ones) {  // a round number, at most so many times in the span
  const power = 10 ** Math.floor(Math.log10(span / most));
  return ones.find((m) => span / (m * power) <= most + 1e-9) * power;
}

function logAxis(lo, hi, most) {  // ends that are 1, 2 or 5 times a power of ten, and where to label
  const all = [], isTen = (s) => Math.abs(Math.log10(s) - Math.round(Math.log10(s))) < 1e-9;
  for (let p = Math.floor(Math.log10(lo)) - 1; p <= Math.log10(hi)
    + 1; p++) all.push(...[1, 2, 5].map((m) => Number(`${m}e${p}`)));
  const first = all.findLastIndex((s) => s <= lo * 1.0001);
  const last = Math.max(first + 1, all.findIndex((s) => s >= hi * 0.9999));
  const range = all.slice(first, last + 1), tens = range.filter(isTen), every = Math.ceil(tens.length / most);
  const ticks = range.length <= most || tens.length < 2 ? range : tens.filter((_, i) => i % every === 0);
  return {lo: range[0], hi: range.at(-1), ticks};
}

class Chart {
  constructor(store) {
    Object.assign(this, {store, zoom: null, log: false, off: new Set(["lr"]), hover: null, bins: {}});
    Object.assign(this, {drawn: 0, timer: 0, frame: 0});
    this.canvas = make("canvas.canvas");
    this.over = make("canvas.canvas");  // crosshair and selection
    this.probe = make("span.probe");
    this.box = make("div.box");
    this.reset = button("reset", () => { this.plot.focus(); this.setZoom(null); }, "reset zoom");
    this.plot = make("div.plot", {tabindex: 0, role: "img"}, this.canvas, this.over, this.probe);
    this.caption = make("div.caption");
    this.node = make("div.chart", {}, this.plot, this.box, this.reset, this.caption);
    flag(this.reset, "none", true);
    this.listen();
  }

  ask(wait = 0) {  // 100 ms apart while data comes; what the user does shows in the next frame
    if (this.frame) return;
    clearTimeout(this.timer);
    const left = this.drawn + wait - performance.now();
    if (left > 0) this.timer = setTimeout(() => this.ask(), left);
    else this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  recolour() {
    this.ink = {};
    for (const name of ["fg", "fg2", "ctl", "grid", "line", "bg", "train", "valid", "grad", "done", "error"]) {
      this.probe.style.color = `var(--ptw-${name})`;
      this.ink[name] = getComputedStyle(this.probe).color;
    }
    this.font = getComputedStyle(this.node).fontFamily;
  }

  resize(w = this.w, h = this.h) {
    const dpr = devicePixelRatio || 1, size = {width: Math.round(w * dpr), height: Math.round(h * dpr)};
    Object.assign(this, {w, h, dpr});
    for (const canvas of [this.canvas, this.over]) Object.assign(canvas, size);
  }

  // ---- axes

  xRange() {
    const {meta: {x0}, lastX, status} = this.store;
    let end = status.x_end ?? (ENDED.has(status.state) ? lastX : null);
    if (end === null) for (end = x0 + 100; end < lastX;) end = x0 + Math.ceil((end - x0) * 1.25);
    return [x0, Math.max(end, lastX, x0 + 1)];
  }

  axes() {  // they move with x, and while there are few points: each time these have grown by a quarter
    const s = this.store, [a, b] = this.zoom ?? this.xRange(), grown = Math.floor(Math.log(s.n + 1) / Math.log(1.25));
    const key = [s.version, a, b, this.w, this.h, this.log, grown, s.epochs.length, ...this.off].join();
    if (key === this.known) return this.ax;
    this.known = key;
    // the first steps would stretch the axes
    const shown = (name) => !this.off.has(name), early = Math.min(20, s.n >> 1);
    const norm = shown("grad norm") ? quantiles(s.cols.grad_norm, early, s.n, [0.005, 0.995], true) : null;
    const left = 46, right = Math.max(left + 50, this.w - 90), bottom = this.h - 24;
    const lossBottom = norm ? bottom - 76 : bottom;
    this.ax = {a, b, left, right, w: right - left, top: 26, bottom, lossBottom, norm: norm && logAxis(...norm, 3)};
    const from = Math.floor(a - s.meta.x0) - 1, to = Math.min(s.n, Math.ceil(b - s.meta.x0));
    const range = shown("train") ? quantiles(s.cols.loss, Math.max(from, Math.min(early, to - 20), 0), to,
      [0.01, 0.99], this.log) : null;
    this.ax.loss = this.lossAxis(range, [...s.valid].filter(([name]) => shown(name)).flatMap(([, points]) => points));
    return this.ax;
  }

  lossAxis(range, points) {
    let [lo, hi] = range ?? [Infinity, -Infinity];
    const known = points.map(({value: v}) => v).filter((v) => v - v === 0).sort((p, q) => p - q);
    const most = 4 * Math.max(range?.[1] ?? Infinity, known[known.length >> 1] ?? 0);
    for (const {x, value: v} of points) {  // a lone far one is drawn at the edge
      const far = v > most;
      if (far || x < this.ax.a || x > this.ax.b || v - v !== 0 || (this.log && v <= 0)) continue;
      lo = Math.min(lo, v);
      hi = Math.max(hi, v);
    }
    if (lo > hi) [lo, hi] = [0.1, 1];
    if (this.log) return logAxis(lo, hi, 7);
    lo = Math.min(lo, 0);
    hi = hi > lo ? hi : lo + 1;
    const step = roundStep(hi - lo, 5, [1, 2, 2.5, 5, 10]);
    const first = Math.floor(lo / step + 1e-9), last = Math.ceil(hi / step - 1e-9);
    const ticks = Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
    const decimals = [0, 1, 2, 3].find((d) => Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6);
    return {lo: ticks[0], hi: ticks.at(-1), ticks, decimals: hi < 1e5 ? decimals : undefined};
  }

  px(x) { return this.ax.left + (x - this.ax.a) / (this.ax.b - this.ax.a) * this.ax.w; }

  lossY(v) {
    const {loss: {lo, hi}, top, lossBottom} = this.ax;
    const share = this.log ? Math.log(Math.max(v, 1e-30) / lo) / Math.log(hi / lo) : (v - lo) / (hi - lo);
    return lossBottom - Math.max(-9, Math.min(9, share)) * (lossBottom - top);
  }

  normY(v) {  // outliers touch the edge
    const {norm: {lo, hi}, lossBottom, bottom} = this.ax, share = Math.log(Math.max(v, 1e-30) / lo) / Math.log(hi / lo);
    return bottom - Math.max(0, Math.min(1.05, share)) * (bottom - lossBottom - 20);
  }

  inLoss(v) { return Math.max(this.ax.top, Math.min(this.ax.lossBottom, this.lossY(v))); }

  // ---- drawing

  draw() {
    this.drawn = performance.now();
    if (devicePixelRatio !== this.dpr) this.resize();
    if (!this.w) return;
    if (!this.ink) this.recolour();
    const ctx = this.begin(this.canvas), {top, lossBottom, bottom, norm} = this.axes();
    const shown = (name) => !this.off.has(name);
    this.labels = [];
    this.notes = [];
    this.frameOf(ctx);
    this.inside(ctx, top, lossBottom, () => {
      if (shown("lr")) this.drawLr(ctx);
      if (shown("train")) this.series(ctx, "train", "loss", "smooth_loss", (v) => this.lossY(v), this.log, lossText);
      this.drawValid(ctx);
    });
    if (norm) this.inside(ctx, lossBottom + 4, bottom, () =>
      this.series(ctx, "norm", "grad_norm", "smooth_norm", (v) => this.normY(v), true, normText));
    this.drawBest(ctx);
    this.drawMarks(ctx);
    this.directLabels(ctx);
    this.drawHover();
    const left = this.log && shown("train") ? this.bins.loss.left : 0;
    if (left) this.notes.push(`${grouped(left)} at or under 0 left out`);
    put(this.caption, this.notes.join(" · "));
  }

  begin(canvas) {
    const ctx = canvas.getContext("2d");
    ctx.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    ctx.clearRect(0, 0, this.w, this.h);
    Object.assign(ctx, {lineJoin: "bevel", textBaseline: "middle"});
    return ctx;
  }

  inside(ctx, top, bottom, paint) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.ax.left, top, this.ax.w, bottom - top);
    ctx.clip();
    paint();
    ctx.restore();
  }

  shape(ctx, points, style, how = "stroke") {
    const {colour, width = 1, dash = [], closed} = style;
    Object.assign(ctx, {fillStyle: colour, strokeStyle: colour, lineWidth: width, lineCap: "butt"});
    ctx.setLineDash(dash);
    ctx.beginPath();
    for (const [x, y] of points) ctx.lineTo(x, y);
    if (closed) ctx.closePath();
    ctx[how]();
    ctx.setLineDash([]);
  }

  disc(ctx, x, y, r, colour, ring) {
    Object.assign(ctx, {fillStyle: colour, strokeStyle: ring, lineWidth: 2});
    ctx.beginPath();
    ctx.arc(x, y, r, 0, 7);
    ctx.fill();
    ctx.stroke();
  }

  level(ctx, at, colour) {
    const y = Math.round(at) + 0.5;
    this.shape(ctx, [[this.ax.left, y], [this.ax.right, y]], {colour});
  }

  tick(ctx, at, y, length, colour) {
    const x = Math.round(at) + 0.5;
    this.shape(ctx, [[x, y], [x, y + length]], {colour});
  }

  cross(ctx, x, y) {
    for (const d of [4, -4]) this.shape(ctx, [[x - d, y - 4], [x + d, y + 4]], {colour: this.ink.error, width: 2});
  }

  text(ctx, text, x, y, colour, textAlign = "left", weight = 400) {
    Object.assign(ctx, {font: `${weight} 11px ${this.font}`, textAlign, fillStyle: colour});
    ctx.fillText(text, x, y);
  }

  frameOf(ctx) {
    const {left, right, top, bottom, lossBottom, loss, norm} = this.ax, {fg, fg2, ctl, grid, line} = this.ink;
    for (const v of loss.ticks) {
      this.level(ctx, this.lossY(v), grid);
      const text = loss.decimals === undefined ? tickText(v) : grouped(v, loss.decimals);
      this.text(ctx, text, left - 7, this.lossY(v), fg2, "right");
    }
    this.level(ctx, top, line);
    this.level(ctx, lossBottom, ctl);
    this.text(ctx, "loss", left - 7, 9, fg, "right", 600);
    for (const v of norm?.ticks ?? []) {
      this.level(ctx, this.normY(v), grid);
      this.text(ctx, tickText(v), left - 7, this.normY(v), fg2, "right");
    }
    this.level(ctx, bottom, ctl);
    if (norm) this.text(ctx, "grad norm", left + 6, lossBottom + 11, fg, "left", 600);
    this.text(ctx, this.store.meta.x_name, right + 8, bottom + 14, fg2);
    this.text(ctx, "epoch", right + 8, 9, fg2);
    this.xTicks(ctx);
  }

  xTicks(ctx) {
    const {a, b, w, top, bottom, right} = this.ax, {fg2, ctl} = this.ink, {epochs, status, meta: {x0}} = this.store;
    const step = Math.max(1, roundStep(b - a, Math.max(2, Math.floor(w / 62)), [1, 2, 5, 10]));
    for (let v = Math.ceil(a / step) * step; v <= b; v += step) {
      const [size, unit] = !v || b < 2e4 ? [1, ""] : v < 1e6 ? [1e3, "k"] : [1e6, "M"];
      this.tick(ctx, this.px(v), bottom, 4, ctl);
      if (this.px(v) > right - 12) continue;  // the word "step" is there
      this.text(ctx, size > 1 ? v / size + unit : grouped(v), this.px(v), bottom + 14, fg2, "center");
    }
    const running = status.x_end > (epochs.at(-1)?.[1] ?? x0);
    const ends = running ? [...epochs, [null, status.x_end]] : epochs;
    if (!ends.length) return;
    const each = (ends.at(-1)[1] - x0) / ends.length * w / (b - a);
    const room = 24 + 7 * String(epochs.at(-1)?.[0] ?? 1).length;
    let every = 1;
    for (let i = 0; each * every < room && i < 20; i++) every = [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3);
    for (const [epoch, x] of ends) {
      const labelled = epoch !== null && epoch % every === 0;
      if (x < a || x > b || (each < 5 && !labelled)) continue;
      this.tick(ctx, this.px(x), top - 5, 5, ctl);
      if (labelled && this.px(x) < right - 6) this.text(ctx, grouped(epoch), this.px(x), 9, fg2, "center");
    }
  }

  trace(ctx, key, y, log) {
    const {a, b, w} = this.ax, s = this.store, bins = this.bins[key] ??= new Bins();
    bins.update([s.version, key.startsWith("smooth") && s.stop, a, b, w, log].join(), s, s.cols[key], this.ax, log);
    if (ctx.lineWidth === 1 && Math.min(s.n, b - a) > 4 * w) bins.fill(ctx, this.ax.left, y);
    else bins.trace(ctx, (i) => this.px(s.meta.x0 + i + 1), y);
  }

  series(ctx, name, raw, smooth, y, log, write) {
    const level = this.store.stop > 0, v = this.lastOf(smooth), colour = this.ink[name === "train" ? "train" : "grad"];
    Object.assign(ctx, {strokeStyle: colour, fillStyle: colour, lineCap: "round", lineWidth: 1});
    ctx.globalAlpha = level ? 0.3 : 1;
    this.trace(ctx, raw, y, log);
    Object.assign(ctx, {lineWidth: name === "train" ? 2 : 1.5, globalAlpha: 1});
    if (level) this.trace(ctx, smooth, y, log);
    if (Number.isFinite(v)) this.labels.push({name, text: write(v), colour, y: y(v), norm: name === "norm"});
  }

  get lastRow() { return Math.min(this.store.n, Math.floor(this.ax.b - this.store.meta.x0)) - 1; }

  lastOf(key, row = this.lastRow) {  // some are missing inside an accumulation
    const values = this.store.cols[key];
    for (let i = row; i >= 0 && i > row - 1000; i--) if (values[i] - values[i] === 0) return values[i];
    return NaN;
  }

  drawLr(ctx) {  // on a scale of its own, from 0 at the bottom
    const {ax: {lossBottom, top}, store: {cols, n}} = this, colour = this.ink.fg2;
    const most = quantiles(cols.lr, 0, n, [1])?.[0] || 1;
    const y = (v) => lossBottom - v / most * (lossBottom - top) * 0.92, v = this.lastOf("lr");
    Object.assign(ctx, {strokeStyle: colour, lineWidth: 1.5, lineCap: "butt"});
    ctx.setLineDash([2, 3]);
    this.trace(ctx, "lr", y, false);
    ctx.setLineDash([]);
    if (Number.isFinite(v)) this.labels.push({name: "lr", text: exponent(v, 2), colour, y: y(v)});
  }

  diamond(ctx, x, y, r, how) {
    this.shape(ctx, [[x, y - r], [x + r, y], [x, y + r], [x - r, y]],
      {colour: this.ink.valid, width: 1.5, closed: true}, how);
  }

  drawValid(ctx) {
    const {a, b, top} = this.ax, {valid} = this.store, colour = this.ink.valid;
    [...valid].forEach(([name, points], k) => {
      if (this.off.has(name) || !points.length) return;
      const apart = (this.px(points.at(-1).x) - this.px(points[0].x)) / Math.max(1, points.length - 1) || 99;
      const at = points.map(({x, value}) => [this.px(x), Number.isFinite(value) ? this.inLoss(value) : NaN]);
      let from = 0;
      at.forEach(([, y], i) => {  // the joining line breaks at NaN
        if (!Number.isNaN(y) && i < at.length - 1) return;
        this.shape(ctx, at.slice(from, Number.isNaN(y) ? i : i + 1),
          {colour, width: 1.25, dash: [[], [6, 3], [2, 3]][k % 3]});
        from = i + 1;
      });
      at.forEach(([x, y], i) => {
        if (points[i].x < a || points[i].x > b) return;
        if (Number.isNaN(y)) this.cross(ctx, x, top + 7);
        else this.diamond(ctx, x, y, Math.max(2, Math.min(5.5, apart * 0.5)), "fill");
      });
      const last = points.findLast((p) => p.x <= b);
      const label = valid.size > 1 ? cut(name, 6) : "valid";
      if (last) this.labels.push({name: label, text: lossText(last.value), colour, y: this.inLoss(last.value || 0)});
    });
  }

  drawBest(ctx) {  // on the validation curve
    const {x} = this.store.status.best ?? {}, {a, b} = this.ax;
    if (this.off.has("best") || !(x >= a && x <= b)) return;
    for (const [name, points] of this.store.valid) {
      const at = this.off.has(name) ? null : points.find((p) => p.x === x && Number.isFinite(p.value));
      if (!at) continue;
      this.disc(ctx, this.px(x), this.inLoss(at.value), 8, this.ink.bg, this.ink.done);
      return this.diamond(ctx, this.px(x), this.inLoss(at.value), 4.5, "stroke");
    }
  }

  drawMarks(ctx) {  // lines always; words where there is room, else a number that is explained below
    const {a, b, left, right, top, bottom, lossBottom, norm} = this.ax, taken = [], listed = [];
    const lines = this.store.marks.filter((m) => m.x >= a && m.x <= b).map((m) => Math.round(this.px(m.x)) + 0.5);
    let done = null;
    const place = (words, px) => {
      const width = ctx.measureText(words).width + 10;
      for (const row of [0, 1]) for (const x of [px + 5, px - 5 - width]) {  // other side, then a row down
        const meets = (t) => t.row === row && x < t.x + t.width && t.x < x + width;
        const crosses = (line) => line !== px && x < line && line < x + width;  // would read as the other's word
        if (x < left || x + width > right || taken.some(meets) || lines.some(crosses)) continue;
        taken.push({row, x, width});
        return [x + 5, top + 10 + 15 * row];
      }
    };
    for (const [i, {x, kind, text}] of this.store.marks.entries()) {
      const next = this.store.marks[i + 1];
      if (kind === "lr" && next?.kind === "lr" && this.px(next.x) - this.px(x) < 12) continue;  // a slider on its way
      const px = Math.round(this.px(x)) + 0.5, bad = kind === "nan", colour = bad ? this.ink.error : this.ink.fg2;
      if (x < a || x > b || done === px + kind) continue;
      done = px + kind;
      this.shape(ctx, [[px, top], [px, bottom]], {colour, width: bad ? 1.5 : 1, dash: bad ? [2, 3] : [5, 3]});
      if (bad) for (const y of norm ? [top + 10, lossBottom + 26] : [top + 10]) this.cross(ctx, px, y);
      else this.shape(ctx, [[px, top], [px + 7, top], [px, top + 8]], {colour}, "fill");
      if (!text) continue;
      ctx.font = `400 11px ${this.font}`;
      let words = cut(text, 28), at = place(words, px);
      if (!at && !bad) at = place(words = String(listed.push(text)), px);
      if (at) this.text(ctx, words, ...at, bad ? colour : this.ink.fg);
    }
    this.notes.push(...listed.slice(0, 8).map((text, i) => `${i + 1}: ${text}`));
    if (listed.length > 8) this.notes.push(`${grouped(listed.length - 8)} more`);
  }

  directLabels(ctx) {  // pushed apart to 15 px, each in its panel
    const {top, bottom, lossBottom, right} = this.ax;
    const loss = [false, top + (this.zoom ? 34 : 4), lossBottom - 6];  // a zoomed chart has a button there
    for (const [norm, low, high] of [loss, [true, lossBottom + 10, bottom - 6]]) {
      const labels = this.labels.filter((l) => !!l.norm === norm).sort((p, q) => p.y - q.y);
      labels.forEach((l, i) => { l.y = Math.max(l.y, i ? labels[i - 1].y + 15 : low); });
      labels.reverse().forEach((l, i) => { l.y = Math.min(l.y, i ? labels[i - 1].y - 15 : high); });
      for (const {name, text, colour, y} of labels) {
        this.text(ctx, name, right + 8, y, colour, "left", 600);
        this.text(ctx, text, this.w, y, colour, "right");
      }
    }
  }

  // ---- what the reader points at

  listen() {
    const {plot} = this, on = (event, act) => plot.addEventListener(event, act);
    const at = (e) => e.clientX - plot.getBoundingClientRect().left;
    on("pointerdown", (e) => {
      if (e.button || e.pointerType === "touch") return this.point(at(e));
      plot.setPointerCapture(e.pointerId);
      this.drag = [at(e), at(e)];
    });
    on("pointermove", (e) => {
      if (this.drag) this.drag[1] = at(e);
      this.point(at(e));
    });
    on("pointerup", () => this.drop());
    on("pointercancel", () => this.point(null));
    on("pointerleave", (e) => { if (e.pointerType !== "touch") this.point(null); });
    on("blur", () => this.point(null));
    on("dblclick", () => this.setZoom(null));
    on("focus", () => { if (plot.matches(":focus-visible") && this.ax) this.point(this.px(this.store.lastX)); });
    on("keydown", (e) => this.key(e));
  }

  key(e) {
    const {ax, store: {n, meta: {x0}}} = this, way = {ArrowLeft: -1, ArrowRight: 1, Home: -1e12, End: 1e12}[e.key];
    if (!ax || !n) return;
    const here = (this.hover ?? n - 1) + x0 + 1, half = {"+": 0.25, "=": 0.25, "-": 1}[e.key];
    if (e.key === "Escape") return this.zoom ? this.setZoom(null) : this.point(null);
    if (!way && !half) return;
    e.preventDefault();
    if (half) return this.setZoom([here - half * (ax.b - ax.a), here + half * (ax.b - ax.a)]);  // about the crosshair
    const stride = Math.max(1, Math.round((ax.b - ax.a) / ax.w)) * (e.shiftKey ? 10 : 1);
    this.point(this.px(Math.min(ax.b, Math.max(ax.a, here + way * stride))));
  }

  drop() {
    const [p, q] = (this.drag ?? [0, 0]).sort((one, two) => one - two), {a, b, left, w} = this.ax;
    this.drag = null;
    if (q - p > 4) this.setZoom([p, q].map((px) => a + (px - left) / w * (b - a)));
    this.drawHover();
  }

  setZoom(range) {
    const [a, b] = this.xRange(), [from, to] = range ?? [a, b], p = Math.max(a, Math.floor(from)),
      q = Math.min(b, Math.ceil(to));
    this.zoom = q - p >= 2 && q - p < b - a ? [p, q] : null;
    flag(this.reset, "none", !this.zoom);
    this.ask();
  }

  point(px) {
    const {ax, store: {n, meta: {x0}}} = this;
    if (!ax || !n) return;
    if (px === null) this.drag = null;
    const x = ax.a + (px - ax.left) / ax.w * (ax.b - ax.a), out = px === null || px < ax.left - 8 || px > ax.right + 8;
    this.hover = out ? null : Math.min(this.lastRow, Math.max(0, Math.ceil(ax.a - x0) - 1, Math.round(x - x0) - 1));
    this.drawHover();
  }

  drawHover() {
    const {ax, store: s, hover: i, ink, drag} = this, shown = i !== null && i < s.n;
    if (!ax || (!shown && !drag && !this.used)) return;
    const ctx = this.begin(this.over);
    this.used = shown || !!drag;
    flag(this.box, "shown", shown);
    if (drag) {
      const [p, q] = drag.map((v) => Math.min(ax.right, Math.max(ax.left, v)));
      ctx.globalAlpha = 0.14;
      this.shape(ctx, [[p, ax.top], [q, ax.top], [q, ax.bottom], [p, ax.bottom]], {colour: ink.train}, "fill");
      ctx.globalAlpha = 1;
    }
    if (!shown) return;
    const px = this.px(s.meta.x0 + i + 1), loss = s.cols.smooth_loss[i], norm = this.lastOf("smooth_norm", i);
    const y = Number.isFinite(loss) && !this.off.has("train") ? this.inLoss(loss) : null;
    this.tick(ctx, px, ax.top, ax.bottom - ax.top, ink.fg2);
    if (y !== null) this.disc(ctx, px, y, 4.5, ink.train, ink.bg);
    if (ax.norm && Number.isFinite(norm)) this.disc(ctx, px, this.normY(norm), 4.5, ink.grad, ink.bg);
    this.fillBox(i, norm);
    const {offsetWidth: w, offsetHeight: h} = this.box, right = px + 12 + w <= ax.right;
    const above = y === null || y - 12 - h >= ax.top + 2;  // above the curve where there is room
    const top = above ? Math.min(ax.top + 24, (y ?? 1e9) - 12 - h) : Math.min(y + 12, this.h - h);
    const left = Math.max(0, right ? px + 12 : px - 12 - w);
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  fillBox(i, norm) {
    const s = this.store, {cols} = s, x = s.meta.x0 + i + 1, [epoch, batch] = s.place(x), lr = this.lastOf("lr", i);
    const rows = [["head", `step ${grouped(cols.step[i])}`, `epoch ${grouped(epoch)}, batch ${grouped(batch)}`]];
    for (const [kind, key] of [["train", "smooth_loss"], ["raw", "loss"]]) {
      if (!this.off.has("train")) rows.push([kind, kind, lossText(cols[key][i])]);
    }
    for (const [name, points] of s.valid) {
      const last = this.off.has(name) ? null : points.findLast((p) => p.x <= x);
      const title = s.valid.size > 1 ? cut(name) : "valid";
      if (last) rows.push(["valid", `${title}, epoch ${grouped(last.epoch)}`, lossText(last.value)]);
    }
    if (this.ax.norm) rows.push(["norm", "grad norm", Number.isFinite(norm) ? normText(norm) : "–"]);
    if (Number.isFinite(lr)) rows.push(["lr", "lr", exponent(lr, 2)]);
    rows.forEach(([kind, name, value], k) => {
      const row = this.box.children[k] ?? this.box.appendChild(make("div", {}, make("i"), make("span"), make("span")));
      put(row, null, {class: `ptw-boxrow ptw-of-${kind}`});
      put(row.children[1], name);
      put(row.children[2], value);
    });
    while (this.box.children.length > rows.length) this.box.lastChild.remove();
  }

  sentence() {
    const {n, status, valid} = this.store, now = this.lastOf("smooth_loss", n - 1);
    if (Number.isNaN(now)) return "train loss, no values yet";
    const then = this.lastOf("smooth_loss", Math.floor(n * 0.9));
    const trend = now < then * 0.98 ? "falling" : now > then * 1.02 ? "rising" : "steady";
    const sets = [...valid].map(([name, points]) => `${name} ${lossText(points.at(-1)?.value)}`);
    return [`train loss ${lossText(now)}, ${trend}`, ...sets, ...status.best ? [status.best.text] : []].join("; ");
  }
}

// ---- the view

class View {
  constructor(store, send, root) {
    Object.assign(this, {store, root, cleanups: [], bars: new Bars(), facts: new Facts(), names: null});
    this.head = new Head(store, send);
    this.table = new Table(store);
    this.chart = new Chart(store);
    this.spoken = make("div.spoken", {role: "status", "aria-live": "polite"});
    this.tip = make("div.tip", {role: "tooltip"});
    this.changes = make("ul.changes");
    this.notes = make("div.notes");  // what the fit said of itself at its start
    root.classList.add("ptw-live");
    root.dataset.lmSuppressShortcuts = "true";
    const top = make("div.top", {}, ...this.head.nodes, this.bars.node, this.facts.node);
    const main = make("div.main", {}, make("div.left", {}, this.toolbar(), this.chart.node),
      make("div.right", {}, this.table.node, this.changes));
    root.append(make("div.view", {}, top, this.notes, this.facts.detail, main, this.spoken, this.tip));
    this.theme();
    this.watch();
    this.update({type: "full"});
  }

  toolbar() {
    const scale = [false, true].map((log) => button("side", () => {
      this.chart.log = log;
      scale.forEach((node, i) => put(node, null, {"aria-pressed": !!i === log}));
      this.chart.ask();
    }, log ? "log" : "linear"));
    scale.forEach((node, i) => put(node, null, {"aria-pressed": !i}));
    this.legend = make("div.legend", {role: "group", "aria-label": "lines"});
    this.smooth = slider("smoothing", {min: 0, max: STOPS.length - 1, step: 1}, (v) => this.store.smoothen(v));
    this.smoothRead = make("span.smoothread");
    const smooth = make("div.smooth", {}, make("span", {}, "smooth"), this.smooth.node, this.smoothRead);
    return make("div.toolbar", {}, this.legend, smooth,
      make("div.group", {role: "group", "aria-label": "loss axis"}, ...scale));
  }

  entry(name) {  // of the legend: shows and hides its line
    const kind = this.store.valid.has(name) ? "valid" : name === "grad norm" ? "norm" : name, {off} = this.chart;
    const glyph = make("svg", {class: `ptw-key ptw-of-${kind}`, viewBox: "0 0 18 16", "aria-hidden": true});
    glyph.append(kind === "best" ? make("circle", {cx: 9, cy: 8, r: 6}) : make("line", {x1: 1, x2: 17, y1: 8, y2: 8}));
    if (kind === "valid") glyph.append(make("path", {d: "M9 2.8 14.2 8 9 13.2 3.8 8z"}));
    const node = make("button.toggle", {type: "button", "aria-pressed": !off.has(name)}, glyph);
    flag(node, `for-${kind}`, true);
    node.addEventListener("click", () => {
      if (!off.delete(name)) off.add(name);
      put(node, null, {"aria-pressed": !off.has(name)});
      this.chart.ask();
    });
    return named(node, name);
  }

  update(msg) {
    const s = this.store, {status} = s, full = msg.type === "full";
    put(this.root, null, {"data-points": s.n, "data-state": status.state ?? ""});
    put(this.root, null, {"data-controls": status.controls ?? ""});
    if (!s.ready) return;
    if (msg.status || full) {
      this.head.update();
      this.bars.update(status);
      this.facts.update(status);
      const notes = status.notes ?? [];
      put(this.notes, notes.length ? `note: ${notes.join(" · ")}` : "");
      flag(this.notes, "none", !notes.length);
      this.showChanges();
    }
    if (msg.table || full) this.table.fill();
    else if (msg.status?.now !== undefined) this.table.now();
    flag(this.root, "many", this.table.many);
    this.showLegend();
    this.say(msg, full);
    if (full || msg.points || msg.valid || msg.epochs || msg.marks || msg.status) this.chart.ask(full ? 0 : 100);
  }

  showLegend() {
    const names = ["train", ...this.store.valid.keys(), "grad norm", "best", "lr"];
    if (names.join("\n") === this.names) return;
    this.names = names.join("\n");
    // More than 6 lines are shown on request.
    for (const name of [...this.store.valid.keys()].slice(4)) this.chart.off.add(name);
    this.legend.replaceChildren(...names.map((name) => this.entry(name)));
    this.smoothed();
  }

  smoothed() {
    const text = String(STOPS[this.store.stop]);
    put(this.smoothRead, text);
    this.smooth.set(this.store.stop, text);
    this.chart.ask();
  }

  showChanges() {
    const {changes, status, partial} = this.store;
    const all = [...changes.map((c) => `step ${grouped(c.step)}: ${c.text}`), partial];
    const lines = ENDED.has(status.state) ? all.filter(Boolean) : [];
    if (lines.join("\n") !== this.listed) this.changes.replaceChildren(...lines.map((line) => make("li", {}, line)));
    this.listed = lines.join("\n");
  }

  say(msg, full) {  // on a new state and at the end of an epoch, not at each update
    const {status, columns, rows, best_of} = this.store, fresh = status.state !== this.state;
    const ended = msg.epochs?.at(-1)?.[0];
    if (!fresh && !full && ended === undefined) return;
    this.state = status.state;
    put(this.chart.plot, null, {"aria-label": this.chart.sentence()});
    const at = columns.findIndex((c) => c.key === best_of), value = rows.get(ended)?.[at];
    const said = [status.title, status.line, ...status.detail ?? [], ...status.notes ?? []].filter(Boolean);
    const measured = value === undefined ? "" : `, ${wholeName(columns[at])} ${cellText(value, columns[at].format)}`;
    if (fresh) put(this.spoken, said.map((text) => text.replace(/\.$/, "")).join(". "));
    else if (ended !== undefined) put(this.spoken, `epoch ${ended}${measured}`);
  }

  // ---- theme, size, keys, tooltips

  theme() {
    const said = document.body.dataset.jpThemeLight;
    let dark = said === "false";
    if (said === undefined) {
      let rgb = null;  // the first background that is not see-through
      for (let node = this.root; node && !rgb; node = node.parentElement) {
        const parts = getComputedStyle(node).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
        rgb = parts.length === 3 || parts[3] > 0 ? parts : null;
      }
      const [r, g, b] = rgb ?? (matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255]);
      dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
    }
    this.root.dataset.theme = dark ? "dark" : "light";
    this.chart.ink = null;
    this.chart.ask();
  }

  watch() {
    const on = (target, event, act) => {
      target.addEventListener(event, act);
      this.cleanups.push(() => target.removeEventListener(event, act));
    };
    const sized = new ResizeObserver(([{contentRect: {width, height}}]) => {
      this.chart.resize(Math.floor(width), Math.floor(height));
      this.chart.ask();
    });
    const themed = new MutationObserver(() => requestAnimationFrame(() => this.theme()));
    sized.observe(this.chart.plot);
    const attributeFilter = ["data-jp-theme-light", "data-jp-theme-name", "class"];
    themed.observe(document.body, {attributes: true, attributeFilter});
    this.cleanups.push(() => sized.disconnect(), () => themed.disconnect());
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      on(matchMedia(query), "change", () => this.theme());
    }
    // The notebook has shortcuts on plain letters.
    for (const event of ["keydown", "keyup", "keypress"]) on(this.root, event, (e) => e.stopPropagation());
    on(this.root, "keydown", (e) => { if (e.key === "Escape") this.showTip(null); });
    for (const [event, wait] of [["pointerover", 400], ["focusin", 0]]) {
      on(this.root, event, (e) => this.showTip(e.target.closest("[data-tip]"), wait));
    }
    for (const event of ["pointerleave", "focusout"]) on(this.root, event, () => this.showTip(null));
  }

  showTip(node, wait) {
    clearTimeout(this.waiting);
    flag(this.tip, "shown", false);
    if (!node) return;
    this.waiting = setTimeout(() => {
      const at = node.getBoundingClientRect(), home = this.root.getBoundingClientRect();
      put(this.tip, node.dataset.tip);
      const left = Math.max(0, Math.min(at.left - home.left, home.width - this.tip.offsetWidth));
      this.tip.style.transform = `translate(${left}px, ${at.bottom - home.top + 4}px)`;
      flag(this.tip, "shown", true);
    }, wait);
  }

  close() {
    this.store.views.delete(this);
    for (const act of this.cleanups) act();
    for (const timer of [this.head.timer, this.chart.timer, this.waiting]) clearTimeout(timer);
    cancelAnimationFrame(this.chart.frame);
  }
}

const stores = new Map();  // by key: initialize and render get two different objects for one model

function storeOf(model) {
  const key = model.get("key");
  if (!stores.has(key)) stores.set(key, new Store());
  return stores.get(key);
}

export default {
  initialize({model}) {
    const hear = (msg, buffers) => {
      if (msg.status?.controls === "wait") model.send({type: "here"});  // the kernel asks whether it can hear us
      storeOf(model).apply(msg, buffers);
    };
    model.on("msg:custom", hear);
    model.send({type: "hello", opens: true});
    return () => { model.off("msg:custom", hear); stores.delete(model.get("key")); };
  },

  render({model, el}) {
    const store = storeOf(model), view = new View(store, (msg) => model.send(msg), el);
    store.views.add(view);
    if (!store.ready) model.send({type: "hello"});
    return () => view.close();
  },
};
