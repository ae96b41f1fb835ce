// Runs an ONNX file with ONNX Runtime for Node.js or for browsers (WebAssembly, one thread).
//     node run.mjs PACKAGE NODE_MODULES < job.json
// where the job is {"model": path, "input": name, "outputs": [name, ...], "batches": [{"shape": [...], "data": [...]}]}.
// Prints for each batch a list of numbers an output.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [, , name, modules] = process.argv;
// CommonJS resolution finds a package in any folder; the module form of both packages is looked up from this file
const ort = createRequire(`${modules}/`)(name);
if (name === "onnxruntime-web") ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const job = JSON.parse(readFileSync(0, "utf8"));
const provider = name === "onnxruntime-web" ? "wasm" : "cpu";
const session = await ort.InferenceSession.create(readFileSync(job.model), { executionProviders: [provider] });
const results = [];
for (const { shape, data } of job.batches) {
  const feeds = { [job.input]: new ort.Tensor("float32", Float32Array.from(data), shape) };
  const found = await session.run(feeds);
  results.push(job.outputs.map((output) => Array.from(found[output].data, Number)));
}
process.stdout.write(JSON.stringify(results));
