// Acts with a policy in WebAssembly on observations, in Node and in a browser.
//
// `node wasm.js NAME BYTES_OF_AN_ELEMENT MASK DRAWS EPISODE` reads the file `input` and writes the file `output`.

// Returns actions and outputs, and whether the policy's own test fails.
//
// Synchronous: a browser without a window shows the page as soon as nothing but a compilation is left to wait for.
const play = (program, header, input, name, size, maskLen, draws, episode) => {
  const wasm = new WebAssembly.Instance(new WebAssembly.Module(program), {}).exports;
  const constant = (what) => Number(header.match(new RegExp(`${name.toUpperCase()}_${what} = (\\d+)`))[1]);
  const [obsLen, actionLen, outputsLen] = ["OBS", "ACTION", "OUTPUTS"].map(constant);

  // The policy's memories, observation, mask and action follow the program's own data.
  let end = wasm.__heap_base.value;
  const place = (bytes) => { const at = end; end += Math.ceil(bytes / 16) * 16; return at; };
  const memoryBytes = wasm[`${name}_memory_bytes`]();
  const [memory, copy] = [place(memoryBytes), place(memoryBytes)];
  const [obs, mask, action] = [place(obsLen * size), place(maskLen), place(4 * actionLen)];
  const missing = end - wasm.memory.buffer.byteLength;
  if (missing > 0) wasm.memory.grow(Math.ceil(missing / 65536));

  const bytes = new Uint8Array(wasm.memory.buffer);
  const steps = input.length / (obsLen * size + maskLen);
  const output = new Uint8Array(steps * 4 * ((draws ? 2 : 1) * actionLen + outputsLen));
  let written = 0;
  const put = (at, length) => {
    output.set(bytes.subarray(at, at + length), written);
    written += length;
  };
  const masks = maskLen ? [mask] : [];
  for (let at = 0, i = 0; i < steps; i++) {
    bytes.set(input.subarray(at, at + obsLen * size), obs);
    at += obsLen * size;
    bytes.set(input.subarray(at, at + maskLen), mask);
    at += maskLen;
    if (i % episode === 0) wasm[`${name}_reset`](memory);
    if (draws) {
      bytes.copyWithin(copy, memory, memory + memoryBytes);
      wasm[`${name}_sample`](copy, obs, ...masks, (1n << 40n) | 9n, 5 + i, (1n << 33n) | 6n, action);
      put(action, 4 * actionLen);
    }
    wasm[`${name}_act`](memory, obs, ...masks, action);
    put(action, 4 * actionLen);
    put(wasm[`${name}_outputs`](memory), 4 * outputsLen);
  }
  return [output, wasm[`${name}_test`](copy) !== 0];
};

if (typeof process !== "undefined") {
  const fs = require("fs");
  const [name, ...lens] = process.argv.slice(2);
  const header = fs.readFileSync(`${name}.h`, "utf8");
  const [output, failed] = play(fs.readFileSync("program"), header, fs.readFileSync("input"), name, ...lens.map(Number));
  fs.writeFileSync("output", output);
  process.exit(failed ? 1 : 0);
}
