// The model, beside the page's thread, so that the page can draw while it computes.
import { env } from "@huggingface/transformers";
import { load, translate } from "./translator.mjs";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = new URL("../models/", import.meta.url).pathname;
env.backends.onnx.wasm.wasmPaths = new URL("./", import.meta.url).href;
// Several threads need a server that isolates the page.
env.backends.onnx.wasm.numThreads = self.crossOriginIsolated ? navigator.hardwareConcurrency : 1;

const sentencesOf = new Intl.Segmenter("en", { granularity: "sentence" });
const started = performance.now();
const loading = load("aiayn-en-de", "q8");
loading.then(
  () => postMessage({ loaded: performance.now() - started }),
  (error) => postMessage({ failed: error.message }),
);

// Translate line by line. Each message is the text so far, and the last one is marked.
async function translateText(text, request) {
  const model = await loading;
  const started = performance.now();
  let [output, words] = ["", 0];
  for (const [index, line] of text.split("\n").entries()) {
    if (index > 0) output += "\n";
    for (const { segment } of sentencesOf.segment(line)) {
      if (!segment.trim()) continue;
      const isFirst = output === "" || output.endsWith("\n");
      output += (isFirst ? "" : " ") + (await translate(model, segment.trim()));
      words += segment.trim().split(/\s+/).length;
      postMessage({ request, output });
    }
  }
  postMessage({ request, output, words, milliseconds: performance.now() - started });
}

// One text after another: a model cannot run twice at the same time.
let last = Promise.resolve();
onmessage = ({ data: { text, request } }) => {
  last = last
    .then(() => translateText(text, request))
    .catch((error) => postMessage({ request, failed: error.message }));
};
