// The page of the playground: one module for the browser and for notebooks (anywidget).
//
// It draws on plain 2-D canvases, so that it needs no WebGL, and it asks. Every number on it comes
// from isthmus, over a connection that carries requests as JSON and replies as binary frames; here
// they are only coloured and interpolated.
// Text from data reaches the page through textContent alone, so that it is never read as HTML.

const SETTLED = 150; // ms without a change after which the fine landscape is asked for
const DETAILS_EVERY = 200; // ms between paths and balls while a memory is dragged
const LONG = 600; // ms without a reply after which the page says that it waits
const WALK_EVERY = 60; // ms between the moves of samples
const NEAR = 14; // px within which a point is picked
const CONTOURS = 10;
const TABLES = ".csv,.tsv,.txt,.json,.jsonl,.parquet,.feather,.xlsx,.npy,.npz,.gz,.bz2,.xz,.zip,.zst";
const PHASES = { stores: "#0072b2", condenses: "#d55e00", blends: "#cc79a7", generalises: "#009e73", forgets: "#8c98a3" };
const PLAIN_AXES = ["x₁", "x₂"];
const STOPPED = "The server of the playground has stopped. Start it again with: isthmus play";

// ---------------------------------------------------------------- connections

function decode(buffer) {
  const view = new DataView(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
  const length = view.getUint32(0, true);
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const body = bytes.slice(4 + length).buffer; // aligned anew
  const types = { f4: Float32Array, f8: Float64Array, i2: Int16Array };
  const arrays = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const count = shape.reduce((product, size) => product * size, 1);
    arrays[name] = { shape, data: new types[dtype](body, offset, count) };
  }
  return { header, arrays };
}

function socketTransport(address) {
  let socket = null, receive = null, closed = null, opened = false;
  function connect() {
    socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => { opened = true; receive(event.data); };
    socket.onclose = (event) => {
      closed(event.code === 1009 ? "The message was too large for the server." : STOPPED);
      setTimeout(connect, opened ? 2000 : 5000);
    };
  }
  return {
    start(onReceive, onClosed) { receive = onReceive; closed = onClosed; connect(); },
    send(text) { if (socket?.readyState === WebSocket.OPEN) { socket.send(text); return true; } return false; },
  };
}

function widgetTransport(model) {
  return {
    start(receive) {
      model.on("msg:custom", (_, buffers) => { if (buffers?.length) receive(buffers[0]); });
      model.send({ request: "hello" });
    },
    send(text) { model.send({ request: text }); return true; },
  };
}

// ---------------------------------------------------------------- colours

function oklch(lightness, chroma, hue) {
  const angle = (hue * Math.PI) / 180, a = chroma * Math.cos(angle), b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((c) => Math.round(255 * Math.min(1, Math.max(0, c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055))));
}

const mix = (from, to, share) => from.map((c, i) => c + (to[i] - c) * share);
const css = ([r, g, b], alpha = 1) => `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)} / ${alpha})`;

const THEMES = {
  light: {
    paper: [255, 255, 255], ink: [34, 48, 60], muted: [87, 102, 117], nowhere: [238, 240, 242],
    deep: [[255, 255, 255], [188, 215, 234], [79, 149, 194], [24, 92, 145]],
    lightness: 0.56, grey: [140, 152, 163], path: [197, 82, 0], walker: [120, 40, 90], ball: [0, 110, 80],
  },
  dark: {
    paper: [15, 23, 30], ink: [228, 235, 241], muted: [159, 176, 190], nowhere: [30, 38, 45],
    deep: [[15, 23, 30], [26, 62, 88], [50, 121, 168], [142, 208, 245]],
    lightness: 0.72, grey: [120, 133, 145], path: [255, 158, 84], walker: [238, 170, 210], ball: [76, 214, 170],
  },
};

class Palette {
  constructor(theme, slots) { this.theme = THEMES[theme]; this.slots = slots; this.ramps = new Map(); }
  // Golden angles keep the hues of any number of basins apart.
  basin(label) {
    if (label < 0) return this.theme.grey;
    return oklch(this.theme.lightness, 0.125, 245 + 137.508 * (this.slots.get(label) ?? label));
  }
  // Give each basin the first hue that is free; it keeps it while others come and go.
  assign(labels) {
    const present = new Set(labels.filter((label) => label >= 0));
    const forget = this.slots.size > present.size + 16;
    for (const label of this.slots.keys()) if (forget && !present.has(label)) { this.slots.delete(label); this.ramps.delete(label); }
    const taken = new Set(this.slots.values());
    for (const label of present) {
      if (this.slots.has(label)) continue;
      let slot = 0;
      while (taken.has(slot)) slot += 1;
      taken.add(slot);
      this.slots.set(label, slot);
      this.ramps.delete(label);
    }
  }
  // 256 colours from high to low energy; `label` null is the plain scale.
  ramp(label) {
    if (!this.ramps.has(label)) {
      const ramp = new Uint32Array(256), { deep, paper } = this.theme;
      for (let i = 0; i < 256; i++) {
        const t = i / 255;
        let rgb;
        if (label === null) {
          const place = t * (deep.length - 1), k = Math.min(Math.floor(place), deep.length - 2);
          rgb = mix(deep[k], deep[k + 1], place - k);
        } else rgb = mix(paper, this.basin(label), 0.1 + 0.68 * t ** 1.1);
        ramp[i] = (255 << 24) | (Math.round(rgb[2]) << 16) | (Math.round(rgb[1]) << 8) | Math.round(rgb[0]);
      }
      this.ramps.set(label, ramp);
    }
    return this.ramps.get(label);
  }
}

// ---------------------------------------------------------------- small tools

function element(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function written(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return number === Infinity ? "∞" : "–";
  const size = Math.abs(number);
  const text = size !== 0 && (size >= 1e5 || size < 1e-3) ? number.toExponential(1) : String(Number(number.toPrecision(3)));
  return text.replace("-", "−");
}

const counted = (n, one) => `${n} ${n === 1 ? one : one === "memory" ? "memories" : `${one}s`}`;
const copyOf = (value) => JSON.parse(JSON.stringify(value));
const rounded = (number) => Number(number.toPrecision(7));

function toFragment(value) {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function fromFragment(text) {
  const raw = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(raw, (c) => c.charCodeAt(0))));
}

// The bytes of a file in base64, which the server reads by its suffix.
function contentOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

const isPoint = (p) => Array.isArray(p) && p.length === 2 && p.every(Number.isFinite);
const isPositive = (x) => Number.isFinite(x) && x > 0;

// A scene from a link, checked as far as the page needs it; the server checks the rest.
function readScene(given, known) {
  const { queries = [], view, show = {}, axes = PLAIN_AXES } = given, scene = { sparsity: 1.5, ...given.scene };
  const good = axes.length === 2 && axes.every((name) => typeof name === "string") && known.has(scene.energy) && scene.memories.every(isPoint) && queries.every(isPoint)
    && isPoint(scene.centre) && ["sigma", "alpha", "prior", "sparsity", "unit"].every((name) => isPositive(scene[name]))
    && scene.counts.length === scene.memories.length && scene.counts.every(isPositive);
  if (!good) throw new Error("not a scene");
  return { scene, queries, axes, view: view === "density" ? "density" : "energy", show };
}

// Corners of a cell from the top left, clockwise; for each set of those above a level, the sides
// that its lines join, two by two. Sides: 0 top, 1 right, 2 bottom, 3 left.
const CROSSED = [
  [], [0, 3], [0, 1], [1, 3], [1, 2], [0, 1, 3, 2], [0, 2], [2, 3],
  [2, 3], [0, 2], [0, 3, 1, 2], [1, 2], [1, 3], [0, 1], [0, 3], [],
];

// Lines along which a grid of values crosses levels, which rise, as a path in pixels (marching
// squares). It runs with every frame, so that it makes no objects.
function contour(path, data, columns, rows, levels, width, height) {
  const dx = width / (columns - 1), dy = height / (rows - 1), count = levels.length;
  for (let r = 0; r < rows - 1; r++) {
    for (let c = 0; c < columns - 1; c++) {
      const at = r * columns + c;
      const p = data[at], q = data[at + 1], s = data[at + columns + 1], t = data[at + columns];
      const low = Math.min(p, q, s, t), high = Math.max(p, q, s, t);
      if (!(low <= levels[count - 1] && high > levels[0] && high < Infinity)) continue; // also if NaN
      for (let k = 0; k < count && levels[k] < high; k++) {
        const level = levels[k];
        if (level < low) continue;
        const a = p - level, b = q - level, d = s - level, e = t - level;
        const sides = CROSSED[(a > 0) | ((b > 0) << 1) | ((d > 0) << 2) | ((e > 0) << 3)];
        for (let i = 0; i < sides.length; i++) {
          let x = c, y = r;
          if (sides[i] === 0) x += a / (a - b);
          else if (sides[i] === 1) { x += 1; y += b / (b - d); }
          else if (sides[i] === 2) { x += e / (e - d); y += 1; }
          else y += a / (a - e);
          if (i % 2) path.lineTo(x * dx, y * dy);
          else path.moveTo(x * dx, y * dy);
        }
      }
    }
  }
}

function bilinear(data, columns, rows, u, v) {
  const x = Math.min(Math.max(u * (columns - 1), 0), columns - 1.000001);
  const y = Math.min(Math.max(v * (rows - 1), 0), rows - 1.000001);
  const c = Math.floor(x), r = Math.floor(y), s = x - c, t = y - r, at = r * columns + c;
  return (1 - t) * ((1 - s) * data[at] + s * data[at + 1])
    + t * ((1 - s) * data[at + columns] + s * data[at + columns + 1]);
}

const GAP = 12; // px between the labels of ticks, at least

function niceStep(range, most) {
  const rough = range / most, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

// The ticks between two ends and their labels, with as many digits as tell them apart.
function ticks(low, high, step) {
  const found = [], digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const powers = largest >= 1e6 || digits > 4;
  for (let k = Math.ceil(low / step); k * step < high; k++) {
    const value = k * step, order = Math.floor(Math.log10(Math.abs(value) || 1));
    const text = powers && k !== 0 ? value.toExponential(Math.min(Math.max(order - Math.floor(Math.log10(step) + 1e-9), 0), 15)) : value.toFixed(powers ? 0 : digits);
    found.push([value, text.replace(/^-/, "−")]);
  }
  return found;
}

// A step of about six ticks along the shorter side, or fewer if their labels need the room.
function tickStep(low, high, width, shorter, long) {
  for (let most = 6; ; most--) {
    const step = niceStep(shorter, most), room = (step / (high - low)) * width;
    if (most === 1 || ticks(low, high, step).every(([, text]) => long(text) + GAP <= room)) return step;
  }
}

const shortened = (text, width) => { const most = width < 500 ? 16 : 24; return text.length > most ? `${text.slice(0, most - 1)}…` : text; };

// ---------------------------------------------------------------- the tour

const TOUR = [
  {
    title: "Two continents, one function",
    text: "An energy is a negative log-likelihood. A memory rolls a query downhill to what it stores; a density "
      + "is high exactly where that energy is low. Switch between Memory and Probability: it is the same object.",
    preset: "five", queries: [[-0.9, 0.4], [2.9, -0.2]], show: { balls: false },
  },
  {
    title: "1 · Energies learned in context",
    text: "A transformer reads the points as its context and returns an energy. Drag one: no parameter changes, "
      + "yet the landscape follows, as it does when the memories of a Hopfield network are swapped.",
    preset: "context", show: { balls: false },
  },
  {
    title: "2 · Memories created when needed",
    text: "A Chinese restaurant process weighs every known cluster by its count, and a new one by α. In the hatched "
      + "region a point most likely starts a memory of its own. Raise α and watch the region grow.",
    preset: "restaurant", queries: [[0.2, 0.5], [3.3, -1.2]], show: { balls: false },
  },
  {
    title: "3 · Proportional assignments",
    text: "A query between memories belongs to several at once. The pies show the posterior shares, the quantity "
      + "that the evidence lower bound needs. Drag a pie across a border: its shares change smoothly.",
    preset: "five", scene: { energy: "mixture", sigma: 0.8 }, queries: [[-0.2, 0.2], [1.6, 0.1], [-1.9, 0.0]], show: { balls: false },
  },
  {
    title: "4 · How much a density remembers",
    text: "Green balls are proved: every start inside reaches the same minimum. Widen σ and the balls shrink, then "
      + "vanish, as basins merge and memories are lost. That is the capacity of a kernel density estimator.",
    preset: "ring", scene: { energy: "kde", sigma: 0.42 }, queries: [], show: { balls: true, modes: true },
  },
  {
    title: "5 · Attention clusters on the sphere",
    text: "With all memories at one distance from the origin, as after normalisation, an update of a modern Hopfield "
      + "network is softmax attention, and equal to mean shift on a Gaussian KDE: attention moves a query to its cluster.",
    preset: "ring", queries: [[1.2, 1.9], [-1.9, -0.4], [0.4, -2.7]], show: { balls: false, modes: true },
  },
];

const KEYS = [
  ["Click or tap", "add a memory, or drop a query"], ["Drag", "move it"], ["Double-click, hold, Delete", "delete it"],
  ["[ and ]", "select the previous or next memory"], ["Arrows", "move the selected memory; with Shift, farther"],
  ["N, Q", "add a memory or drop a query at the pointer"], ["+ and −", "widen or narrow the kernels"],
  ["V", "switch between Memory and Probability"], ["Ctrl+Z, Ctrl+Y", "undo, redo"], ["Escape", "close, deselect"],
];

// ---------------------------------------------------------------- the page

export function mount(host, transport, { page = false } = {}) {
  // The keys of the page are not those of a notebook about it, in which "x" cuts a cell.
  const root = element("div", { class: "isthmus-play", "data-lm-suppress-shortcuts": "true" });
  host.replaceChildren(root);

  const state = {
    scene: null, queries: [], view: "energy", tool: "memory", selected: -1,
    show: { basins: true, contours: true, modes: true, balls: true },
    sampling: false, axes: PLAIN_AXES, from: "", note: "", // from: the preset; note: how the points came about
  };
  const past = [], future = [], slots = new Map(); // slots: basin -> place of its hue
  let energies = new Map(), hello = null, palette = null, theme = "light";
  let frame = null, extra = null, walkers = null, tourAt = -1, gesture = null, pointer = null;
  let own = null; // the user's data, to which "Your data" returns
  let analysis = null; // clusters and phases of the memories that it names
  let number = 0, committed = "", settle = 0, noticeTimer = 0, dropped = 0, detailed = 0, later = 0, synced = 0, waiting = 0;
  const busy = { frame: 0, walk: 0, details: 0 }, again = { frame: false, details: false };
  const stats = { frames: 0, finals: 0, details: 0, times: [], latencies: [], errors: [], sent: 0 };

  // ---- elements

  const button = (text, label, action, options = {}) =>
    element("button", { type: "button", text, title: label, "aria-label": label, onclick: action, ...options });
  const segments = (label, choices, choose) => {
    const box = element("div", { class: "ip-segments", role: "group", "aria-label": label });
    for (const [value, text, title] of choices) {
      box.append(element("button", { type: "button", text, title, "data-value": value, "aria-pressed": "false", onclick: () => choose(value) }));
    }
    box.mark = (value) => { for (const each of box.children) each.setAttribute("aria-pressed", String(each.dataset.value === value)); };
    return box;
  };

  const views = segments("View", [["energy", "Memory", "Energy: where queries roll"], ["density", "Probability", "Density: how likely points are"]], setView);
  const undoButton = button("Undo", "Undo (Ctrl+Z)", undo), redoButton = button("Redo", "Redo (Ctrl+Y)", redo);
  const linkButton = button("Link", "Copy a link to this scene", share, { hidden: !page });
  const actions = element("div", { class: "ip-group ip-actions" }, undoButton, redoButton, linkButton,
    button("PNG", "Save the picture as a PNG file", savePicture),
    button("Tour", "A short tour of the five ideas", () => showTour(tourAt < 0 ? 0 : -1)),
    button("Keys", "Keys and gestures", () => help.showModal()),
    button("◐", "Light or dark", () => setTheme(theme === "dark" ? "light" : "dark", true)));
  const brand = element("div", { class: "ip-brand", text: "isthmus " }, element("span", { text: "playground" }));
  const bar = element("header", { class: "ip-bar" }, brand, views, element("div", { class: "ip-space" }), actions);

  const field = element("canvas", { class: "ip-field", "aria-hidden": "true" });
  const top = element("canvas", { class: "ip-top", tabindex: "0", role: "application", "aria-label": "Landscape. Press N to add a memory, arrows to move it." });
  const tools = segments("Tool", [["memory", "Memories", "Click to add, drag to move a memory"], ["query", "Queries", "Click to drop a query that rolls downhill"], ["delete", "Delete", "Click a memory or a query to delete it"]], setTool);
  tools.classList.add("ip-tools");
  const scale = element("canvas", { width: "132", height: "1" });
  const legendTitle = element("span"), legendLow = element("span"), legendHigh = element("span");
  const legend = element("div", { class: "ip-legend", "aria-hidden": "true" }, legendTitle, element("br"), scale, element("div", {}, legendLow, legendHigh));
  const notice = element("div", { class: "ip-notice", role: "alert", hidden: true });
  const tourTitle = element("h2"), tourText = element("p"), tourPlace = element("span");
  const tourBack = button("Back", "Previous idea", () => showTour(tourAt - 1));
  const tourNext = button("Next", "Next idea", () => showTour(tourAt + 1 < TOUR.length ? tourAt + 1 : -1), { class: "ip-primary" });
  const tour = element("div", { class: "ip-tour", role: "region", "aria-label": "Tour", hidden: true }, tourTitle, tourText,
    element("footer", {}, tourPlace, tourBack, tourNext, button("Close", "Close the tour", () => showTour(-1))));
  const wait = element("div", { class: "ip-wait", role: "status", hidden: true });
  const hint = element("div", { class: "ip-hint", hidden: true });
  const stage = element("div", { class: "ip-stage" }, field, top, tools, legend, hint, wait, notice, tour);

  const presetChoice = element("select", { "aria-label": "Start from", onchange: () => load(presetChoice.value) });
  const fileInput = element("input", { type: "file", accept: TABLES, hidden: true, onchange: () => { readFile(fileInput.files[0]); fileInput.value = ""; } });
  const axisChoices = ["Horizontal", "Vertical"].map((label) => element("select", { "aria-label": `${label} axis`, class: "ip-wide", onchange: chooseAxes }));
  const axisRow = element("div", { class: "ip-row ip-gap", hidden: true }, ...axisChoices);
  const energyChoice = element("select", { "aria-label": "Energy", class: "ip-wide", onchange: () => change(() => { state.scene.energy = energyChoice.value; }) });
  const formula = element("p", { class: "ip-formula" }), note = element("p", { class: "ip-note" });
  const sliders = element("div"), count = element("div", { class: "ip-slider", hidden: true });
  const countText = element("output");
  count.append(element("span", {}, element("span", { text: "Count of the selected memory" }), countText),
    element("div", { class: "ip-row" }, button("−", "Smaller count", () => changeCount(-1)), button("+", "Larger count", () => changeCount(1))));
  const checks = element("div", { class: "ip-checks" }), boxes = {};
  for (const [name, text] of [["basins", "Basins"], ["contours", "Contours"], ["modes", "Minima"], ["balls", "Proved balls"]]) {
    boxes[name] = element("input", { type: "checkbox", onchange: () => { state.show[name] = boxes[name].checked; refresh(); commit(); } });
    checks.append(element("label", {}, boxes[name], text));
  }
  const samplers = segments("Sampler", [["langevin", "Langevin", "Unadjusted Langevin dynamics"], ["mala", "MALA", "Metropolis-adjusted Langevin"], ["hmc", "HMC", "Hamiltonian Monte Carlo"]], (name) => { state.sampler = name; sync(); });
  state.sampler = "langevin";
  const sampleButton = button("Start", "Start or stop the chains", toggleSampling, { class: "ip-wide" });
  const facts = element("dl"), dataNote = element("p", { class: "ip-note" });
  const analyseButton = button("How many clusters?", "Clusters of BasinFlow, and the phases of the bandwidth", analyse, { class: "ip-wide" });
  const decision = element("p", { class: "ip-note" }), gapCurve = element("canvas", { class: "ip-curve", width: "240", height: "64", "aria-label": "Gap to one cluster against the resolution", hidden: true });
  const clearButton = button("Remove queries", "Remove all queries", () => change(() => { state.queries = []; }), { class: "ip-wide" });
  const heading = (text) => element("h2", { text });
  const sampleSection = element("section", {}, heading("Samples"), samplers, element("div", { class: "ip-row ip-gap" }, sampleButton));
  const panel = element("aside", { class: "ip-panel", "aria-label": "Settings" },
    element("section", {}, heading("Start from"), element("div", { class: "ip-row" }, presetChoice, button("Load table", "Read points from a table: CSV, Parquet, Excel and others", () => fileInput.click())), fileInput, axisRow, dataNote),
    element("section", {}, heading("Energy"), energyChoice, formula, sliders, count, note),
    element("section", {}, heading("Show"), checks),
    sampleSection,
    element("section", {}, heading("Clusters and phases"), analyseButton, decision, gapCurve),
    element("section", {}, heading("Now"), facts, element("div", { class: "ip-row ip-gap" }, clearButton)));

  const help = element("dialog", { "aria-label": "Keys and gestures" }, element("h2", { text: "Keys and gestures" }),
    element("dl", {}, ...KEYS.flatMap(([keys, text]) => [element("dt", { text: keys }), element("dd", { text })])),
    element("button", { type: "button", text: "Close", onclick: () => help.close() }));
  const live = element("p", { class: "ip-hidden", "aria-live": "polite" });
  root.append(bar, element("div", { class: "ip-main" }, stage, panel), help, live);

  // ---- geometry

  let width = 1, height = 1, ratio = 1;
  function box() {
    const { centre: [x, y], unit } = state.scene;
    const half = [unit * Math.max(1, width / height), unit * Math.max(1, height / width)];
    return [x - half[0], y - half[1], x + half[0], y + half[1]];
  }
  function toScreen([x, y]) {
    const [left, bottom, right, upper] = box();
    return [((x - left) / (right - left)) * width, ((upper - y) / (upper - bottom)) * height];
  }
  function toPlane([px, py]) {
    const [left, bottom, right, upper] = box();
    const inside = (value, low, high) => Math.min(Math.max(value, low), high);
    return [
      rounded(inside(left + (px / width) * (right - left), left, right)),
      rounded(inside(upper - (py / height) * (upper - bottom), bottom, upper)),
    ];
  }
  const lengthToScreen = (length) => { const [left, , right] = box(); return (length / (right - left)) * width; };

  function resize() {
    const place = stage.getBoundingClientRect();
    if (place.width < 20 || place.height < 20) return;
    if (field.width > 1 && place.width === width && place.height === height) return;
    width = place.width; height = place.height; ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of [field, top]) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    frame = null; // it was computed for another box
    refresh();
    paintSoon(true); // a canvas of another size is black until it is painted
  }

  // ---- asking

  const kind = () => energies.get(state.scene.energy);
  function message(name, more) {
    number += 1; stats.sent += 1;
    const text = JSON.stringify({ id: number, kind: name, scene: { ...state.scene, box: box() }, ...more });
    return transport.send(text) ? number : 0;
  }
  function grid(size) { return { columns: size, rows: size, view: state.view, basins: state.show.basins || state.show.modes }; }

  function askFrame() {
    if (!state.scene) return;
    if (busy.frame) { again.frame = true; return; }
    again.frame = false;
    busy.frame = message("frame", grid(kind().draft));
    busy.since = performance.now();
    if (busy.frame) waitFor("Computing …");
  }
  function askDetails() {
    if (!state.scene) return;
    // A memory on the move leaves the server to its landscape most of the time.
    const wait = gesture?.moving && gesture.list === "memories" ? detailed + DETAILS_EVERY - performance.now() : 0;
    if (wait > 0) { clearTimeout(later); later = setTimeout(askDetails, wait); return; }
    detailed = performance.now();
    if (!state.queries.length && !(state.show.balls && kind().certified)) { extra = null; repaint(); return; }
    if (busy.details) { again.details = true; return; }
    again.details = false;
    busy.details = message("details", { queries: state.queries, balls: state.show.balls });
  }
  function askFinal() {
    if (!state.scene) return;
    if (gesture?.moving || again.frame || busy.frame) { settleSoon(); return; }
    message("final", grid(kind().fine));
  }
  function settleSoon() { clearTimeout(settle); settle = setTimeout(askFinal, SETTLED); }
  function refreshDetails() { askDetails(); sync(); repaint(); }
  function refresh() { askFrame(); askDetails(); settleSoon(); sync(); repaint(); }

  function askWalk() {
    if (!state.sampling || busy.walk || !state.scene) return;
    const at = walkers ? Array.from({ length: walkers.count }, (_, i) => [rounded(walkers.to[2 * i]), rounded(walkers.to[2 * i + 1])]) : [];
    busy.walk = message("walk", { sampler: state.sampler, steps: state.sampler === "hmc" ? 1 : 4, count: 160, seed: (number * 7919) % 2 ** 32, walkers: at });
  }

  // What is drawn meanwhile is pale: it shows the scene before.
  function waitFor(words) {
    clearTimeout(waiting);
    waiting = setTimeout(() => { wait.textContent = words; wait.hidden = false; stage.classList.add("ip-waiting"); }, LONG);
  }
  function waitNoMore() { clearTimeout(waiting); wait.hidden = true; stage.classList.remove("ip-waiting"); }

  function receive(buffer) {
    const { header, arrays } = decode(buffer);
    if (header.kind === "hello") return begin(header);
    if (header.id === busy.frame || header.kind === "error" || header.kind === "table") waitNoMore();
    if (header.id === busy.frame) { busy.frame = 0; stats.latencies.push(performance.now() - busy.since); if (again.frame) askFrame(); }
    if (header.id === busy.details) { busy.details = 0; if (again.details) askDetails(); }
    if (header.id === busy.walk) busy.walk = 0;
    if (header.kind === "error") { stats.errors.push(header.error); if (state.sampling) toggleSampling(); return tell(header.error); }
    if (header.kind === "frame" || header.kind === "final") {
      // A fine landscape that is older than the newest coarse one shows what is no more.
      if (frame && header.id < frame.header.id) return undefined;
      frame = { header, arrays };
      palette.assign((header.modes ?? []).map((mode) => mode[2]));
      stats[header.kind === "frame" ? "frames" : "finals"] += 1;
      stats.times.push(performance.now());
      paintSoon(true);
      // Words change slowly enough while something is dragged.
      if (!gesture?.moving || performance.now() - synced > DETAILS_EVERY) { synced = performance.now(); sync(); }
      if (header.kind === "final") live.textContent = summary();
      else if (header.training) { askFrame(); settleSoon(); } // there is more to learn
    } else if (header.kind === "details") {
      extra = { header, arrays, queries: state.queries.length };
      stats.details += 1;
      repaint(); sync();
    } else if (header.kind === "walk") {
      if (!state.sampling) return undefined; // stopped meanwhile
      const { data, shape } = arrays.walkers;
      const from = walkers && walkers.count === shape[0] ? walkers.to : data;
      walkers = { from, to: data, count: shape[0], since: performance.now() };
      repaint();
    } else if (header.kind === "clusters" || header.kind === "phases") {
      if (analysis?.memories !== memoriesNow()) return undefined; // they have moved since
      analysis[header.kind] = { ...header, labels: arrays.labels?.data };
      sync(); repaint();
    } else if (header.kind === "table") {
      file = pending;
      own = dataOf(header, { ...header.scene, energy: kind().editable ? state.scene.energy : "kde" });
      load("");
    }
    return undefined;
  }

  function begin(header) {
    const first = hello === null;
    hello = header;
    energies = new Map(header.energies.map((each) => [each.name, each]));
    hideNotice();
    Object.assign(busy, { frame: 0, walk: 0, details: 0 });
    if (!first) { refresh(); return; }
    energyChoice.replaceChildren(...header.energies.map((each) => element("option", { value: each.name, text: each.title })));
    presetChoice.replaceChildren(element("option", { value: "", text: "Your data" }),
      ...header.presets.map((each) => element("option", { value: each.name, text: each.title })));
    const shown = header.presets.find((each) => JSON.stringify(each.scene) === JSON.stringify(header.scene));
    if (!shown) own = dataOf(header, header.scene);
    Object.assign(state, startOf(shown ? shown.name : ""));
    if (page && location.hash.length > 1) loadFragment();
    resize();
    committed = snapshot();
    root.dataset.ready = "true";
  }

  // ---- changing the scene

  function snapshot() {
    const { scene, queries, axes, from, note } = state;
    return JSON.stringify({ scene, queries, axes, from, note });
  }
  function commit() {
    const now = snapshot();
    if (committed && now !== committed) {
      past.push(committed);
      if (past.length > 200) past.shift();
      future.length = 0;
    }
    committed = now;
    const { scene, queries, axes, view, show } = state;
    if (page) history.replaceState(null, "", `#${toFragment({ scene, queries, axes, view, show })}`);
    sync();
  }
  function change(action) { action(); refresh(); commit(); }
  function restore(text) {
    Object.assign(state, JSON.parse(text));
    committed = text;
    state.selected = Math.min(state.selected, state.scene.memories.length - 1);
    refresh();
    commit();
  }
  function undo() { if (past.length) { future.push(committed); restore(past.pop()); } }
  function redo() { if (future.length) { past.push(committed); restore(future.pop()); } }

  function addMemory(place) {
    if (!kind().editable) return tell("This energy has no memories to add to.");
    if (state.scene.memories.length >= hello.limits.memories) return tell(`At most ${hello.limits.memories} memories.`);
    state.scene.memories.push(place);
    state.scene.counts.push(5);
    state.selected = state.scene.memories.length - 1;
    return refresh();
  }
  function removeMemory(index) {
    if (!kind().editable) return;
    state.scene.memories.splice(index, 1);
    state.scene.counts.splice(index, 1);
    state.selected = -1;
    refresh(); commit();
  }
  function dropQuery(place) {
    if (state.queries.length >= hello.limits.queries) state.queries.shift();
    state.queries.push(place);
    dropped = performance.now();
    refreshDetails();
  }
  function changeCount(by) {
    if (state.selected < 0) return;
    change(() => { state.scene.counts[state.selected] = Math.max(1, state.scene.counts[state.selected] + by); });
  }
  // What a preset, or "" for the user's data, starts with.
  function startOf(name) {
    const found = name ? hello.presets.find((each) => each.name === name) : own;
    return { scene: copyOf(found.scene), axes: found.axes ?? PLAIN_AXES, note: found.note ?? "", from: name, queries: [], selected: -1 };
  }
  function load(name, more = {}) {
    slots.clear(); palette.ramps.clear();
    walkers = null;
    const start = startOf(name);
    change(() => Object.assign(state, start, more, { scene: { ...start.scene, ...more.scene } }));
  }
  const dataOf = ({ axes, notes, columns, chosen }, scene) => ({ scene, axes, note: notes.join(" "), columns, chosen: chosen ?? [] });
  function chooseAxes(event) {
    const [first, second] = axisChoices, changed = event.target;
    if (changed === first && first.value && (!second.value || second.value === first.value)) second.value = own.columns.find((name) => name !== first.value);
    if (changed === second && second.value === first.value) first.value = own.columns.find((name) => name !== second.value);
    const axes = first.value ? [first.value, second.value] : [];
    pending = file;
    if (message("table", { ...file, axes })) waitFor("Reading the columns …");
  }
  const memoriesNow = () => JSON.stringify(state.scene.memories);
  function analyse() {
    analysis = { memories: memoriesNow() };
    message("clusters"); message("phases");
    sync();
  }
  function setView(view) { state.view = view; refresh(); if (committed) commit(); }
  function setTool(tool) { state.tool = tool; sync(); }
  let file = {}, pending = {}; // name and content of the table loaded here; none for that of the start
  function readFile(chosen) {
    if (!chosen) return;
    if (chosen.size > 0.7 * hello.limits.table) { tell("The file is too large for the page. Run isthmus play with its path instead."); return; }
    contentOf(chosen).then((content) => {
      pending = { name: chosen.name, content };
      if (message("table", pending)) waitFor("Reading the file …");
    });
  }
  function toggleSampling() {
    state.sampling = !state.sampling;
    if (!state.sampling) walkers = null;
    busy.walk = 0;
    askWalk(); sync(); repaint();
  }

  // ---- links, pictures, themes, messages

  function loadFragment() {
    try {
      const found = readScene(fromFragment(location.hash.slice(1)), energies);
      const { scene, queries, axes, view } = found;
      own = { scene: copyOf(scene), axes };
      Object.assign(state, { scene, queries, axes, view, selected: -1, from: "", note: "" });
      for (const name of Object.keys(state.show)) if (typeof found.show[name] === "boolean") state.show[name] = found.show[name];
    } catch {
      tell("The link does not hold a scene of the playground.");
    }
  }
  async function share() {
    commit();
    try {
      await navigator.clipboard.writeText(location.hash);
      tell("Copied. Paste it after the address of any playground, from the # on.", 5000);
    } catch {
      tell("Copy the part of this page's address from the # on.", 6000);
    }
  }
  function savePicture() {
    const picture = element("canvas", { width: field.width, height: field.height });
    const context = picture.getContext("2d");
    context.drawImage(field, 0, 0);
    context.drawImage(top, 0, 0);
    picture.toBlob((blob) => {
      const link = element("a", { href: URL.createObjectURL(blob), download: "isthmus-playground.png" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }
  function setTheme(name, keep = false) {
    theme = name;
    root.dataset.theme = name;
    palette = new Palette(name, slots);
    if (keep) try { localStorage.setItem("isthmus-play-theme", name); } catch { /* private mode */ }
    paintSoon(true);
  }
  function tell(words, lasting = 7000) {
    notice.textContent = words;
    notice.hidden = false;
    clearTimeout(noticeTimer);
    if (lasting) noticeTimer = setTimeout(hideNotice, lasting);
  }
  function hideNotice() { notice.hidden = true; }

  function showTour(at) {
    tourAt = at;
    tour.hidden = at < 0;
    if (at < 0) return;
    const stop = TOUR[at];
    tourTitle.textContent = stop.title;
    tourText.textContent = stop.text;
    tourPlace.textContent = `${at + 1} of ${TOUR.length}`;
    tourBack.disabled = at === 0;
    tourNext.textContent = at + 1 < TOUR.length ? "Next" : "Done";
    Object.assign(state.show, { basins: true, contours: true }, stop.show);
    dropped = performance.now();
    load(stop.preset, { scene: stop.scene, queries: copyOf(stop.queries ?? []), view: "energy" });
    tourNext.focus({ preventScroll: true });
  }

  // ---- the panel

  const inputs = {};
  function sync() {
    if (!hello || !state.scene) return;
    const now = kind();
    energyChoice.value = now.name;
    presetChoice.value = state.from;
    presetChoice.options[0].disabled = !own;
    dataNote.textContent = state.note;
    syncAxes();
    syncAnalysis();
    formula.textContent = now.formula;
    note.textContent = now.note;
    note.hidden = !now.note;
    views.mark(state.view); tools.mark(state.tool);
    hint.hidden = !now.editable || state.scene.memories.length > 0;
    hint.textContent = state.tool === "memory" ? "Click to add a memory." : "Choose Memories, then click to add one.";
    undoButton.disabled = !past.length; redoButton.disabled = !future.length;
    for (const [name, input] of Object.entries(boxes)) input.checked = state.show[name];
    boxes.balls.disabled = !now.certified;
    clearButton.hidden = !state.queries.length;
    sampleSection.hidden = !now.samplers.length;
    if (now.samplers.length && !now.samplers.includes(state.sampler)) state.sampler = now.samplers[0];
    if (!now.samplers.length && state.sampling) toggleSampling();
    for (const each of samplers.children) each.hidden = !now.samplers.includes(each.dataset.value);
    samplers.mark(state.sampler);
    sampleButton.textContent = state.sampling ? "Stop" : "Start";
    sampleButton.setAttribute("aria-pressed", String(state.sampling));
    const counting = now.name === "crp" && state.selected >= 0;
    count.hidden = !counting;
    if (counting) countText.textContent = written(state.scene.counts[state.selected]);
    syncSliders(now);
    const rows = [["Memories", state.scene.memories.length]];
    if (frame?.header.modes) rows.push(["Minima", frame.header.modes.length]);
    if (extra?.header.proved !== undefined && state.show.balls && now.certified) rows.push(["Proved", `${extra.header.proved} of ${state.scene.memories.length}`]);
    if (state.queries.length) rows.push(["Queries", state.queries.length]);
    rows.push(["At the pointer", hovered()]);
    facts.replaceChildren(...rows.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: String(value) })]));
  }
  function syncAxes() {
    const columns = state.from === "" && own?.columns?.length > 2 ? own.columns : [];
    axisRow.hidden = !columns.length;
    if (axisRow.dataset.names !== columns.join("\n")) {
      axisRow.dataset.names = columns.join("\n");
      axisChoices.forEach((choice, place) => choice.replaceChildren(
        ...(place ? [] : [element("option", { value: "", text: "All columns" })]), ...columns.map((name) => element("option", { value: name, text: name }))));
    }
    axisChoices.forEach((choice, place) => { choice.value = own?.chosen?.[place] ?? ""; });
    axisChoices[1].hidden = !axisChoices[0].value;
  }
  function syncAnalysis() {
    if (analysis && analysis.memories !== memoriesNow()) analysis = null;
    const { clusters } = analysis ?? {};
    analyseButton.disabled = Boolean(analysis);
    gapCurve.hidden = !clusters;
    decision.textContent = clusters ? `BasinFlow finds ${counted(clusters.k, "cluster")}. ${oddsOf(clusters.probabilities)}` : analysis ? "Computing …" : "";
    if (clusters) paintGaps(clusters);
  }
  // The probabilities of the numbers of clusters, those of at least one per cent.
  const oddsOf = (probabilities) => probabilities.map((value, i) => [i + 1, Math.round(100 * value)]).filter(([, percent]) => percent > 0)
    .map(([k, percent]) => `K = ${k}: ${percent} %`).join(", ");
  // The gap to one cluster at each resolution, from fine to coarse; the dot is the number chosen.
  function paintGaps({ curve, k }) {
    const pen = gapCurve.getContext("2d"), { width: w, height: h } = gapCurve, { ink, muted, path } = palette.theme;
    const top = Math.max(...curve.map(([, , gap]) => gap), 1e-9), place = (i) => [8 + (i / Math.max(curve.length - 1, 1)) * (w - 16), h - 16 - (curve[i][2] / top) * (h - 32)];
    pen.clearRect(0, 0, w, h);
    pen.strokeStyle = css(muted); pen.lineWidth = 1.5;
    pen.beginPath();
    curve.forEach((_, i) => pen.lineTo(...place(i)));
    pen.stroke();
    pen.font = "10px system-ui, sans-serif"; pen.fillStyle = css(ink); pen.textAlign = "center";
    let last = null;
    curve.forEach(([, n], i) => {
      if (n === last) return;
      last = n;
      pen.fillText(String(n), place(i)[0], h - 3);
      if (n !== k) return;
      dot(pen, place(i), 4);
      pen.fillStyle = css(path); pen.fill(); pen.fillStyle = css(ink);
    });
  }
  // Behind the slider of the width: the phase of the memories at each of its values.
  function phaseAt(sigma) {
    const regions = analysis?.phases?.regions ?? [];
    return regions.find(([, , high]) => sigma <= high)?.[0] ?? regions.at(-1)?.[0] ?? "";
  }
  function paintPhases(strip) {
    const regions = ["kde", "mixture"].includes(state.scene.energy) ? analysis?.phases?.regions ?? [] : [];
    strip.hidden = !regions.length;
    const pen = strip.getContext("2d");
    pen.clearRect(0, 0, strip.width, strip.height);
    for (let x = 0; regions.length && x < strip.width; x++) { pen.fillStyle = PHASES[phaseAt(fromSlider("sigma", x / (strip.width - 1)))]; pen.fillRect(x, 0, 1, strip.height); }
    return regions.length ? `, ${phaseAt(state.scene.sigma)}` : "";
  }
  function syncSliders(now) {
    const wanted = now.sliders.join();
    if (sliders.dataset.names !== wanted) {
      sliders.dataset.names = wanted;
      sliders.replaceChildren(...now.sliders.map((name) => {
        const value = element("output");
        const input = element("input", { type: "range", min: "0", max: "1000", step: "1", "data-name": name, "aria-label": hello.sliders[name].label });
        input.addEventListener("input", () => { state.scene[name] = fromSlider(name, input.value / 1000); refresh(); });
        input.addEventListener("change", commit);
        const strip = element("canvas", { class: "ip-strip", width: "200", height: "1", "aria-hidden": "true", hidden: true });
        inputs[name] = { input, value, strip };
        return element("label", { class: "ip-slider" }, element("span", {}, element("span", { text: hello.sliders[name].label }), value), input, strip);
      }));
    }
    for (const name of now.sliders) {
      const { input, value, strip } = inputs[name], number = state.scene[name];
      if (document.activeElement !== input || Math.abs(input.value / 1000 - toSlider(name, number)) > 0.002) input.value = String(1000 * toSlider(name, number));
      const beta = name === "sigma" && frame?.header.beta ? `, β ${written(frame.header.beta)}` : "";
      value.textContent = written(number) + beta + (name === "sigma" ? paintPhases(strip) : "");
    }
  }
  function ends(name) {
    const { low, high, length } = hello.sliders[name], factor = length ? state.scene.unit : 1;
    return [Math.log(low * factor), Math.log(high * factor)];
  }
  const toSlider = (name, value) => { const [low, high] = ends(name); return Math.min(Math.max((Math.log(value) - low) / (high - low), 0), 1); };
  const fromSlider = (name, share) => { const [low, high] = ends(name); return rounded(Math.exp(low + share * (high - low))); };

  function hovered() {
    if (!pointer || !frame?.arrays.height || frame.header.empty) return "–";
    const { columns, rows, view, peak } = frame.header;
    const value = bilinear(frame.arrays.height.data, columns, rows, pointer[0] / width, pointer[1] / height);
    if (view === "density") return peak ? `p ${written(value * peak)}` : `p ${written(value)} of peak`;
    return `E ${written(Number.isNaN(value) ? Infinity : value)}`;
  }
  function summary() {
    const { modes } = frame.header;
    return `${kind().title}: ${counted(state.scene.memories.length, "memory")}${modes ? `, ${modes.length} minima` : ""}.`;
  }

  // ---- painting

  let painting = 0, painted = 0, stageDirty = false;
  function paintSoon(all) {
    stageDirty ||= all;
    if (!painting) painting = requestAnimationFrame(paint);
  }
  const repaint = () => paintSoon(false);
  function paint() {
    painting = 0;
    painted = performance.now();
    if (!state.scene || !palette) return;
    if (stageDirty) { paintField(); stageDirty = false; }
    paintTop();
    const now = performance.now();
    if (state.sampling) {
      if (walkers && now - walkers.since >= WALK_EVERY) askWalk();
      repaint();
    } else if (now - dropped < 1500) repaint();
  }

  const sheet = document.createElement("canvas");
  let image = null; // the pixels of the sheet
  function paintField() {
    const context = field.getContext("2d", { alpha: false });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (!frame?.arrays.height) {
      context.fillStyle = css(palette.theme.paper);
      context.fillRect(0, 0, width, height);
    } else {
      paintHeights(context);
      if (state.show.contours) paintContours(context);
      if (frame.arrays.new) paintNew(context);
    }
    paintAxes(context);
    paintLegend();
  }
  function paintHeights(context) {
    const { columns, rows, range: [low, high], view } = frame.header;
    const heights = frame.arrays.height.data, labels = state.show.basins ? frame.arrays.labels?.data : undefined;
    const pen = sheet.getContext("2d");
    if (image?.width !== columns || image.height !== rows) {
      sheet.width = columns; sheet.height = rows;
      image = pen.createImageData(columns, rows);
    }
    const pixels = new Uint32Array(image.data.buffer), [nr, ng, nb] = palette.theme.nowhere;
    const nowhere = (255 << 24) | (nb << 16) | (ng << 8) | nr, density = view === "density", steep = 255 / (high - low);
    let ramp = palette.ramp(null), label = null;
    for (let i = 0; i < pixels.length; i++) {
      const value = heights[i];
      if (!Number.isFinite(value)) { pixels[i] = nowhere; continue; }
      if (labels && labels[i] !== label) { label = labels[i]; ramp = palette.ramp(label); } // nodes in a row mostly share it
      const depth = density ? 255 * Math.max(value, 0) ** 0.6 : steep * (high - value);
      pixels[i] = ramp[depth < 0 ? 0 : depth > 255 ? 255 : Math.round(depth)];
    }
    pen.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = true;
    context.drawImage(sheet, 0.5, 0.5, columns - 1, rows - 1, 0, 0, width, height);
  }
  function paintContours(context) {
    const { columns, rows, range: [low, high], view } = frame.header;
    const path = new Path2D(), levels = [];
    for (let k = 1; k <= CONTOURS; k++) {
      const share = k / (CONTOURS + 1);
      levels.push(view === "density" ? share ** 1.6 : low + share * (high - low));
    }
    contour(path, frame.arrays.height.data, columns, rows, levels, width, height);
    context.lineWidth = 0.8;
    context.strokeStyle = css(palette.theme.ink, 0.24);
    context.stroke(path);
  }
  // Where a new cluster is the most probable one: a line about it, and hatching inside.
  function paintNew(context) {
    const { data, shape: [rows, columns] } = frame.arrays.new;
    const edge = new Path2D(), hatch = new Path2D();
    contour(edge, data, columns, rows, [0], width, height);
    for (let start = -height; start < width; start += 13) {
      let open = false;
      for (let t = 0; t <= height; t += 4) {
        const x = start + t, y = height - t;
        const inside = x >= 0 && x <= width && bilinear(data, columns, rows, x / width, y / height) > 0;
        if (inside && !open) hatch.moveTo(x, y);
        else if (inside) hatch.lineTo(x, y);
        open = inside;
      }
    }
    context.lineWidth = 1;
    context.strokeStyle = css(palette.theme.ink, 0.2);
    context.stroke(hatch);
    context.lineWidth = 1.4;
    context.strokeStyle = css(palette.theme.ink, 0.55);
    context.stroke(edge);
  }
  function paintAxes(context) {
    const [left, bottom, right, upper] = box();
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    const long = (text) => context.measureText(text).width;
    const step = tickStep(left, right, width, Math.min(right - left, upper - bottom), long);
    const write = (text, x, y, align) => {
      context.textAlign = align;
      context.lineWidth = 3;
      context.strokeStyle = css(palette.theme.paper, 0.75);
      context.strokeText(text, x, y);
      context.fillStyle = css(palette.theme.muted);
      context.fillText(text, x, y);
    };
    context.textBaseline = "alphabetic";
    const title = `${shortened(state.axes[0], width)} →`, last = width - 10 - long(title) - GAP;
    const texts = [];
    for (const [x, text] of ticks(left, right, step)) {
      const [px] = toScreen([x, 0]), half = long(text) / 2;
      // Left of it stand the ticks of the other axis, right of it the name of this one.
      if (px - half > 42 && px + half < last) { write(text, px, height - 8, "center"); texts.push([px - half, px + half]); }
    }
    for (const [y, text] of ticks(bottom, upper, step)) {
      const [, py] = toScreen([0, y]);
      if (py > 60 + 2 * GAP && py < height - 30) write(text, 8, py + 4, "left");
    }
    write(title, width - 10, height - 8, "right");
    write(`↑ ${shortened(state.axes[1], width)}`, 8, 60, "left");
    stats.ticks = [...texts, [last + GAP, width - 10]]; // from and to, in px
  }
  let legendShown = "";
  function paintLegend() {
    const density = frame?.header.view === "density", [low, high] = frame?.header.range ?? [null, null];
    const title = density ? "density p(x)" : frame?.header.no_density ? "energy (no density)" : "energy E(x)";
    const from = density ? "0" : written(low), to = density ? (frame.header.peak ? written(frame.header.peak) : "peak") : written(high);
    const shown = [theme, title, from, to].join();
    if (shown === legendShown) return; // words that change are laid out anew
    legendShown = shown;
    const pen = scale.getContext("2d"), strip = pen.createImageData(132, 1), pixels = new Uint32Array(strip.data.buffer);
    const ramp = palette.ramp(null);
    for (let i = 0; i < 132; i++) pixels[i] = ramp[Math.round((255 * (density ? i : 131 - i)) / 131)];
    pen.putImageData(strip, 0, 0);
    legendTitle.textContent = title; legendLow.textContent = from; legendHigh.textContent = to;
  }

  const dot = (context, [x, y], radius) => { context.beginPath(); context.arc(x, y, radius, 0, 2 * Math.PI); };
  function memoryRadius(index) {
    if (kind().name === "crp") return Math.min(4 + 1.4 * Math.sqrt(state.scene.counts[index]), 16);
    const n = state.scene.memories.length;
    return n <= 60 ? 6 : n <= 250 ? 4.2 : 3;
  }
  // A memory of a radius, drawn once and then stamped.
  const stamps = new Map();
  function stamp(radius, fill) {
    const key = `${radius} ${ratio} ${theme} ${fill}`;
    if (!stamps.has(key)) {
      const size = 2 * Math.ceil(radius + 2), picture = element("canvas", { width: Math.round(size * ratio), height: Math.round(size * ratio) });
      const pen = picture.getContext("2d"), { ink, paper } = palette.theme;
      pen.scale(ratio, ratio);
      dot(pen, [size / 2, size / 2], radius);
      pen.fillStyle = fill ?? css(paper); pen.fill();
      pen.lineWidth = 1.5; pen.strokeStyle = css(ink); pen.stroke();
      stamps.set(key, { picture, size });
    }
    return stamps.get(key);
  }
  function paintTop() {
    const context = top.getContext("2d"), { ink, path, ball, walker } = palette.theme;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const { memories } = state.scene, balls = extra?.arrays.balls;
    if (state.show.balls && kind().certified && balls && balls.data.length === memories.length) {
      context.lineWidth = 1.6;
      context.strokeStyle = css(ball);
      context.fillStyle = css(ball, 0.07);
      memories.forEach((each, i) => {
        if (!(balls.data[i] > 0)) return;
        dot(context, toScreen(each), lengthToScreen(balls.data[i])); context.fill(); context.stroke();
      });
    }
    if (walkers) {
      const share = Math.min((performance.now() - walkers.since) / WALK_EVERY, 1);
      context.fillStyle = css(walker, 0.8);
      context.beginPath();
      for (let i = 0; i < walkers.count; i++) {
        const [x, y] = toScreen([0, 1].map((k) => walkers.from[2 * i + k] + share * (walkers.to[2 * i + k] - walkers.from[2 * i + k])));
        context.moveTo(x + 2.4, y); context.arc(x, y, 2.4, 0, 2 * Math.PI);
      }
      context.fill();
    }
    const owners = analysis?.clusters?.labels;
    memories.forEach((each, i) => {
      const fill = owners?.length === memories.length ? css(oklch(palette.theme.lightness, 0.14, 245 + 137.508 * owners[i])) : undefined;
      const radius = memoryRadius(i), [x, y] = toScreen(each), { picture, size } = stamp(radius, fill);
      const onPixels = (value) => Math.round((value - size / 2) * ratio) / ratio;
      context.drawImage(picture, onPixels(x), onPixels(y), size, size);
      if (i === state.selected) {
        dot(context, [x, y], radius + 4);
        context.lineWidth = 2.4; context.strokeStyle = css(path); context.stroke();
      }
    });
    paintQueries(context);
    if (state.show.modes && frame?.header.modes) {
      context.lineWidth = 2; context.strokeStyle = css(ink);
      context.beginPath();
      for (const [x, y] of frame.header.modes) {
        const [px, py] = toScreen([x, y]);
        context.moveTo(px - 4, py - 4); context.lineTo(px + 4, py + 4);
        context.moveTo(px - 4, py + 4); context.lineTo(px + 4, py - 4);
      }
      context.stroke();
    }
  }
  function paintQueries(context) {
    const { path: colour, paper } = palette.theme;
    const found = extra && extra.queries === state.queries.length ? extra.arrays : {};
    const age = Math.min((performance.now() - dropped) / 1300, 1), eased = 1 - (1 - age) ** 3;
    state.queries.forEach((query, i) => {
      if (found.paths && i < found.paths.shape[1]) {
        const [steps, n] = found.paths.shape, data = found.paths.data;
        const at = (t) => toScreen([data[2 * (t * n + i)], data[2 * (t * n + i) + 1]]);
        context.beginPath();
        context.moveTo(...at(0));
        for (let t = 1; t < steps; t++) context.lineTo(...at(t));
        context.lineWidth = 2; context.strokeStyle = css(colour); context.stroke();
        const place = (i === state.queries.length - 1 ? eased : 1) * (steps - 1), t = Math.min(Math.floor(place), steps - 1);
        const [from, to] = [at(t), at(Math.min(t + 1, steps - 1))];
        dot(context, mix(from, to, place - t), 5);
        context.fillStyle = css(colour); context.fill();
      }
      const start = toScreen(query), shares = found.shares;
      if (shares && i < shares.shape[0]) paintPie(context, start, Array.from(shares.data.subarray(i * shares.shape[1], (i + 1) * shares.shape[1])));
      else {
        dot(context, start, 4.5);
        context.fillStyle = css(paper); context.fill();
        context.lineWidth = 2; context.strokeStyle = css(colour); context.stroke();
      }
    });
  }
  function paintPie(context, [x, y], shares) {
    const { ink, paper } = palette.theme, radius = 12, crp = kind().name === "crp";
    let angle = -Math.PI / 2;
    shares.forEach((value, i) => {
      if (value < 0.002) return;
      const fresh = crp && i === shares.length - 1, next = angle + 2 * Math.PI * value;
      context.beginPath(); context.moveTo(x, y); context.arc(x, y, radius, angle, next); context.closePath();
      context.fillStyle = css(fresh ? paper : palette.basin(i)); context.fill();
      if (fresh) {
        context.save(); context.clip();
        context.lineWidth = 1.2; context.strokeStyle = css(ink, 0.7);
        context.beginPath();
        for (let k = -2 * radius; k < 2 * radius; k += 4) { context.moveTo(x + k - radius, y + radius); context.lineTo(x + k + radius, y - radius); }
        context.stroke(); context.restore();
      }
      angle = next;
    });
    dot(context, [x, y], radius);
    context.lineWidth = 1.6; context.strokeStyle = css(ink); context.stroke();
  }

  // ---- pointer, touch, keys

  const placeOf = (event) => { const { left, top: y } = top.getBoundingClientRect(); return [event.clientX - left, event.clientY - y]; };
  function nearest(points, place, reach) {
    let best = -1, least = reach;
    points.forEach((each, i) => {
      const [x, y] = toScreen(each), distance = Math.hypot(x - place[0], y - place[1]);
      if (distance <= least) { least = distance; best = i; }
    });
    return best;
  }
  function pick(place, touch) {
    const reach = NEAR + (touch ? 8 : 0);
    return { memory: kind().editable ? nearest(state.scene.memories, place, reach) : -1, query: nearest(state.queries, place, reach) };
  }
  top.addEventListener("pointerdown", (event) => {
    if (!state.scene || gesture || event.button > 0) return;
    top.setPointerCapture(event.pointerId);
    top.focus({ preventScroll: true });
    const place = placeOf(event), found = pick(place, event.pointerType === "touch");
    pointer = place;
    gesture = { id: event.pointerId, start: place, moving: false, list: null, index: -1 };
    if (state.tool === "delete") {
      if (found.query >= 0) change(() => { state.queries.splice(found.query, 1); });
      else if (found.memory >= 0) removeMemory(found.memory);
    } else if (found.query >= 0 && (state.tool === "query" || found.memory < 0)) Object.assign(gesture, { list: "queries", index: found.query });
    else if (state.tool === "query") { dropQuery(toPlane(place)); Object.assign(gesture, { list: "queries", index: state.queries.length - 1 }); }
    else if (found.memory >= 0) { state.selected = found.memory; Object.assign(gesture, { list: "memories", index: found.memory }); sync(); repaint(); }
    else { addMemory(toPlane(place)); if (kind().editable) Object.assign(gesture, { list: "memories", index: state.selected }); }
    if (gesture && event.pointerType === "touch" && gesture.list && (found.memory >= 0 || found.query >= 0)) gesture.timer = setTimeout(removePicked, 650);
    event.preventDefault();
  });
  function removePicked() {
    if (!gesture || gesture.moving) return;
    const { list, index } = gesture;
    endGesture();
    if (list === "memories") removeMemory(index);
    else change(() => { state.queries.splice(index, 1); });
  }
  top.addEventListener("pointermove", (event) => {
    if (!state.scene) return;
    pointer = placeOf(event);
    if (!gesture || event.pointerId !== gesture.id) {
      if (!gesture) { const { memory, query } = pick(pointer); top.style.cursor = memory >= 0 || query >= 0 ? "grab" : "crosshair"; }
      sync();
      return;
    }
    if (!gesture.list) return;
    if (!gesture.moving && Math.hypot(pointer[0] - gesture.start[0], pointer[1] - gesture.start[1]) < 3) return;
    gesture.moving = true;
    clearTimeout(gesture.timer);
    const list = gesture.list === "memories" ? state.scene.memories : state.queries;
    if (gesture.index >= list.length) return;
    list[gesture.index] = toPlane(pointer);
    if (gesture.list === "memories") { askFrame(); settleSoon(); }
    askDetails();
    // The next landscape brings the point along; without one, it moves on its own.
    if (gesture.list === "queries" || performance.now() - painted > 40) repaint();
  });
  function endGesture() {
    if (!gesture) return;
    clearTimeout(gesture.timer);
    const { list } = gesture;
    gesture = null;
    if (state.scene) { (list === "memories" ? refresh : refreshDetails)(); commit(); }
  }
  top.addEventListener("pointerup", endGesture);
  top.addEventListener("pointercancel", endGesture);
  top.addEventListener("pointerleave", () => { pointer = null; sync(); });
  const erase = (event) => {
    event.preventDefault();
    const { memory, query } = pick(placeOf(event));
    if (query >= 0) change(() => { state.queries.splice(query, 1); });
    else if (memory >= 0) removeMemory(memory);
  };
  top.addEventListener("dblclick", (event) => { if (state.tool !== "delete") erase(event); });
  top.addEventListener("contextmenu", erase);
  for (const name of ["dragover", "drop"]) {
    stage.addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop") readFile(event.dataTransfer.files[0]);
    });
  }

  const here = () => toPlane(pointer ?? [width / 2, height / 2]);
  function select(by) {
    const n = state.scene.memories.length;
    if (!n) return;
    state.selected = state.selected < 0 ? (by > 0 ? 0 : n - 1) : (state.selected + by + n) % n;
    live.textContent = `Memory ${state.selected + 1} of ${n}`;
    sync(); repaint();
  }
  function moveSelected(dx, dy, far) {
    if (state.selected < 0) { select(1); return; }
    const step = (far ? 0.05 : 0.01) * state.scene.unit, [x, y] = state.scene.memories[state.selected];
    if (kind().editable) change(() => { state.scene.memories[state.selected] = [rounded(x + dx * step), rounded(y + dy * step)]; });
  }
  function widen(factor) {
    if (kind().sliders.includes("sigma")) change(() => { state.scene.sigma = fromSlider("sigma", toSlider("sigma", state.scene.sigma * factor)); });
  }
  root.addEventListener("keydown", (event) => {
    if (!state.scene || help.open) return;
    const control = event.ctrlKey || event.metaKey, key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (control && (key === "z" || key === "y")) { event.preventDefault(); if (key === "y" || event.shiftKey) redo(); else undo(); return; }
    if (control || event.altKey) return;
    if (key === "Escape") { if (tourAt >= 0) showTour(-1); state.selected = -1; hideNotice(); sync(); repaint(); return; }
    if (event.target !== top) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const actionsByKey = {
      "]": () => select(1), "[": () => select(-1), n: () => { addMemory(here()); commit(); }, q: () => { dropQuery(here()); commit(); },
      v: () => setView(state.view === "energy" ? "density" : "energy"), "+": () => widen(1.08), "=": () => widen(1.08), "-": () => widen(1 / 1.08),
      Delete: () => { if (state.selected >= 0) removeMemory(state.selected); }, Backspace: () => { if (state.selected >= 0) removeMemory(state.selected); },
    };
    if (moves[key]) moveSelected(...moves[key], event.shiftKey);
    else if (actionsByKey[key]) actionsByKey[key]();
    else return;
    event.preventDefault();
  });

  // ---- start

  let kept = null;
  try { kept = localStorage.getItem("isthmus-play-theme"); } catch { /* private mode */ }
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(kept === "dark" || kept === "light" ? kept : prefers.matches ? "dark" : "light");
  if (!kept) prefers.addEventListener("change", () => setTheme(prefers.matches ? "dark" : "light"));
  const observer = new ResizeObserver(() => { if (state.scene) resize(); });
  observer.observe(stage);
  if (page) window.addEventListener("hashchange", () => { if (hello) { loadFragment(); refresh(); committed = snapshot(); sync(); } });
  transport.start(receive, (words) => { waitNoMore(); tell(words, 0); });

  return { root, state, stats, toScreen, frame: () => frame, extra: () => extra, walkers: () => walkers, dispose: () => observer.disconnect() };
}

// ---------------------------------------------------------------- where it runs

export default {
  render({ model, el }) {
    const shown = mount(el, widgetTransport(model));
    return () => shown.dispose();
  },
};

const host = document.getElementById("isthmus-play");
if (host && document.body.classList.contains("isthmus-play-page")) {
  const address = new URL("ws", location.href.split("#")[0]);
  address.protocol = "ws:";
  window.isthmusPlay = mount(host, socketTransport(address), { page: true });
}
