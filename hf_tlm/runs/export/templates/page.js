// The page: a box for a text, and a bar for the probability of every class.
import { load } from "./model.js";

const at = (id) => document.getElementById(id);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

// Sizes of the files that came over the network or from the browser's cache. A browser does not tell the sizes of files from
// another server, such as the Hub: that of the model is in the record of the export.
function loaded(files) {
  let [runtime, others] = [0, 0];
  for (const { name, encodedBodySize } of performance.getEntriesByType("resource")) {
    if (name.endsWith(".wasm")) runtime += encodedBodySize;
    else others += encodedBodySize || files[name.match(/onnx\/[^/]+$/)?.[0]]?.bytes || 0;
  }
  return `${megabytes(others)} loaded, plus ${megabytes(runtime)} of runtime`;
}

function bar(name, share) {
  const row = document.createElement("div");
  const [label, track, value] = ["span", "meter", "output"].map((tag) => row.appendChild(document.createElement(tag)));
  label.textContent = name;
  track.ariaLabel = name;
  track.value = share;
  value.textContent = `${(100 * share).toFixed(1)}%`;
  return row;
}

async function start() {
  const began = performance.now();
  const { page, names, files, classify } = await load();
  document.title = at("title").textContent = page.title;
  at("pair").hidden = !page.pairs;
  at("footprint").textContent = `${loaded(files)}, ready after ${((performance.now() - began) / 1000).toFixed(1)} s`;
  let [running, again] = [false, false];

  async function answer() {
    if (running) return void (again = true);
    running = true;
    do {
      again = false;
      const text = at("text").value;
      if (!text.trim() || (page.pairs && !at("pair").value.trim())) {
        at("bars").replaceChildren();
        at("time").textContent = "";
        continue;
      }
      const before = performance.now();
      try {
        const shares = await classify(text, page.pairs ? at("pair").value : null);
        const order = names.map((_, index) => index).sort((a, b) => shares[b] - shares[a]);
        at("time").textContent = `${(performance.now() - before).toFixed(1)} ms`;
        at("bars").replaceChildren(...order.map((index) => bar(names[index], shares[index])));
      } catch (error) {
        at("bars").replaceChildren();
        at("time").textContent = `This text cannot be classified: ${error.message}`;
      }
    } while (again);
    running = false;
  }

  for (const text of page.texts) {
    const button = at("examples").appendChild(document.createElement("button"));
    button.textContent = text;
    button.addEventListener("click", () => {
      at("text").value = text;
      answer();
    });
  }
  for (const id of ["text", "pair"]) at(id).addEventListener("input", answer);
  at("text").disabled = at("pair").disabled = false;
  await answer();
  document.body.dataset.ready = "true";
  // The first answer takes some tenths of a second longer to compile, so it is computed while the user reads or types.
  if (!at("text").value) setTimeout(() => classify("a", page.pairs ? "a" : null).catch(() => {}), 50);
}

start().catch((error) => {
  at("footprint").textContent = `The model could not be loaded: ${error.message}`;
  document.body.dataset.ready = "failed";
});
