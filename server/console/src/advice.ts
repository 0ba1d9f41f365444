// The meaning of refusals, and what clients should do. A test compares this table with the table "Errors" of
// docs/clients.md.

const refusals: Record<string, [meaning: string, advice: string]> = {
  SEQUENCE_GAP: ["a number before this one is missing", "call GetClientState; mind duty 4 before you renumber"],
  ALREADY_COMMITTED: ["committed; the receipt is no longer kept", "done, if this session numbered it"],
  IDEMPOTENCY_KEY_REUSED: ["one key, two payloads", "fix the client"],
  SEQUENCE_REUSED: ["one number, two requests", "fix the client"],
  SEQUENCE_EXHAUSTED: ["the number is 2^64−1, which no write can have", "go on after last_committed_sequence; if that is 2^64−2, take a new client id"],
  SESSION_EXPIRED: ["the stream was evicted or restored", "unanswered writes are unsettled: look before you repeat them"],
  SESSION_FENCED: ["another process opened a session", "stop"],
  SESSION_REQUIRED: ["the stream has a session, the write none", "open one"],
  KEY_EXISTS: ["a condition does not hold", "read again and decide; the number is still free"],
  KEY_NOT_FOUND: ["a condition does not hold", "read again and decide; the number is still free"],
  VERSION_MISMATCH: ["a condition does not hold", "read again and decide; the number is still free"],
  VALUE_MISMATCH: ["a condition does not hold", "read again and decide; the number is still free"],
  INVALID_ARGUMENT: ["field is wrong; nothing was logged", "fix the request"],
  PERMISSION_DENIED: ["not for this caller", "use a credential that may"],
  QUEUE_FULL: ["not now; retry_after", "the same number, later"],
  TOO_MANY_STREAMS: ["not now; retry_after", "the same number, later"],
  TOO_MANY_KEYS: ["the principal has as many keyed records as it may; retry_after", "the same request, later"],
  TOO_MANY_WAITERS: ["too many calls of Reserve wait; retry_after", "the same request, later, or without wait"],
  NOT_LEADER: ["never proposed", "the same number, elsewhere or later"],
  DRAINING: ["never proposed", "the same number, elsewhere or later"],
  OUTCOME_UNKNOWN: ["it may have committed", "the same number and key again"],
};

/** meaning and advice return what a refusal means, and what its client should do. */
export const meaning = (code: string): string => refusals[code]?.[0] ?? "a code that this console does not know";
export const advice = (code: string): string => refusals[code]?.[1] ?? "see the table of errors in docs/clients.md";
