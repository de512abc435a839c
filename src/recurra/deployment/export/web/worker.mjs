/* Keeps the computation off the page's own thread. */
import { Classifier } from "./recurra.mjs";

let classifier;

async function load() {
  let read = 0;
  classifier = await Classifier.load(new URL("./", import.meta.url), (bytes) => {
    read += bytes;
    postMessage({ read });
  });
  const { labels, decision, recurrences, rule } = classifier;
  postMessage({ ready: { labels, separator: decision.separator, recurrences, rule } });
}

onmessage = async ({ data: { id, texts, exits } }) => {
  try {
    const started = performance.now();
    const answers = await classifier.classify(texts, {
      exits,
      progress: (done, of) => postMessage({ id, done, of }),
    });
    postMessage({ id, answers, ms: performance.now() - started });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};

load().catch((error) => postMessage({ error: error.message }));
