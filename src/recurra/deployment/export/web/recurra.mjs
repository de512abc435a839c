/* Classifies texts with an exported model, in the browser, as the Python package does: the same cleaning, tokens,
 * windows, exits, temperature and thresholds. Nothing leaves the page.
 *
 *   import { Classifier } from "./recurra.mjs";
 *   const classifier = await Classifier.load(new URL("./", location));
 *   const [answer] = await classifier.classify(["a warm and funny film"]);
 */
import * as ort from "./ort.mjs";
import { Tokenizer } from "./tokenizers.mjs";

const BATCH_TOKENS = 512; // with padding; more gains nothing in one thread
const NEVER = 2; // no probability reaches it
// A module with one SIMD instruction.
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);

export class Classifier {
  /** Reads the folder at `base`, a URL that ends in a slash. Calls `progress(bytes)` while the model comes in. */
  static async load(base, progress = () => {}) {
    if (typeof WebAssembly !== "object" || !WebAssembly.validate(SIMD)) {
      throw new Error("this browser has no WebAssembly with SIMD; use a release of 2023 or later");
    }
    const file = (name) => new URL(name, base);
    const [manifest, config, settings, tokenizer, tokenizerConfig, runtime, model] = await Promise.all([
      json(file("export.json")),
      json(file("config.json")),
      json(file("web.json")),
      json(file("tokenizer.json")),
      json(file("tokenizer_config.json")),
      bytes(file("ort-wasm.gz")).then(unpack),
      bytes(file("model.onnx"), progress),
    ]);
    ort.env.wasm.numThreads = 1; // threads need headers that a file host does not send
    ort.env.wasm.wasmBinary = runtime;
    const session = await ort.InferenceSession.create(model, {
      executionProviders: ["wasm"],
      extra: { optimization: { disable_specified_optimizers: "SkipLayerNormFusion" } },
    });
    return new Classifier(manifest, config, settings, new Tokenizer(tokenizer, tokenizerConfig), session);
  }

  constructor(manifest, config, settings, tokenizer, session) {
    this.labels = manifest.label_names;
    this.maxLength = manifest.max_length;
    this.windows = manifest.windows ?? 1;
    this.pad = BigInt(manifest.pad_token_id);
    this.decision = manifest.decision ?? { kind: "exclusive", temperature: 1, abstain_below: null };
    this.recurrences = config.num_recurrences ?? 1;
    this.exits = config.exits ?? [];
    this.rule = manifest.exits?.rule ?? null;
    /** As the training texts were cleaned. */
    this.clean = cleaner(settings);
    this.tokenizer = tokenizer;
    this.session = session;
    [this.before, this.after] = addedTokens(tokenizer);
  }

  /** Rows of token ids of a cleaned text: one, or as many windows as it takes and the model may read. */
  encode(text) {
    return this.#read(text).rows;
  }

  #read(text) {
    const room = this.maxLength - this.before.length - this.after.length;
    const all = this.tokenizer.encode(text, { add_special_tokens: false }).ids;
    const ids = all.slice(0, this.windows * room);
    const count = Math.max(1, Math.ceil(ids.length / room));
    const bound = (index) => Math.floor((index * ids.length) / count);
    const rows = Array.from({ length: count }, (_, index) => [
      ...this.before,
      ...ids.slice(bound(index), bound(index + 1)),
      ...this.after,
    ]);
    return { rows, cut: ids.length < all.length };
  }

  /**
   * Classifies texts, in order. Each answer has `label` (null where the model abstains, a list where a text has any
   * number of labels), `probabilities` by label, `cut`, whether the text is longer than the model reads, and
   * `recurrences`, how many were computed: with `exits` a text stops early where the rule of the export lets it.
   */
  async classify(texts, { exits = false, progress = () => {} } = {}) {
    const rows = [];
    const cuts = texts.map((text, owner) => {
      const read = this.#read(this.clean(text));
      rows.push(...read.rows.map((ids) => ({ owner, ids })));
      return read.cut;
    });
    const logits = texts.map(() => new Float64Array(this.labels.length));
    const counts = texts.map(() => 0);
    const taken = texts.map(() => this.recurrences);
    rows.sort((one, other) => one.ids.length - other.ids.length);
    let done = 0;
    for (let start = 0, end; start < rows.length; start = end) {
      end = start + 1;
      while (end < rows.length && (end + 1 - start) * rows[end].ids.length <= BATCH_TOKENS) end += 1;
      const part = rows.slice(start, end);
      const output = await this.#run(part.map((row) => row.ids), exits && this.windows === 1 ? this.rule : null);
      part.forEach(({ owner }, row) => {
        counts[owner] += 1;
        this.labels.forEach((_, label) => {
          logits[owner][label] += output.logits.data[row * this.labels.length + label];
        });
        if (output.exited_after) taken[owner] = Number(output.exited_after.data[row]);
      });
      progress((done += part.length), rows.length);
    }
    return logits.map((sums, index) => ({
      ...this.decide(Array.from(sums, (sum) => Math.fround(sum / counts[index]))),
      cut: cuts[index],
      recurrences: taken[index],
    }));
  }

  async #run(rows, rule) {
    const length = Math.max(...rows.map((row) => row.length));
    const ids = new BigInt64Array(rows.length * length).fill(this.pad);
    const mask = new BigInt64Array(rows.length * length);
    rows.forEach((row, index) =>
      row.forEach((id, position) => {
        ids[index * length + position] = BigInt(id);
        mask[index * length + position] = 1n;
      }),
    );
    const shape = [rows.length, length];
    const feeds = {
      input_ids: new ort.Tensor("int64", ids, shape),
      attention_mask: new ort.Tensor("int64", mask, shape),
    };
    const wanted = ["logits"];
    if (this.exits.length) {
      const bounds = this.exits.map((number) => (rule ? bound(rule, number) : [Infinity, -1]));
      feeds.exit_confidences = new ort.Tensor("float32", Float32Array.from(bounds, (pair) => pair[0]));
      feeds.exit_entropies = new ort.Tensor("float32", Float32Array.from(bounds, (pair) => pair[1]));
      if (rule) wanted.push("exited_after");
    }
    return this.session.run(feeds, wanted);
  }

  /** What the logits of a text mean. */
  decide(logits) {
    const { kind, temperature, thresholds, abstain_below: bounds } = this.decision;
    const scores = logits.map((logit) => logit / temperature);
    if (kind !== "exclusive" && thresholds) {
      const probabilities = scores.map((score) => 1 / (1 + Math.exp(-score)));
      const label = this.labels.filter((_, index) => probabilities[index] >= thresholds[index]);
      return { label, probabilities: this.#named(probabilities) };
    }
    const most = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - most));
    const total = powers.reduce((sum, power) => sum + power, 0);
    const probabilities = powers.map((power) => power / total);
    const best = logits.indexOf(Math.max(...logits));
    const abstains = bounds && probabilities[best] < bounds[best];
    return { label: abstains ? null : this.labels[best], probabilities: this.#named(probabilities) };
  }

  #named(probabilities) {
    return Object.fromEntries(this.labels.map((label, index) => [label, probabilities[index]]));
  }
}

/** A cleaning by its steps, which the export has in web.json; `space` is what Python counts as white space. */
export function cleaner({ nfc, lower, tag, url, keepSoleUrl, repeated, space }) {
  const all = (source) => new RegExp(source, "gu");
  const [spaces, edges] = [all(`[${space}]+`), all(`^[${space}]+|[${space}]+$`)];
  const [tags, urls, marks] = [all(tag), all(url), all(repeated)];
  const collapse = (text) => text.replace(edges, "").replace(spaces, " ");
  const blank = (text) => text.replace(spaces, "") === "";
  return (text) => {
    if (!lower) return blank(text) ? "" : text;
    if (nfc) text = text.normalize("NFC");
    text = collapse(text).toLowerCase();
    if (text.includes("<")) text = text.replace(tags, " ");
    if (text.includes("http") || text.includes("www.")) {
      const without = text.replace(urls, " ");
      if (!(keepSoleUrl && blank(without))) text = without;
    }
    return collapse(text.replace(marks, "$1"));
  };
}

/** Least confidence and most entropy with which a text leaves at an exit. */
function bound(rule, number) {
  if (rule.rule === "confidence") return [Math.max(rule.floor, rule.start * rule.decay ** number), -1];
  if (rule.rule === "entropy") return [NEVER, rule.threshold];
  if (rule.rule === "fixed") return [number >= rule.after ? 0 : NEVER, -1];
  return [NEVER, -1]; // a rule that the graph cannot compare: all recurrences
}

/** Tokens before and behind every text. */
function addedTokens(tokenizer) {
  const plain = tokenizer.encode("a", { add_special_tokens: false }).ids;
  const whole = tokenizer.encode("a").ids;
  const start = whole.findIndex((_, index) => plain.every((id, offset) => whole[index + offset] === id));
  return [whole.slice(0, start), whole.slice(start + plain.length)];
}

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url.pathname}: ${response.status} ${response.statusText}; copy the whole folder`);
  return response;
}

const json = async (url) => (await fetched(url)).json();

async function bytes(url, progress = () => {}) {
  const response = await fetched(url);
  const parts = [];
  for (let reader = response.body.getReader(), part; !(part = await reader.read()).done; ) {
    parts.push(part.value);
    progress(part.value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Unpacks gzip, unless the server did. */
async function unpack(data) {
  if (data[0] !== 0x1f || data[1] !== 0x8b) return data;
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
