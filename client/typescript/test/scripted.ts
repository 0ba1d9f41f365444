// Answers of scripted servers, and names for the outcomes of writes, as used in the tables in client/testdata.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { WriteResultSchema } from "../src/gen/seqledger/v1/ledger_pb.js";
import { WriteErrorSchema } from "../src/gen/seqledger/v1/types_pb.js";
import {
  codeOf, NotExecutedError, OutcomeUnknownError, type Pending, ProtocolError, receiptGone, StoppedError,
  WriteErrorCode as E,
} from "../src/index.js";

export const scope = { organization: "acme", vault: "main" };
const txId = "01234567-89ab-8cde-b000-00000000000a";
const otherTxId = "01234567-89ab-8cde-bc00-00000000000a";

/** An answer to one write: only a number is a receipt; a code is a refusal. */
export type Result = MessageInitShape<typeof WriteResultSchema>;
export const receipt = (sequence: bigint, more: { replayed?: boolean; txId?: string } = {}): Result =>
  ({ result: { case: "receipt", value: { txId, sequence, session: 1n, ...more } } });
export const refusal = (code: E): Result => ({ result: { case: "error", value: { code, message: "refused" } } });

/** callError is the refusal of a whole call. */
export const callError = (code: E, connectCode: Code): ConnectError =>
  new ConnectError("refused", connectCode, undefined, [
    { desc: WriteErrorSchema, value: { code, message: "refused" } },
  ]);

/** Answer is the answer to a write in a table. */
export interface Answer {
  receipt?: number;
  replayed?: boolean;
  other_ledger?: boolean;
  without_tx_id?: boolean;
  refusal?: string;
}

export const resultOf = (
  { receipt: sequence, replayed = false, other_ledger: other, without_tx_id: bare, refusal: code }: Answer,
): Result => {
  if (code !== undefined) return refusal(E[code as keyof typeof E] ?? (Number(code) as E));
  if (sequence === undefined) return {};
  return receipt(BigInt(sequence), { replayed, ...(other ? { txId: otherTxId } : bare ? { txId: "" } : {}) });
};

/** The outcome of a write: the class of its error, and the code or the class of the cause. */
export async function outcome(p: Pending): Promise<string> {
  try {
    const r = await p.settled;
    return receiptGone(r) ? "committed, receipt gone" : "committed";
  } catch (e) {
    const unknown = e instanceof OutcomeUnknownError ? "unknown" : String(e);
    const kind = e instanceof NotExecutedError ? "not executed" : unknown;
    const { cause } = e as { cause: unknown };
    const protocol = cause instanceof ProtocolError ? "protocol" : (E[codeOf(cause)] ?? String(codeOf(cause)));
    const why = cause instanceof StoppedError ? "stopped" : protocol;
    return `${kind}: ${why}`;
  }
}
