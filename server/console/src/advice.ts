// What a client should do about a refusal: docs/clients.md has it at length.

const advices: Record<string, string> = {
  SEQUENCE_GAP: "call GetClientState; an earlier write is missing",
  ALREADY_COMMITTED: "done, if this session numbered the write; the receipt is no longer kept",
  IDEMPOTENCY_KEY_REUSED: "fix the bug: one key, two payloads",
  SEQUENCE_REUSED: "fix the bug: one sequence, two requests",
  SEQUENCE_EXHAUSTED: "rotate to a new client id",
  SESSION_EXPIRED: "the stream was evicted; look at the unanswered writes",
  SESSION_FENCED: "stop: another process has taken the stream over",
  SESSION_REQUIRED: "the stream has a session: open one",
  KEY_EXISTS: "read again and decide; the same sequence stays free",
  KEY_NOT_FOUND: "read again and decide; the same sequence stays free",
  VERSION_MISMATCH: "read again and decide; the same sequence stays free",
  VALUE_MISMATCH: "read again and decide; the same sequence stays free",
  INVALID_ARGUMENT: "fix the request; it never reached the log",
  PERMISSION_DENIED: "use a credential that may",
  QUEUE_FULL: "repeat the same sequence later",
  TOO_MANY_STREAMS: "repeat the same sequence later, or raise max_streams",
  TOO_MANY_KEYS: "repeat the same request later, when records of this principal have expired",
  TOO_MANY_WAITERS: "repeat the same request later, or without wait",
  NOT_LEADER: "repeat the same sequence at the leader",
  DRAINING: "repeat the same sequence when the server is back",
  OUTCOME_UNKNOWN: "repeat the same sequence: it may have been committed",
};

export const advice = (code: string): string => advices[code] ?? "see the table of errors";
