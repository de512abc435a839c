/* The page: hands texts to the worker, shows what comes back, saves it as CSV. */
const element = (id) => document.getElementById(id);
const status = (text) => { element("status").textContent = text; };
const SHOWN = 200;
let asked = [], texts = [], answers = [], model = { labels: [] }, job = 0;

function problem(text) {
  element("problem").textContent = text;
  element("problem").hidden = false;
  status("");
}

const worker = new Worker("worker.mjs", { type: "module" });
worker.onerror = (event) => problem(event.message || "the page's files could not be read; copy the whole folder");
worker.onmessage = ({ data }) => {
  if (data.error) {
    problem(data.error);
    element("classify").disabled = !model.labels.length;
  } else if (data.ready) {
    model = data.ready;
    const { labels } = model;
    element("early-choice").hidden = !model.rule;
    status(`Ready. Labels: ${labels.slice(0, 12).join(", ")}${labels.length > 12 ? ` and ${labels.length - 12} more` : ""}.`);
    element("classify").disabled = false;
  } else if (data.read) {
    status(`Loading the model: ${(data.read / 2 ** 20).toFixed(1)} MiB.`);
  } else if (data.id === job && data.answers) {
    [texts, answers] = [asked, data.answers];
    show(data.ms);
  } else if (data.id === job) {
    status(`${data.done.toLocaleString()} of ${data.of.toLocaleString()}`);
  }
};
element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  asked = element("texts").value.replace(/\n$/, "").split("\n");
  if (!asked.some((text) => text.trim())) return problem("There is no text yet: type one.");
  element("problem").hidden = true;
  element("classify").disabled = true;
  worker.postMessage({ id: ++job, texts: asked, exits: element("early").checked });
});
element("file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  if (!file) return;
  try {
    element("texts").value = await read(file);
    element("problem").hidden = true;
  } catch (error) {
    target.value = "";
    problem(error.message);
  }
});
element("save").addEventListener("click", save);

async function read(file) {
  if (/\.(csv|tsv|tab|jsonl?|ndjson)$/i.test(file.name)) {
    throw new Error(`${file.name} is a table, and this page reads one text a line; paste the column of texts, or use recurra predict`);
  }
  const content = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content);
    if (!text.includes("\0")) return text;
  } catch { /* told below */ }
  throw new Error(`${file.name} is not UTF-8; save it as UTF-8`);
}

const label = ({ label }) => (label === null ? "(not sure)" : Array.isArray(label) ? label.join(", ") || "(none)" : label);

/** Of the label that is given; named where there may be several, or none and it is that of the nearest. */
function probability({ label, probabilities }) {
  const percent = (name) => `${(100 * probabilities[name]).toFixed(1)}\u00a0%`;
  if (typeof label === "string") return percent(label);
  const nearest = model.labels.reduce((best, name) => (probabilities[name] > probabilities[best] ? name : best));
  return (label?.length ? label : [nearest]).map((name) => `${name} ${percent(name)}`).join(", ");
}

function show(ms) {
  const body = element("results").tBodies[0];
  body.replaceChildren(...answers.slice(0, SHOWN).map((answer, index) => {
    const row = document.createElement("tr");
    for (const value of [texts[index], label(answer), probability(answer)]) {
      row.insertCell().textContent = value;
    }
    row.cells[0].dir = "auto";
    return row;
  }));
  const more = answers.length > SHOWN ? ` The first ${SHOWN} are shown; the CSV file has all.` : "";
  const empty = texts.filter((text) => !text.trim()).length;
  const taken = answers.reduce((sum, answer) => sum + answer.recurrences, 0) / answers.length;
  const early = taken < model.recurrences ? ` On average ${taken.toFixed(2)} of ${model.recurrences} recurrences.` : "";
  const long = answers.filter((answer) => answer.cut).length;
  const cut = long ? ` Too long for the model, and cut: ${long.toLocaleString()}.` : "";
  const count = `${answers.length.toLocaleString()} ${answers.length === 1 ? "text" : "texts"}${empty ? ` (${empty.toLocaleString()} empty)` : ""}`;
  status(`${count} in ${(ms / 1000).toFixed(2)} s.${early}${cut}${more}`);
  element("results").hidden = element("save").hidden = false;
  element("classify").disabled = false;
}

function save() {
  const { labels, separator } = model;
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = answers.map((answer, index) => {
    const several = Array.isArray(answer.label);
    const own = several && separator === "json" ? `[${answer.label.map((name) => JSON.stringify(name)).join(", ")}]` : several ? answer.label.join(separator) : answer.label ?? "";
    return [texts[index], own, ...labels.map((name) => String(answer.probabilities[name]))].map(cell).join(",");
  });
  const head = ["text", "label", ...labels.map((name) => `probability_${name}`)].map(cell).join(",");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([[head, ...lines].join("\r\n"), "\r\n"], { type: "text/csv;charset=utf-8" }));
  link.download = "labels.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}
