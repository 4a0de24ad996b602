// Acts with a policy in WebAssembly on the file `input`: node wasm.js NAME BYTES_OF_AN_ELEMENT MASK DRAWS EPISODE
const fs = require("fs");
const [name, size, maskLen, draws, episode] = [process.argv[2], ...process.argv.slice(3).map(Number)];

(async () => {
  const { instance } = await WebAssembly.instantiate(fs.readFileSync("program"), {});
  const wasm = instance.exports;
  const header = fs.readFileSync(`${name}.h`, "utf8");
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
  const input = fs.readFileSync("input");
  const output = [];
  const put = (at, length) => output.push(bytes.slice(at, at + length));
  const masks = maskLen ? [mask] : [];
  for (let at = 0, i = 0; at < input.length; i++) {
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
  fs.writeFileSync("output", Buffer.concat(output));
  process.exit(wasm[`${name}_test`](copy) ? 1 : 0);
})();
