/* Keeps the computation off the page's own thread. */
import { Classifier } from "./recurra.mjs";

let classifier;

async function load() {
  let read = 0;
  classifier = await Classifier.load(new URL("./", import.meta.url), (bytes) => {
    read += bytes;
    postMessage({ read });
  });
  postMessage({ ready: { labels: classifier.labels, separator: classifier.decision.separator } });
}

onmessage = async ({ data: { id, texts } }) => {
  try {
    const started = performance.now();
    const answers = await classifier.classify(texts, {
      progress: (done, of) => postMessage({ id, done, of }),
    });
    postMessage({ id, answers, ms: performance.now() - started });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};

load().catch((error) => postMessage({ error: error.message }));
