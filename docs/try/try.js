// Shipped networks on this device: pads to draw on, one operating point or another, and their speed.

const PADS = 4;
const SIZE = 160; // pixels of a pad
const SIDE = 8; // of the networks' images
const BATCH = 64;
const ROUNDS = 3;
const KINDS = {
  "digits-keys": ["keys", "digits are bound and added up (the paper's method)"],
  digits: ["tiles", "digits are shrunk and placed side by side, nothing is added up"],
  "digits-plain": ["plain", "one digit per pass, for the cost of keys at the fast point"],
};

const byId = (id) => document.getElementById(id);
const bytes = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

let ort;
let data; // what tools/browser.py wrote
let digits; // pixels of the test digits
const chosen = { network: null, point: null };

// Networks

const title = (point) => ({ 1: "slow", 2: "normal", 4: "fast" })[point.active];

async function open(network) {
  const weights = await bytes(`${network.name}/weights.bin`);
  for (const point of network.points) {
    const graph = await bytes(`${network.name}/${point.graph}`);
    point.session = await ort.InferenceSession.create(graph, {
      externalData: [{ path: "weights.bin", data: weights }],
    });
  }
}

// Whole groups: images left over share their last pass with copies of themselves.
async function answer(network, point, images) {
  const count = Math.ceil(images.length / point.active) * point.active;
  const input = new Float32Array(count * SIDE * SIDE);
  for (let place = 0; place < count; place += 1) {
    const image = images[place < images.length ? place : images.length - 1 - (place % images.length)];
    for (let pixel = 0; pixel < SIDE * SIDE; pixel += 1) {
      input[place * SIDE * SIDE + pixel] = (image[pixel] - network.mean) / network.deviation;
    }
  }
  const { answers } = await point.session.run({ inputs: new ort.Tensor("float32", input, [count, 1, SIDE, SIDE]) });
  return images.map((_, place) => {
    const logits = answers.data.slice(place * 10, place * 10 + 10);
    const label = logits.indexOf(Math.max(...logits));
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit - logits[label]), 0);
    return { label, probability: 1 / total };
  });
}

function choices(place, name, options, describe, choose) {
  place.querySelectorAll("label").forEach((label) => label.remove());
  for (const option of options) {
    const input = element("input", { type: "radio", name });
    input.checked = option === chosen[name];
    input.addEventListener("change", () => choose(option));
    place.append(element("label", {}, input, ` ${describe(option)}`));
  }
}

function chooseNetwork(network) {
  chosen.network = network;
  choices(byId("networks"), "network", data.networks, (one) => KINDS[one.name].join(": "), chooseNetwork);
  const active = Math.min(chosen.point?.active ?? 4, network.points.at(-1).active);
  choosePoint(network.points.find((point) => point.active === active));
}

function choosePoint(point) {
  chosen.point = point;
  const say = (one) => chosen.network.points.length === 1
    ? `1 digit per pass, ${(100 * one.accuracy).toFixed(1)} % right`
    : `${title(one)}: ${one.active} per pass, ${(100 * one.accuracy).toFixed(1)} % right`;
  choices(byId("points"), "point", chosen.network.points, say, choosePoint);
  answerPads();
}

// Pads

class Pad {
  constructor(number) {
    this.number = number;
    this.canvas = element("canvas", { width: SIZE, height: SIZE, role: "img" });
    this.answer = element("dd");
    const answers = element("dl", {}, element("dt", {}, "answer"), this.answer);
    this.figure = element("figure", { class: "pad" }, this.canvas, answers);
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.clear();
    let drawing = false;
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top].map((at) => at * SIZE / box.width);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (this.sample !== null) this.clear();
      this.canvas.setPointerCapture(event.pointerId);
      drawing = true;
      this.strokes.push([]);
      this.stroke(place(event));
    });
    this.canvas.addEventListener("pointermove", (event) => { if (drawing) this.stroke(place(event)); });
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { drawing = false; });
  }

  clear() {
    this.strokes = [];
    this.sample = null; // the number of a test digit
    this.answer.textContent = "–";
    this.draw((point) => point, SIZE / 9);
    this.canvas.setAttribute("aria-label", `Pad ${this.number}: empty, draw a digit or take samples`);
  }

  draw(move, line) {
    const { pen } = this;
    Object.assign(pen, { fillStyle: "#000", strokeStyle: "#fff", lineWidth: line, lineCap: "round", lineJoin: "round" });
    pen.fillRect(0, 0, SIZE, SIZE);
    for (const stroke of this.strokes) {
      pen.beginPath();
      for (const [x, y] of [stroke[0], ...stroke].map(move)) pen.lineTo(x + 0.01, y);
      pen.stroke();
    }
  }

  stroke(to) {
    this.strokes.at(-1).push(to);
    this.draw((point) => point, SIZE / 9);
    this.canvas.setAttribute("aria-label", `Pad ${this.number}: your drawing`);
    answerPads();
  }

  take(sample) {
    this.clear();
    this.sample = sample;
    const cell = SIZE / SIDE;
    this.pixels().forEach((value, place) => {
      this.pen.fillStyle = `rgb(${value} ${value} ${value})`;
      this.pen.fillRect((place % SIDE) * cell, Math.floor(place / SIDE) * cell, cell, cell);
    });
    this.canvas.setAttribute("aria-label", `Pad ${this.number}: a sample of ${data.labels[sample]}`);
  }

  // As the training data are: the strokes fill the height and are thick, and every pixel is the mean of its cell.
  pixels() {
    if (this.sample !== null) return digits.subarray(SIDE * SIDE * this.sample, SIDE * SIDE * (this.sample + 1));
    const [xs, ys] = [0, 1].map((axis) => this.strokes.flat().map((point) => point[axis]));
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const line = 0.2 * SIZE;
    const scale = Math.min(
      (SIZE - line) / Math.max(bottom - top, 1),
      (0.78 * SIZE - line) / Math.max(right - left, 1),
      SIZE / 24, // a dot stays small
    );
    this.draw(([x, y]) => [(x - (left + right) / 2) * scale + SIZE / 2, (y - (top + bottom) / 2) * scale + SIZE / 2], line);
    const ink = this.pen.getImageData(0, 0, SIZE, SIZE).data;
    this.draw((point) => point, SIZE / 9);
    const cell = SIZE / SIDE;
    const found = new Float32Array(SIDE * SIDE);
    for (let place = 0; place < SIZE * SIZE; place += 1) {
      const [x, y] = [place % SIZE, Math.floor(place / SIZE)];
      found[Math.floor(y / cell) * SIDE + Math.floor(x / cell)] += ink[4 * place] / cell ** 2;
    }
    return found;
  }

  // Right and wrong are said of samples only, whose class is known.
  show({ label, probability }) {
    this.answer.replaceChildren(element("b", {}, String(label)), ` ${(100 * probability).toFixed(0)} %`);
    this.answer.className = "";
    if (this.sample === null) return;
    const isRight = label === data.labels[this.sample];
    this.answer.className = isRight ? "right" : "wrong";
    this.answer.append(isRight ? " ✓" : " ✗");
  }
}

const pads = Array.from({ length: PADS }, (_, number) => new Pad(number + 1));
byId("pads").append(...pads.map((pad) => pad.figure));

// One answer at a time; what changed meanwhile is answered next.
let answering = false;
let again = false;
async function answerPads() {
  again = true;
  if (answering) return;
  answering = true;
  while (again) {
    again = false;
    const busy = pads.filter((pad) => pad.sample !== null || pad.strokes.length);
    if (busy.length === 0) continue;
    const { network, point } = chosen;
    const started = performance.now();
    const found = await answer(network, point, busy.map((pad) => pad.pixels()));
    const took = performance.now() - started;
    if (again) continue;
    busy.forEach((pad, place) => pad.show(found[place]));
    byId("how").textContent =
      `${found.map((one) => one.label).join(", ")}, by ${KINDS[network.name][0]} (${network.name}), ` +
      `${point.active} digit${point.active > 1 ? "s" : ""} per pass, in ${took.toFixed(1)} ms.`;
  }
  answering = false;
}

let next = 0;
byId("samples").addEventListener("click", () => {
  for (const pad of pads) {
    pad.take(next % data.labels.length);
    next += 1;
  }
  answerPads();
});
byId("clear").addEventListener("click", () => {
  pads.forEach((pad) => pad.clear());
  byId("how").textContent = "";
});

// Speed

async function measure() {
  const images = data.labels.map((_, place) => digits.subarray(SIDE * SIDE * place, SIDE * SIDE * (place + 1)));
  const runs = data.networks.flatMap((network) => network.points.map((point) => ({ network, point, seconds: Infinity })));
  for (let round = 0; round <= ROUNDS; round += 1) { // the first one warms up
    byId("measure").textContent = `Measuring, round ${round} of ${ROUNDS}`;
    for (const run of runs) {
      await new Promise((go) => { setTimeout(go); }); // the page stays alive
      let right = 0;
      const started = performance.now();
      for (let first = 0; first < images.length; first += BATCH) {
        const found = await answer(run.network, run.point, images.slice(first, first + BATCH));
        right += found.filter((one, place) => one.label === data.labels[first + place]).length;
      }
      if (round) run.seconds = Math.min(run.seconds, (performance.now() - started) / 1000);
      run.right = right;
    }
  }
  byId("table").hidden = false;
  byId("rows").replaceChildren(...runs.map(({ network, point, seconds, right }) => element(
    "tr", {},
    element("td", {}, `${KINDS[network.name][0]} (${network.name})`),
    element("td", {}, String(point.active)),
    element("td", {}, `${(100 * right / images.length).toFixed(1)} %`),
    element("td", {}, Math.round(images.length / seconds).toLocaleString("en")),
  )));
}

byId("measure").addEventListener("click", async () => {
  byId("measure").disabled = true;
  await measure();
  byId("measure").disabled = false;
  byId("measure").textContent = "Measure again";
});

async function start() {
  try {
    ort = await import("./ort/ort.wasm.min.mjs");
  } catch {
    byId("status").textContent =
      "ONNX Runtime is missing here: run make docs in a clone where npm is installed, " +
      "then python -m http.server -d site, and open http://127.0.0.1:8000/try/.";
    return;
  }
  try {
    ort.env.wasm.numThreads = 1;
    data = await (await fetch("data.json")).json();
    digits = Uint8Array.from(atob(data.digits), (letter) => letter.charCodeAt(0));
    for (const network of data.networks) await open(network); // in turn: all call their weights the same
  } catch (problem) {
    byId("status").textContent = `The networks cannot be loaded: ${problem.message}`;
    return;
  }
  byId("status").textContent = "Ready: everything runs on this device, also offline.";
  byId("main").hidden = false;
  chooseNetwork(data.networks[0]);
}

start();
