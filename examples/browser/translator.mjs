// Translation with an exported model, in the browser and in Node.
import { AutoModelForSeq2SeqLM, AutoTokenizer } from "@huggingface/transformers";

// Open an exported folder: "q8" reads its int8 graphs, "fp32" its float32 graphs.
export async function load(folder, dtype) {
  const [tokenizer, model] = await Promise.all([
    AutoTokenizer.from_pretrained(folder),
    AutoModelForSeq2SeqLM.from_pretrained(folder, { dtype }),
  ]);
  return { tokenizer, model };
}

// The ids of greedy search, with the start and the end.
export async function translatedIds({ tokenizer, model }, sentence) {
  const output = await model.generate(tokenizer(sentence));
  return output.tolist()[0].map(Number);
}

// Translate a sentence.
export async function translate(loaded, sentence) {
  const ids = await translatedIds(loaded, sentence);
  return loaded.tokenizer.decode(ids, { skip_special_tokens: true });
}
