// The page of `mimonets serve`: pads to draw on, answers in one pass, live charts. No libraries.

const PADS = 4;
const SIZE = 160; // pixels of a pad
const PHOTO = 128; // pixels of a photo that is sent
const POINTS = 120; // readings that a chart shows: a minute
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const state = {
  key: "", model: "", plain: "", side: 8, colours: 1, samples: [], nextSample: 0, readings: [], slow: 0,
};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function headers() {
  return state.key ? { Authorization: `Bearer ${state.key}` } : {};
}

async function ask(path, content) {
  const options = { headers: headers() };
  if (content !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(content);
  }
  const response = await fetch(path, options);
  const answer = await response.json();
  if (response.status === 401) byId("key-form").hidden = false;
  if (!response.ok) throw new Error(answer.error ?? `status ${response.status}`);
  return answer;
}

// Pads

class Pad {
  constructor(number) {
    this.number = number;
    this.canvas = element("canvas", { width: SIZE, height: SIZE, role: "img" });
    this.sample = element("button", { type: "button", class: "small" }, "Sample");
    this.clearButton = element("button", { type: "button", class: "small" }, "Clear");
    this.sample.setAttribute("aria-label", `Sample for pad ${number}`);
    this.clearButton.setAttribute("aria-label", `Clear pad ${number}`);
    this.together = element("dd", {}, "–");
    this.alone = element("dd", {}, "–");
    this.plain = element("dd", {}, "–");
    this.plainRow = [element("dt", { hidden: "" }, "plain"), this.plain];
    this.plain.hidden = true;
    const answers = element(
      "dl", {},
      element("dt", {}, "one pass"), this.together,
      element("dt", {}, "alone"), this.alone,
      ...this.plainRow,
    );
    const buttons = element("div", { class: "buttons" }, this.sample, this.clearButton);
    this.figure = element("figure", { class: "pad" }, this.canvas, answers, buttons);
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.clear();
    this.listen();
  }

  listen() {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * SIZE / box.width, (event.clientY - box.top) * SIZE / box.height];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (this.picture) this.clear();
      this.canvas.setPointerCapture(event.pointerId);
      this.strokes.push([]);
      this.last = place(event);
      this.stroke(this.last);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.last) this.stroke(place(event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(end, () => { this.last = null; });
    }
    this.clearButton.addEventListener("click", () => this.clear());
    this.sample.addEventListener("click", () => this.takeSample());
    for (const over of ["dragenter", "dragover"]) {
      this.canvas.addEventListener(over, (event) => event.preventDefault());
    }
    this.canvas.addEventListener("drop", (event) => {
      event.preventDefault();
      takeFiles([...event.dataTransfer.files], this.number - 1);
    });
  }

  describe(what) {
    this.canvas.setAttribute("aria-label", `Pad ${this.number}: ${what}`);
  }

  clear() {
    this.pen.fillStyle = "#000";
    this.pen.fillRect(0, 0, SIZE, SIZE);
    this.picture = null;
    this.strokes = []; // lines of points
    this.label = null; // the right class, of samples
    this.isEmpty = true;
    this.last = null;
    for (const place of [this.together, this.alone, this.plain]) this.show(place, null);
    this.describe("empty, draw a digit with a pointer, drop an image or take a sample");
  }

  stroke(to) {
    Object.assign(this.pen, { strokeStyle: "#fff", lineWidth: SIZE / 9, lineCap: "round", lineJoin: "round" });
    this.pen.beginPath();
    this.pen.moveTo(...this.last);
    this.pen.lineTo(to[0] + 0.01, to[1]);
    this.pen.stroke();
    this.last = to;
    this.strokes.at(-1).push(to);
    this.isEmpty = false;
    this.describe("your drawing");
    answerSoon();
  }

  async takeSample() {
    if (state.samples.length === 0) return;
    const sample = state.samples[state.nextSample % state.samples.length];
    state.nextSample += 1;
    await this.take(sample.image, `a sample of ${sample.label ?? "unknown class"}`, sample.label);
  }

  async take(url, what, label = null) {
    const image = new Image();
    image.src = url;
    await image.decode();
    this.clear();
    const [width, height] = [image.naturalWidth, image.naturalHeight];
    const side = Math.min(width, height); // the square in the middle
    const source = [image, (width - side) / 2, (height - side) / 2, side, side];
    this.pen.imageSmoothingEnabled = side > SIZE;
    this.pen.drawImage(...source, 0, 0, SIZE, SIZE);
    this.picture = url;
    if (width !== height || side > PHOTO) { // a photo: no more pixels than the network can use
      const made = element("canvas", { width: PHOTO, height: PHOTO });
      const pen = made.getContext("2d");
      pen.imageSmoothingQuality = "high";
      pen.drawImage(...source, 0, 0, PHOTO, PHOTO);
      this.picture = made.toDataURL("image/png");
    }
    this.isEmpty = false;
    this.label = label;
    this.describe(what);
    answerSoon();
  }

  // The drawing as the training data are. The 8x8 digits fill the height with thick strokes; MNIST's
  // fill 20 of 28 pixels, with their centre of mass in the middle. Strokes are drawn anew in the
  // right width: a tall 1 would be a hair otherwise.
  image() {
    if (this.picture) return this.picture;
    const like = state.side < 20 ? { box: 1, width: 0.78, line: 0.2 } : { box: 20 / 28, width: 20 / 28, line: 0.09 };
    const points = this.strokes.flat();
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const line = like.line * SIZE;
    const scale = Math.min(
      (like.box * SIZE - line) / Math.max(bottom - top, 1),
      (like.width * SIZE - line) / Math.max(right - left, 1),
      SIZE / 24, // a dot stays small
    );
    const made = element("canvas", { width: SIZE, height: SIZE });
    const pen = made.getContext("2d", { willReadFrequently: true });
    const draw = (x, y) => {
      Object.assign(pen, { fillStyle: "#000", strokeStyle: "#fff", lineWidth: line, lineCap: "round", lineJoin: "round" });
      pen.fillRect(0, 0, SIZE, SIZE);
      for (const stroke of this.strokes) {
        pen.beginPath();
        stroke.forEach((point, number) => {
          const to = [(point[0] - (left + right) / 2) * scale + x, (point[1] - (top + bottom) / 2) * scale + y];
          if (number === 0) { pen.moveTo(...to); pen.lineTo(to[0] + 0.01, to[1]); } else pen.lineTo(...to);
        });
        pen.stroke();
      }
    };
    draw(SIZE / 2, SIZE / 2);
    if (state.side >= 20) {
      const pixels = pen.getImageData(0, 0, SIZE, SIZE).data;
      let [mass, x, y] = [0, 0, 0];
      for (let place = 0; place < SIZE * SIZE; place += 1) {
        const ink = pixels[4 * place];
        mass += ink; x += ink * (place % SIZE); y += ink * Math.floor(place / SIZE);
      }
      draw(SIZE - x / mass, SIZE - y / mass);
    }
    return made.toDataURL("image/png");
  }

  // Right and wrong are said of samples only, whose class is known.
  show(place, answer) {
    place.className = "";
    if (!answer) { place.textContent = "–"; return; }
    place.replaceChildren(
      element("b", {}, answer.label), ` ${(100 * answer.probability).toFixed(0)} %`,
    );
    if (this.label === null || this.label === undefined) return;
    const isRight = answer.class === this.label;
    place.className = isRight ? "right" : "wrong";
    place.append(isRight ? " ✓" : " ✗");
  }
}

const pads = Array.from({ length: PADS }, (_, number) => new Pad(number + 1));
byId("pads").append(...pads.map((pad) => pad.figure));

// Answers come while one draws: at most one request at a time, and the last stroke is never missed.
let waiting = 0;
let answering = false;
function answerSoon() {
  if (waiting) return;
  waiting = setTimeout(async () => {
    waiting = 0;
    if (answering) { answerSoon(); return; }
    await answerAll();
  }, 150);
}

async function answerAll() {
  const busy = pads.filter((pad) => !pad.isEmpty);
  if (busy.length === 0) {
    byId("how").textContent = "All pads are empty: draw a digit, drop an image, or take a sample.";
    return;
  }
  answering = true;
  const images = busy.map((pad) => pad.image());
  const request = { images, model: state.model, timeout: 5000000 };
  try {
    const [together, alone, plain] = await Promise.all([
      ask("/v1/classify", { ...request, superpose: true }),
      ask("/v1/classify", { ...request, mode: "slow" }),
      state.plain ? ask("/v1/classify", { ...request, model: state.plain }) : null,
    ]);
    busy.forEach((pad, place) => {
      if (pad.isEmpty) return; // cleared meanwhile
      pad.show(pad.together, together.answers[place]);
      pad.show(pad.alone, alone.answers[place]);
      if (plain) pad.show(pad.plain, plain.answers[place]);
    });
    const words = (found) => found.answers.map((one) => one.label).join(", ");
    const milliseconds = ({ parameters: { queue_us: queue, compute_us: compute } }) =>
      ((queue + compute) / 1000).toFixed(1);
    const shared = together.answers[0].group_size;
    byId("how").textContent =
      `${words(together)} with ${shared} in one pass, ${milliseconds(together)} ms; ` +
      `${words(alone)} each alone, ${milliseconds(alone)} ms` +
      `${plain ? `; ${words(plain)} by the plain network, ${milliseconds(plain)} ms` : ""}.`;
  } catch (problem) {
    byId("how").textContent = `No answer: ${problem.message}`;
  } finally {
    answering = false;
  }
}

byId("answer").addEventListener("click", answerAll);
byId("clear").addEventListener("click", () => {
  pads.forEach((pad) => pad.clear());
  byId("how").textContent = "";
});
byId("samples").addEventListener("click", async () => {
  for (const pad of pads) await pad.takeSample();
});
async function takeFiles(files, first = 0) {
  for (const [place, file] of files.slice(0, PADS).entries()) {
    try {
      await pads[(first + place) % PADS].take(await dataUrl(file), `your file ${file.name}`);
    } catch {
      byId("how").textContent = `${file.name} is no image that can be shown: choose PNG or JPEG files.`;
    }
  }
}

byId("files").addEventListener("change", async () => {
  await takeFiles([...byId("files").files]);
  byId("files").value = ""; // the same files may be chosen again
});

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = byId("key").value;
  byId("key-form").hidden = true;
  start();
});

// Charts

const CHARTS = [
  { title: "Active streams per pass", lines: [["active_streams", "mean"]], least: 1, most: 4, digits: 1 },
  { title: "Latency, ms", lines: [["p50_ms", "median"], ["p99_ms", "p99"]], least: 0, digits: 0 },
  { title: "Requests a second", lines: [["throughput", "answered"], ["offered", "offered"]], least: 0, digits: 0 },
  { title: "Accuracy, %", lines: [["accuracy", "measured"]], band: ["low", "high"], most: 100, factor: 100, digits: 1 },
];
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [360, 150, 42, 18, 10];

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function makeChart(chart) {
  const caption = element("figcaption", {}, element("strong", {}, chart.title));
  chart.values = chart.lines.map(([, name], number) => {
    const text = element("span", { class: number ? "second-text" : "first-text" }, `${name} –`);
    caption.append(text);
    return text;
  });
  chart.picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  chart.picture.setAttribute("aria-label", `${chart.title} over the last minute; the table has the numbers`);
  return element("figure", { class: "chart" }, caption, chart.picture);
}

function drawChart(chart) {
  const factor = chart.factor ?? 1;
  const value = (reading, key) => (reading[key] === undefined ? NaN : reading[key] * factor);
  const keys = [...chart.lines.map(([key]) => key), ...(chart.band ?? [])];
  const all = state.readings.flatMap((reading) => keys.map((key) => value(reading, key))).filter(Number.isFinite);
  const most = Math.max(chart.most ?? 0, ...all, (chart.least ?? 0) + 1);
  const least = chart.least ?? Math.min(most - 2, Math.floor(Math.min(most, ...all)));
  const x = (place) => LEFT + (WIDTH - LEFT - 6) * (place + POINTS - state.readings.length) / (POINTS - 1);
  const y = (height) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (height - least) / (most - least));
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const level = least + share * (most - least);
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 6, y1: y(level), y2: y(level) }));
    const text = svg("text", { x: LEFT - 5, y: y(level) + 4, "text-anchor": "end" });
    text.textContent = level.toFixed(most - least < 10 ? 1 : 0);
    parts.push(text);
  }
  for (const [place, anchor, words] of [[LEFT, "start", "a minute ago"], [WIDTH - 6, "end", "now"]]) {
    const text = svg("text", { x: place, y: HEIGHT - 4, "text-anchor": anchor });
    text.textContent = words;
    parts.push(text);
  }
  if (chart.band) {
    const [low, high] = chart.band;
    const there = state.readings.map((reading, place) => [reading, place]).filter(([r]) => Number.isFinite(value(r, low)));
    const above = there.map(([r, place]) => `${x(place)},${y(value(r, high))}`);
    const below = there.map(([r, place]) => `${x(place)},${y(value(r, low))}`).reverse();
    if (there.length > 1) parts.push(svg("polygon", { class: "band", points: [...above, ...below].join(" ") }));
  }
  chart.lines.forEach(([key, name], number) => {
    let path = "";
    state.readings.forEach((reading, place) => {
      const height = value(reading, key);
      if (!Number.isFinite(height)) return;
      const before = state.readings[place - 1];
      const joined = before && Number.isFinite(value(before, key));
      path += `${joined ? "L" : "M"}${x(place).toFixed(1)} ${y(height).toFixed(1)}`;
    });
    parts.push(svg("path", { class: number ? "second" : "first", d: path }));
    const last = value(state.readings.at(-1) ?? {}, key);
    chart.values[number].textContent = `${name} ${Number.isFinite(last) ? last.toFixed(chart.digits) : "–"}`;
  });
  chart.picture.replaceChildren(...parts);
}

byId("charts").append(...CHARTS.map(makeChart));

const COLUMNS = [
  ["time", (r) => r.time],
  ["active streams", (r) => r.active_streams?.toFixed(1)],
  ["p50, ms", (r) => r.p50_ms?.toFixed(0)],
  ["p99, ms", (r) => r.p99_ms?.toFixed(0)],
  ["answered / s", (r) => r.throughput?.toFixed(0)],
  ["offered / s", (r) => r.offered?.toFixed(0)],
  ["accuracy, %", (r) => (r.accuracy === undefined ? undefined : (100 * r.accuracy).toFixed(1))],
];
byId("head").append(element("tr", {}, ...COLUMNS.map(([name]) => element("th", { scope: "col" }, name))));

function drawTable() {
  const rows = state.readings.slice(-10).reverse().map((reading) =>
    element("tr", {}, ...COLUMNS.map(([, show]) => element("td", {}, show(reading) ?? "–"))));
  byId("rows").replaceChildren(...rows);
}

function addReading(reading) {
  reading.time = new Date().toLocaleTimeString();
  state.readings.push(reading);
  if (state.readings.length > POINTS) state.readings.shift();
  CHARTS.forEach(drawChart);
  drawTable();
  // The load goes on when the page is loaded again, and others may change it.
  if (reading.rate !== undefined && Date.now() - changed > 2000) showRate(reading.rate);
}

// Server-sent events, read with fetch: an EventSource cannot send a key.
async function follow() {
  for (;;) {
    try {
      const response = await fetch("/v1/events", { headers: headers() });
      if (response.status === 401) { byId("key-form").hidden = false; return; }
      if (!response.ok) throw new Error(`status ${response.status}`);
      byId("status").textContent = `Connected to ${state.model}.`;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) addReading(JSON.parse(event.slice(6)));
      }
    } catch (problem) {
      byId("status").textContent = `Not connected: ${problem.message}. Trying again.`;
    }
    await new Promise((resolve) => { setTimeout(resolve, 2000); });
  }
}

let changing = 0;
let changed = 0; // when the slider was last moved
function showRate(rate) {
  byId("rate").value = rate;
  const share = state.slow ? `, ${Math.round(100 * rate / state.slow)} % of what slow mode can do` : "";
  byId("rate-text").textContent = `${rate} inputs a second${share}`;
}
byId("rate").addEventListener("input", () => {
  const rate = Number(byId("rate").value);
  changed = Date.now();
  showRate(rate);
  clearTimeout(changing);
  changing = setTimeout(() => {
    ask("/v1/demo/load", { rate }).catch((problem) => { byId("how").textContent = problem.message; });
  }, 150);
});

// Without a demo there is nothing to sample from.
function showDemo(demo) {
  pads.forEach((pad) => { pad.sample.hidden = !demo; });
  if (!demo) return;
  state.samples = demo.samples;
  state.plain = demo.plain?.model ?? "";
  state.slow = demo.capacity?.slow ?? 0;
  byId("rate").max = demo.max_rate;
  byId("rate").step = demo.step;
  byId("load").hidden = false;
  byId("samples").hidden = false;
  byId("network").textContent = demo.network ?? "";
  if (!state.plain) return;
  pads.forEach((pad) => pad.plainRow.forEach((part) => { part.hidden = false; }));
  byId("plain").textContent = `Plain is ${demo.plain.network}.`;
}

async function start() {
  try {
    const models = await ask("/v2/repository/index", {});
    if (models.length === 0) throw new Error("the models are being loaded");
    const demo = await ask("/v1/demo").catch(() => null);
    state.model = demo?.model ?? models[0].name;
    const described = await ask(`/v2/models/${state.model}`);
    state.side = described.inputs[0].shape.at(-1);
    state.colours = described.inputs[0].shape[1];
    if (state.colours > 1) byId("intro").textContent = "Drop a photo on each pad, choose files, or take samples.";
    showDemo(demo);
    const streams = described.parameters.modes.map((mode) => mode.active_streams);
    CHARTS[0].most = Math.max(...streams, 2);
  } catch (problem) {
    byId("status").textContent = `Not connected: ${problem.message}.`;
    if (byId("key-form").hidden) setTimeout(start, 1000);
    return;
  }
  follow();
}

CHARTS.forEach(drawChart);
start();
