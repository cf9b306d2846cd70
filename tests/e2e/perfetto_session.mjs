// Perfetto's trace processor as its web page runs it, behind a socket for the `perfetto` package.
//
//     node perfetto_session.mjs FOLDER TRACE SOCKET
//
// FOLDER holds the page's engine_bundle.js and the WebAssembly that it asks for. The engine and the
// package speak the same stream of TraceProcessorRpc messages, so bytes are only passed on. One
// client; says "ready" when TRACE is loaded, and ends when the client goes.

import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";

const [folder, trace, address] = process.argv.slice(2);
const APPEND = [0x10, 1, 0xaa, 0x06]; // request: TPM_APPEND_TRACE_DATA, append_trace_data: ...
const FINALIZE = [0x10, 2]; // request: TPM_FINALIZE_TRACE_DATA
const PIECE = 1 << 20;

// What the bundle needs of a browser's worker.
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.file = join(folder, name);
  }
  send() {
    this.response = new Uint8Array(readFileSync(this.file)).buffer;
  }
};
const worker = { location: { href: "" }, WorkerGlobalScope: true };
const bundle = readFileSync(join(folder, "engine_bundle.js"), "utf8");
new Function("self", "WorkerGlobalScope", "importScripts", "process", bundle)(
  worker, worker.WorkerGlobalScope, () => {}, undefined,
);

let answer = () => {};
const port = { postMessage: (bytes) => answer(bytes) };

function tell(bytes) {
  port.onmessage({ data: new Uint8Array(bytes) });
}

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
}

function message(...parts) {
  const body = Buffer.concat(parts.map((part) => Buffer.from(part)));
  return Buffer.concat([Buffer.from([0x0a]), varint(body.length), body]);
}

setTimeout(() => { // the engine starts in promises of its own
  worker.onmessage({ data: port });
  const data = readFileSync(trace);
  for (let at = 0; at < data.length; at += PIECE) {
    const piece = data.subarray(at, at + PIECE);
    tell(message(APPEND, varint(piece.length), piece));
  }
  tell(message(FINALIZE));
  const server = createServer((client) => {
    answer = (bytes) => client.write(bytes);
    client.on("data", tell);
    client.on("close", () => process.exit(0));
  });
  server.listen(address, () => console.log("ready"));
}, 0);
