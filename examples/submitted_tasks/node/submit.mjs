// Streams JSON lines to the buffer as a taskset, and says which rows were refused.
//
//   npm install && node submit.mjs HOST:PORT NAME tasks.jsonl [REQUEST-ID]
//
// Cut off? Run it again with the same request id: rows that are stored are counted, not stored twice.
import { randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const ROWS_A_MESSAGE = 500;
const PROTOS = fileURLToPath(new URL("../../../proto", import.meta.url));

const [address, name, file, requestId = randomUUID()] = process.argv.slice(2);
if (!file) {
  console.error("usage: node submit.mjs HOST:PORT NAME tasks.jsonl [REQUEST-ID]");
  process.exit(2);
}

const { trinity } = loadPackageDefinition(
  loadSync(["trinity/api/v1/buffer.proto", "trinity/api/v1/taskset.proto"], {
    includeDirs: [PROTOS],
    longs: Number,
    enums: String,
  }),
);
const { BufferService, TasksetService } = trinity.api.v1;
const tenant = process.env.TRINITY_TENANT ?? "default";

const answer = await submit(new BufferService(address, credentials.createInsecure()));
const { numRefused = 0, refused = [] } = answer;
console.log(`request ${requestId}: ${answer.numStored} rows stored, ${numRefused} refused`);
for (const { index = 0, reason } of refused) console.log(`  row ${index}: ${reason}`);
if (numRefused > refused.length) console.log(`  and ${numRefused - refused.length} more`);

const { tasksets } = await list(new TasksetService(address, credentials.createInsecure()));
for (const one of tasksets) console.log(`${one.name}: ${one.numRows} rows, ${one.state}`);

async function submit(buffer) {
  let call;
  const answered = new Promise((resolve, reject) => {
    call = buffer.SubmitTaskset((error, response) => (error ? reject(error) : resolve(response)));
  });
  let numSent = 0;
  let rows = [];
  const send = async (part) => {
    if (!call.write({ ...part, numBefore: numSent })) {
      // A call that has failed drains no more: its error ends the wait.
      await Promise.race([answered, new Promise((resolve) => call.once("drain", resolve))]);
    }
  };
  const flush = async () => {
    await send({ rows: { json: rows } });
    numSent += rows.length;
    rows = [];
  };
  await send({ header: { tenant, name, requestId } });
  for await (const line of createInterface({ input: createReadStream(file) })) {
    if (line.trim()) rows.push(line);
    if (rows.length === ROWS_A_MESSAGE) await flush();
  }
  if (rows.length) await flush();
  await send({ end: {} });
  call.end();
  return answered;
}

function list(tasksets) {
  return new Promise((resolve, reject) =>
    tasksets.ListTasksets({ tenant }, (error, response) =>
      error ? reject(error) : resolve(response),
    ),
  );
}
