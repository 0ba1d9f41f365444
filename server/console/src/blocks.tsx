// Blocks and entities of a scope, and new blocks as they arrive.

import type { Entity } from "@seqledger/gen/types_pb";
import { type Block } from "@seqledger/client";
import type { Block as BlockMessage } from "@seqledger/gen/types_pb";
import { newestHeight } from "./newest";
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { admin, client, ledger, once, pollMs } from "./api";
import { bytes, hex, numberOf, operationText, scopeOf, time, timeOf } from "./format";
import { Action, Field, Form, Problem, Table, useEvery } from "./parts";

const pageSize = 50;

/** Blocks pages through the headers of a scope, and shows one block. */
export function Blocks(): JSX.Element {
  const [scope, setScope] = useState("");
  const [from, setFrom] = useState("");
  const [blocks, setBlocks] = useState<BlockMessage[]>();
  const [block, setBlock] = useState<Block>();
  const list = async (signal: AbortSignal, height: bigint): Promise<void> => {
    setBlock(undefined);
    const request = { scope: scopeOf(scope), fromHeight: height, pageSize };
    setBlocks((await ledger.listBlocks(request, { signal })).blocks);
  };
  const last = blocks?.at(-1)?.header?.height ?? 0n;
  const first = blocks?.[0]?.header?.height ?? 0n;
  const back = first > BigInt(pageSize) ? first - BigInt(pageSize) : 1n;
  const show = async (signal: AbortSignal, height: bigint): Promise<void> => {
    setBlock(undefined);
    setBlock(await once(signal, (asking, options) => asking.getBlock(scopeOf(scope), height, options)));
  };
  return (
    <>
      <h1>Blocks</h1>
      <Form action={(signal) => list(signal, numberOf("the height", from || "1"))} verb="List">
        <Field label="Scope" value={scope} onValue={setScope} placeholder="acme/main" />
        <Field label="From height" value={from} onValue={setFrom} placeholder="1" />
      </Form>
      {blocks && (
        <>
          <Table caption={`${blocks.length} blocks`} head={["height", "committed", "transactions", "hash"]}
            rows={blocks.map((b) => [
              <Action action={(signal) => show(signal, b.header!.height)}>{b.header!.height.toString()}</Action>,
              timeOf(b.header!.committedAt), String(b.header!.txCount), <code>{hex(b.hash)}</code>,
            ])} />
          <div class="row">
            {first > 1n && <Form action={(signal) => list(signal, back)} verb="Earlier">{null}</Form>}
            {blocks.length === pageSize && <Form action={(signal) => list(signal, last + 1n)} verb="Later">{null}</Form>}
          </div>
        </>
      )}
      {block && <Transactions block={block} />}
    </>
  );
}

function rowsOf(block: Block): ComponentChildren[][] {
  return block.transactions.map((t) => [
    time(t.committedAt), t.clientId, t.sequence.toString(), <a href={`#/transaction/${t.txId}`}>{t.txId}</a>,
    <code>{t.operations.map(operationText).join("; ").slice(0, 400)}</code>,
  ]);
}

const txHead = ["committed", "client id", "sequence", "transaction", "operations"];

function Transactions({ block }: { block: Block }): JSX.Element {
  return <Table caption={`Block ${block.header.height}`} head={txHead} rows={rowsOf(block)} />;
}

/** Entities pages through the entities of a scope. */
export function Entities(): JSX.Element {
  const [scope, setScope] = useState("");
  const [prefix, setPrefix] = useState("");
  const [entities, setEntities] = useState<Entity[]>();
  const [next, setNext] = useState("");
  const list = async (signal: AbortSignal, pageToken: string): Promise<void> => {
    const request = { scope: scopeOf(scope), prefix, pageSize, pageToken };
    const page = await ledger.listEntities(request, { signal });
    setEntities(page.entities);
    setNext(page.nextPageToken);
  };
  return (
    <>
      <h1>Entities</h1>
      <Form action={(signal) => list(signal, "")} verb="List">
        <Field label="Scope" value={scope} onValue={setScope} placeholder="acme/main" />
        <Field label="Prefix of the key" value={prefix} onValue={setPrefix} />
      </Form>
      {entities && (
        <Table caption={`${entities.length} entities`} head={["key", "value", "version", "expires", "transaction"]}
          rows={entities.map((e) => [
            e.key, <code>{bytes(e.value).slice(0, 400)}</code>, e.version.toString(), timeOf(e.expiresAt),
            <a href={`#/transaction/${e.txId}`}>{e.txId}</a>,
          ])} />
      )}
      {entities && next !== "" && <Form action={(signal) => list(signal, next)} verb="Next page">{null}</Form>}
    </>
  );
}

const shown = 200;

/** Follow shows the transactions of a scope as they are committed; the page checks their hash chain. */
export function Follow(): JSX.Element {
  const [scope, setScope] = useState("");
  const [rows, setRows] = useState<ComponentChildren[][]>();
  const [seen, setSeen] = useState(0);
  const follow = async (signal: AbortSignal): Promise<void> => {
    setRows(undefined);
    setSeen(0);
    let latest: ComponentChildren[][] = [];
    let n = 0;
    let drawing = false;
    // Once per frame, however many blocks there are.
    const draw = (): void => {
      if (drawing) return;
      drawing = true;
      requestAnimationFrame(() => {
        drawing = false;
        if (signal.aborted) return;
        setRows(latest);
        setSeen(n);
      });
    };
    const newest = await newestHeight(scopeOf(scope), signal);
    setRows([]);
    for await (const block of client.watch(scopeOf(scope), { fromHeight: newest > 0n ? newest : 1n, signal })) {
      n += block.transactions.length;
      latest = [...rowsOf(block).reverse(), ...latest].slice(0, shown);
      draw();
    }
  };
  return (
    <>
      <h1>Follow</h1>
      <Form action={follow} verb="Follow">
        <Field label="Scope" value={scope} onValue={setScope} placeholder="acme/main" />
      </Form>
      {rows && <Silence />}
      {rows && (
        <Table caption={`${seen} transactions since the last block before; the newest first, at most ${shown}`}
          head={txHead} rows={rows} />
      )}
    </>
  );
}

/** Silence tells why a server that is followed sends nothing: it does not answer, or takes no writes. */
function Silence(): JSX.Element {
  return <Problem error={useEvery(1000, async (signal) => {
    const { status } = await admin.getStatus({}, { signal, timeoutMs: pollMs });
    if (status?.node?.notReady) throw new Error(`the server takes no writes: ${status.node.notReady}`);
  })} />;
}
