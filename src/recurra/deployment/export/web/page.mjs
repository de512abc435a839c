/* The page: hands texts to the worker, shows what comes back, saves it as CSV. */
const element = (id) => document.getElementById(id);
const status = (text) => { element("status").textContent = text; };
const SHOWN = 200;
let asked = [], texts = [], answers = [], labels = [], separator, job = 0;

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
    element("classify").disabled = !labels.length;
  } else if (data.ready) {
    ({ labels, separator } = data.ready);
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
  asked = element("texts").value.split(/\r\n|\r|\n/).filter((text) => text.trim());
  if (!asked.length) return;
  element("problem").hidden = true;
  element("classify").disabled = true;
  worker.postMessage({ id: ++job, texts: asked });
});
element("file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) element("texts").value = await file.text();
});
element("save").addEventListener("click", save);
const label = ({ label }) => (label === null ? "(not sure)" : Array.isArray(label) ? label.join(", ") || "(none)" : label);
const highest = ({ probabilities }) => Math.max(...Object.values(probabilities));

function show(ms) {
  const body = element("results").tBodies[0];
  body.replaceChildren(...answers.slice(0, SHOWN).map((answer, index) => {
    const row = document.createElement("tr");
    for (const value of [texts[index], label(answer), `${(100 * highest(answer)).toFixed(1)} %`]) {
      row.insertCell().textContent = value;
    }
    row.cells[0].dir = "auto";
    return row;
  }));
  const more = answers.length > SHOWN ? ` The first ${SHOWN} are shown; the CSV file has all.` : "";
  status(`${answers.length.toLocaleString()} ${answers.length === 1 ? "text" : "texts"} in ${(ms / 1000).toFixed(2)} s.${more}`);
  element("results").hidden = element("save").hidden = false;
  element("classify").disabled = false;
}

function save() {
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
