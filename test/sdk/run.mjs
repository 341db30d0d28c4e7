// Builds the gateway, starts `sallyport demo`, and runs the tests against it.
// Node reads NODE_EXTRA_CA_CERTS only at its start, so the tests are a process
// of their own: the OpenAI client in it needs no option to trust the demo.
//
// SALLYPORT names a binary to use instead of building one.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, '../..');
const box = mkdtempSync(join(tmpdir(), 'sdk-'));

const seconds = (n) => new Promise((done) => setTimeout(done, n * 1000));

function binary() {
  if (process.env.SALLYPORT) return resolve(process.env.SALLYPORT);
  const path = join(box, 'sallyport');
  const built = spawnSync('go', ['build', '-o', path, './cmd/sallyport'], { cwd: root, stdio: 'inherit' });
  if (built.status !== 0) throw new Error('go build failed');
  return path;
}

async function ready(demo, file, most) {
  const until = Date.now() + most * 1000;
  while (!existsSync(file)) {
    if (demo.exitCode !== null || demo.signalCode !== null) throw new Error(`demo ended with ${demo.exitCode ?? demo.signalCode}`);
    if (Date.now() > until) throw new Error(`demo not ready after ${most} s`);
    await seconds(0.02);
  }
  return JSON.parse(readFileSync(file, 'utf8'));
}

// stop asks the demo to end, and returns its exit code. It kills it if it does not.
async function stop(demo, ended) {
  demo.kill('SIGTERM');
  const late = setTimeout(() => demo.kill('SIGKILL'), 45_000);
  await ended;
  clearTimeout(late);
  return demo.exitCode;
}

async function runTests(path, file, at) {
  const tests = spawn(process.execPath, ['--test', '--test-reporter=spec', here], {
    cwd: here,
    stdio: 'inherit',
    timeout: 120_000,
    env: { ...process.env, NODE_EXTRA_CA_CERTS: at.ca_file, SALLYPORT: path, SALLYPORT_READY: file },
  });
  const [code] = await once(tests, 'exit');
  return code ?? 1;
}

const path = binary();
const file = join(box, 'ready.json');
const demo = spawn(path, ['demo', '--json', '--dir', join(box, 'demo'), '--ready-file', file], { stdio: ['ignore', 'ignore', 'pipe'] });
let log = '';
demo.stderr.on('data', (text) => { log += text; });
const ended = once(demo, 'exit');

let code = 1;
try {
  code = await runTests(path, file, await ready(demo, file, 60));
} catch (err) {
  console.error(err.message);
} finally {
  const demoCode = await stop(demo, ended);
  if (demoCode !== 0) {
    console.error(`demo ended with ${demoCode ?? demo.signalCode}`);
    code ||= 1;
  }
  if (code !== 0) console.error(log);
  rmSync(box, { recursive: true, force: true });
}
process.exitCode = code;
