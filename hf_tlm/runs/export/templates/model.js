// Runs the exported model in the browser with transformers.js: computes token ids and probabilities of texts.
import { AutoModelForSequenceClassification, PreTrainedTokenizer, Tensor, env, softmax } from "@huggingface/transformers";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.useBrowserCache = false;
env.useWasmCache = false;
env.backends.onnx.wasm.numThreads = 1;
env.backends.onnx.wasm.wasmPaths = { wasm: new URL("./vendor/ort-wasm-simd-threaded.wasm", import.meta.url).href };

async function json(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} (${response.status})`);
  return response.json();
}

// Number of tokens of two texts that tokenizers in Python keep if both must fit into `room`: the longer one is cut first.
function shares(first, second, room) {
  if (first + second <= room) return [first, second];
  let [short, long] = first > second ? [second, first] : [first, second];
  long = short > room ? short : Math.max(short, room - short);
  if (short + long > room) [short, long] = [Math.floor(room / 2), room - Math.floor(room / 2)];
  return first > second ? [long, short] : [short, long];
}

// Makes a tokenizer lower-case Greek as in Python. At the end of a word, toLowerCase converts a capital sigma to a final
// sigma, which tokenizers in Python never do; so the capital sigma is replaced separately, before all other letters.
export function loweredAsInPython(words) {
  const sigma = { type: "Replace", pattern: { String: "\u03a3" }, content: "\u03c3" };
  const steps = (one) => {
    if (one?.type === "Sequence") return one.normalizers.flatMap(steps);
    return one?.type === "Lowercase" || (one?.type === "BertNormalizer" && one.lowercase) ? [sigma, one] : [one];
  };
  if (!words.normalizer) return words;
  return { ...words, normalizer: { type: "Sequence", normalizers: steps(words.normalizer) } };
}

export async function load() {
  const page = await json("page.json");
  const [place, name] = page.model; // A folder next to the page, or a revision of a repository on the Hub.
  env.localModelPath = place;
  const files = ["export.json", "config.json", "tokenizer.json", "tokenizer_config.json"];
  const [record, config, words, settings, model] = await Promise.all([
    ...files.map((file) => json(`${place}${name}/${file}`)),
    AutoModelForSequenceClassification.from_pretrained(name, {
      dtype: page.dtype,
      device: "wasm",
      // The exporter has already fused most of a single model: without the optimiser, the first answer is available sooner,
      // and later ones take little longer. An average of several models gains more from it at every answer.
      session_options: { graphOptimizationLevel: page.averaged ? "all" : "disabled" },
    }),
  ]);
  // tokenizer.json is a complete description. The class that it belongs to may have another name in transformers.js.
  const tokenizer = new PreTrainedTokenizer(loweredAsInPython(words), settings);
  const types = record.inputs.includes("token_type_ids");
  // transformers writes no names into a config if they are its own for two classes.
  const names = Object.values(config.id2label ?? ["LABEL_0", "LABEL_1"]);
  const plain = (text) => tokenizer(text, { add_special_tokens: false, return_tensor: false }).input_ids.length;

  // Token ids and types of a text, or a pair, truncated to `max_length` tokens; special tokens are kept.
  function encode(text, pair = null) {
    const options = { text_pair: pair, return_tensor: false, return_token_type_ids: types };
    const whole = tokenizer(text, options);
    const length = whole.input_ids.length;
    let kept = Array.from({ length }, (_, place) => place);
    if (length > record.max_length) {
      const [first, second] = [plain(text), pair === null ? 0 : plain(pair)];
      const [one, two] = shares(first, second, record.max_length - (length - first - second));
      const end = length - 1 - second; // There is one special token at each end, and the others are between the texts.
      kept = kept.filter((place) => !(place > one && place <= first) && !(pair !== null && place >= end + two && place < length - 1));
    }
    return Object.fromEntries(Object.entries(whole).map(([name, values]) => [name, kept.map((place) => values[place])]));
  }

  // Probabilities by class, in the order of `names`.
  async function classify(text, pair = null) {
    const inputs = Object.entries(encode(text, pair)).map(([name, values]) => [
      name,
      new Tensor("int64", BigInt64Array.from(values.map(BigInt)), [1, values.length]),
    ]);
    const { logits } = await model(Object.fromEntries(inputs));
    return softmax(logits.tolist()[0]);
  }

  return { page, names, files: record.files, encode, classify };
}
