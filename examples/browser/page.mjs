// The form: sends the text to the worker, and shows what comes back.
const [form, text, output, state] = ["form", "text", "output", "state"].map((id) =>
  document.getElementById(id),
);
const button = form.querySelector("button");
const worker = new Worker("vendor/worker.js", { type: "module" });
let request = 0;

worker.onerror = () => fail("The program did not load. Run: npm run build");
worker.onmessage = ({ data }) => {
  if (data.loaded !== undefined) {
    button.disabled = false;
    state.textContent = `The model loaded in ${(data.loaded / 1000).toFixed(1)} s.`;
  } else if (data.failed !== undefined) {
    fail(data.failed);
    button.disabled = data.request === undefined; // of a text, not of loading: try another one
  } else if (data.request === request) {
    output.textContent = data.output;
    if (data.milliseconds !== undefined) finish(data);
  }
};

function finish({ words, milliseconds }) {
  button.disabled = false;
  const seconds = milliseconds / 1000;
  state.textContent = `${words} words in ${seconds.toFixed(2)} s: ${Math.round(words / seconds)} a second.`;
}

function fail(message) {
  state.textContent = message;
  state.classList.add("error");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  request += 1;
  button.disabled = true;
  output.textContent = "";
  state.classList.remove("error");
  state.textContent = "Translating …";
  worker.postMessage({ text: text.value, request });
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !button.disabled) form.requestSubmit();
});
