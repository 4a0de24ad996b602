// A walk on a line, in a worker: rl train "exec:node rl-runtime/examples/worker/walk.js"
// Start near the middle, step left or right, win 1 at the right end. docs/worker-protocol.md describes the messages.
const socket = new (require("net").Socket)({ fd: 0, readable: true, writable: true });
const [STEP, STEP_ONE, RESTART, BEGIN, RENDER, CLOSE] = [0, 1, 2, 3, 4, 5];

let walks = [];
const walk = (place) => ({ place, t: 0 });

function word(...words) {
  return Buffer.from(Uint32Array.from(words).buffer);
}

// Answers a request; `text` is that of BEGIN.
function answer(what, actions, text) {
  const [kind, i] = [what & 0xff, what >>> 8];
  if (kind === CLOSE) process.exit(0);
  if (kind === RENDER) return word(0, 0, 0); // no picture
  if (kind === BEGIN) walks = JSON.parse(text).seeds.map((seed) => walk((seed % 3) - 1));
  if (kind === RESTART) walks[i] = walk(0);
  const k = walks.length;
  const [rewards, flags, final] = [new Float32Array(k), new Uint8Array(2 * k), []];
  for (const j of kind === STEP ? walks.keys() : kind === STEP_ONE ? [i] : []) {
    const one = walks[j];
    one.place += actions[j] ? 1 : -1;
    one.t += 1;
    rewards[j] = one.place === 5 ? 1 : 0;
    flags[j] = Math.abs(one.place) === 5 ? 1 : 0;
    flags[k + j] = one.t === 50 && !flags[j] ? 1 : 0;
    if (flags[j] || flags[k + j]) {
      final.push(one.place);
      walks[j] = walk(0);
    }
  }
  const padding = Buffer.alloc((8 - ((4 + 6 * k) % 8)) % 8);
  const obs = Float32Array.from([...walks.map((one) => one.place), ...final]);
  return Buffer.concat([word(0), Buffer.from(rewards.buffer), flags, padding, Buffer.from(obs.buffer)]);
}

let [data, greeted] = [Buffer.alloc(0), false];
socket.on("end", () => process.exit(0)); // the program has ended
socket.on("data", (some) => {
  data = Buffer.concat([data, some]);
  for (;;) {
    // A request is a word and an action for each walk; a text follows BEGIN, and is all of the first message.
    const head = greeted ? 4 + 4 * walks.length : 0;
    if (data.length < Math.max(head, 4)) return;
    const what = greeted ? data.readUInt32LE(0) : 0;
    const hasText = !greeted || what === BEGIN;
    if (hasText && data.length < head + 4) return;
    const length = head + (hasText ? 4 + data.readUInt32LE(head) : 0);
    if (data.length < length) return;
    const text = hasText ? data.toString("utf8", head + 4, length) : "";
    if (greeted) {
      const actions = walks.map((_, j) => data.readUInt32LE(4 + 4 * j));
      socket.write(answer(what, actions, text));
    } else {
      const observation = { dtype: "f32", shape: [1], low: [-5], high: [5] };
      const hello = { protocol: 1, worker: "a walk in JavaScript", observation, action: { kind: "discrete", n: 2 } };
      const body = Buffer.from(JSON.stringify(hello));
      socket.write(Buffer.concat([word(0xa0000000, body.length), body]));
      greeted = true;
    }
    data = data.subarray(length);
  }
});
