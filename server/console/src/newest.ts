// Finding the end of a scope's chain.

import { Code, ConnectError } from "@connectrpc/connect";
import type { Scope } from "@seqledger/client";
import { ledger } from "./api";

/**
 * newestHeight returns the height of a scope's last block, or 0 if there is none. It requests single headers, about
 * twice as many as the height has binary digits: a chain of ten million blocks takes some fifty calls.
 */
export async function newestHeight(scope: Scope, signal: AbortSignal): Promise<bigint> {
  const exists = async (fromHeight: bigint): Promise<boolean> => {
    try {
      return (await ledger.listBlocks({ scope, fromHeight, pageSize: 1 }, { signal })).blocks.length > 0;
    } catch (e) {
      if (ConnectError.from(e).code === Code.OutOfRange) return true; // retention has dropped it
      throw e;
    }
  };
  let below = 0n; // the last block is at this height or above
  let above = 1n; // and below this one, once there is no block at it
  while (await exists(above)) {
    below = above;
    above *= 2n;
  }
  while (above - below > 1n) {
    const middle = (below + above) / 2n;
    if (await exists(middle)) below = middle;
    else above = middle;
  }
  return below;
}
